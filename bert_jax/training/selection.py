"""Selects the best evaluation of a run, and stops the run if no better evaluation comes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.metric_names import has_goal, lower_is_better


@dataclasses.dataclass(frozen=True)
class SelectionConfig:
    """The metric of the held-out rows by which the best step is selected. If it is "", the last step is the result."""

    metric: str = ""  # in fine-tuning, "" is the task's main metric
    patience: int | None = None  # evaluations without a better score after which the run ends; None: it never does

    def __post_init__(self) -> None:
        if not has_goal(self.metric):
            raise UserError(
                f"config.selection.metric is {self.metric!r}, of which more is neither better nor worse; name a loss "
                "or a score that the evaluations print"
            )
        allowed = "at least 1 is needed, or None"
        check_fields(self, "config.selection", allowed, "patience", sound=lambda value: value is None or value >= 1)


class Selection:
    """Follows the evaluations of a run. A resumed run restores its state from the run's log."""

    def __init__(self, config: SelectionConfig, seen: Iterable[Mapping[str, Any]]):
        """``seen``: the log's records of the evaluations before a resume."""
        self._config = config
        self.best: tuple[int, float] | None = None  # step, score
        self._since_best = 0
        for record in seen:
            self.see(record["step"], record)

    def see(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Return whether the evaluation at ``step`` is the best so far, and no evaluation before is better.

        Of equal scores the last is the best, since it has trained the longest; for ``patience`` it is not better.

        Raises:
          UserError: ``metrics`` lacks the metric of the config.
        """
        name = self._config.metric
        if not name:
            return False
        if name not in metrics:
            numbers = [key for key, value in metrics.items() if isinstance(value, float)]
            raise UserError(f"config.selection.metric is {name!r}; the metrics are {', '.join(numbers)}")
        if step == 0:  # before the first update there is nothing to select
            return False
        score = math.nan if metrics[name] is None else float(metrics[name])  # None: the number was not finite
        before = self.best and self.best[1]
        above = before is None or (score < before if lower_is_better(name) else score > before)
        better = above and math.isfinite(score)
        self._since_best = 0 if better else self._since_best + 1
        if better or score == before:
            self.best = step, score
        return self.best is not None and self.best[0] == step

    @property
    def exhausted(self) -> bool:
        """Whether the last ``patience`` evaluations have all brought no better score; never without ``patience``."""
        return self._config.patience is not None and self._since_best >= self._config.patience
