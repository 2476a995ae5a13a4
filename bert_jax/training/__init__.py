"""Trains: one loop and one train step for every objective and task.

``loop`` says when a run logs, evaluates, saves and stops; ``step`` how gradients are made and divided; ``mesh`` where
arrays lie; ``health`` and ``roll_back`` what follows bad numbers; ``selection`` which evaluation is the best.
"""
