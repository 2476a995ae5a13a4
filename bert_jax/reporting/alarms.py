"""Raises alarms for losses that are finite but show that a run has gone wrong.

Alarms depend only on the records of the run, so a resumed run raises the same alarms as an uninterrupted one.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.metric_names import TOTAL
from bert_jax.reporting.formats import in_words, is_number
from bert_jax.reporting.loggers.base import Record
from bert_jax.reporting.measures import known_baselines

WINDOWS, ENOUGH = 32, 16  # most and fewest earlier windows to compare a loss with; with fewer, there is no alarm
_DEVIATIONS = 10.0  # a spike lies at least so many robust standard deviations above the median of earlier windows
SHARE = 1 / 3  # a spike undoes at least this share of the fall of the loss so far
_NOISE = 0.05  # a rise by less than this share of the median is not a spike
CHANCE = 500  # a loss must be below its baseline once the run is half done and so many steps past the warm-up


class Alarms:
    """Raises the alarms of a run, record by record.

    An alarm is raised when its cause begins. It is not repeated while the cause lasts, but raised again if the cause
    ends and returns.
    """

    def __init__(self, seen: Iterable[Record], baselines: Mapping[str, Any], warmup_steps: int, num_steps: int):
        """Begin with the records of the run so far.

        Args:
          seen: the records from before a resume.
          baselines: the content of ``baselines.json``.
        """
        self._baselines, self._warmup, self._num_steps = baselines, warmup_steps, num_steps
        self._losses: deque[float] = deque(maxlen=WINDOWS)
        self._phase: Any = None
        self._first: float | None = None  # mean train loss of the first window
        self._untrained: float | None = None  # the first held-out loss
        self._best = float("inf")
        self._spiking = self._failing = False
        for record in seen:
            if record["split"] == "train":
                self.train(record)
            elif record["split"] == "eval":
                self.evaluation(record["step"], record)

    def train(self, metrics: Mapping[str, Any]) -> str | None:
        """Return the text of an alarm about the mean train loss of a window of steps; None if there is none.

        ``metrics`` has ``loss``, and ``phase`` if the run has phases.
        """
        loss: float | None = metrics.get(TOTAL, metrics.get("loss"))
        if metrics.get("phase") != self._phase:  # a new phase has another row length or batch size
            self._phase = metrics.get("phase")
            self._losses.clear()
        if loss is None or not is_number(loss):
            return None
        self._first = loss if self._first is None else self._first
        limit = self._limit()
        before, self._spiking = self._spiking, loss > limit
        if not self._spiking:
            self._losses.append(loss)
            return None
        return None if before else f"the loss is {loss:,.3f}, after {statistics.median(self._losses):,.3f}: a spike"

    def _limit(self) -> float:
        if self._first is None or len(self._losses) < ENOUGH:
            return float("inf")
        median = statistics.median(self._losses)
        deviation = 1.4826 / 2**0.5 * statistics.median(abs(a - b) for a, b in itertools.pairwise(self._losses))
        return median + max(_DEVIATIONS * deviation, SHARE * (self._first - median), _NOISE * abs(median))

    def evaluation(self, step: int, metrics: Mapping[str, Any]) -> str | None:
        """Return the text of an alarm about the held-out loss at ``step``; None if there is none."""
        losses = [name for name in metrics if name.endswith("_loss")]  # of terms; a loss with a baseline is judged
        if not losses:
            return None
        name = max(losses, key=lambda name: bool(known_baselines(name, self._baselines)))
        text = self._judge(name, metrics[name], step)
        before, self._failing = self._failing, text is not None
        return None if before else text

    def _judge(self, metric: str, loss: Any, step: int) -> str | None:
        name, baselines = in_words(metric), known_baselines(metric, self._baselines)
        if not is_number(loss):
            return f"the held-out {name} is not finite"
        self._untrained = loss if self._untrained is None else self._untrained
        best, self._best = self._best, min(loss, self._best)
        weakest, baseline = baselines[-1] if baselines else ("", float("inf"))
        if step <= self._warmup or loss <= baseline:
            return None
        worse = f"the held-out {name} is {loss:,.3f}, worse than the {weakest}'s {baseline:,.3f}"
        if loss > self._untrained:
            return f"{worse} and the untrained model's {self._untrained:,.3f}: it has diverged"
        if best <= baseline:
            return f"{worse}; it was {best:,.3f}"
        late = step - self._warmup >= CHANCE and step >= self._num_steps / 2
        return f"{worse}: nothing is learned" if late else None
