"""Scores of predictions, in plain numpy: every function returns ``{name in the field's words: float}``.

Scores are fractions (0 to 1, or -1 to 1 for correlations). Those of spans and the totals of GLUE are percentages, as
the official scripts and leaderboards print them. Where a score is undefined (no example, one class only, zero variance)
it is 0, and nothing is raised; bad input (unequal lengths, unknown names) raises ``UserError``.
"""
