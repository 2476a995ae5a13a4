"""Scores of predictions, in plain numpy: every function returns ``{name in the field's words: float}``.

Scores are fractions (0 to 1, or -1 to 1 for correlations). Scores of spans and the totals of GLUE are percentages, as
the official scripts and leaderboards print them. A score that is undefined (no example, only one class, zero variance)
is 0. Bad input (unequal lengths, unknown names) raises ``UserError``.
"""
