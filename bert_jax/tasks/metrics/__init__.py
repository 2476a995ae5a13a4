"""Computes metrics of predictions, in plain numpy: every function returns a dict, name of the score -> float.

Scores are fractions (0 to 1, or -1 to 1 for correlations). Scores of spans are percentages,
because the official scripts and leaderboards print percentages. A score that is undefined (no example, only one class,
zero variance) is 0. An unknown name raises ``UserError``.
"""
