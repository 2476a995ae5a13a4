"""Evaluations during training besides that of the held-out rows, which score the current parameters.

Each file defines ``Config`` and ``Evaluator`` (see ``base.TrainingEvaluator``) and is found by the file's name.
"""
