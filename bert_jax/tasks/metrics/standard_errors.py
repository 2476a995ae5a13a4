"""Estimates the standard error of a score: its distance from the score on endlessly many examples of the same kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

EACH = 1000  # of more examples, ``jackknife`` leaves out a group at a time
_GROUPS = 200
_SAME = 1e-9  # a smaller spread comes from rounding


def of_share(share: float, number: int) -> float:
    """Return the binomial standard error of a share of ``number`` examples.

    A share of 0 or 1 counts as half an example away from it: few examples that are all right prove little.
    """
    if not number:
        return 0.0
    share = min(max(share, 0.5 / number), 1 - 0.5 / number)
    return math.sqrt(share * (1 - share) / number)


def of_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the standard error of the mean of ``values``; 0 if there are fewer than two."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def jackknife(score: Callable[[np.ndarray], float], number: int) -> float:
    """Return the standard error of a score of ``number`` examples, by the jackknife (Efron and Stein 1981).

    The error is the spread of the scores that leave out one example each. With more than ``EACH`` examples, each score
    leaves out one of ``_GROUPS`` groups, which are drawn at random and are the same at every call. If no example moves
    the score, such as if all are right, the error is the binomial error of a share of 1.

    Args:
      score: a function of the numbers of the examples that are kept, [kept] int.
    """
    groups = number if number <= EACH else _GROUPS
    if groups < 2:
        return 0.0
    group_of = np.arange(number) % groups
    if groups < number:
        group_of = np.random.default_rng(0).permutation(group_of)
    scores = [score(np.flatnonzero(group_of != group)) for group in range(groups)]
    spread = float(np.std(scores) * math.sqrt(groups - 1))
    return spread if spread > _SAME else of_share(1.0, number)
