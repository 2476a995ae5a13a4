"""Evaluations that score the current parameters during training, besides the evaluation of the held-out rows.

Each file defines ``Config`` and ``Evaluator`` (see ``base.TrainingEvaluator``) and is found by the file's name.
"""
