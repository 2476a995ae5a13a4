"""The nouns of experiments: a run of a grid, and the scores of a variant over several seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

Metrics = dict[str, float]
SAME_ROWS = ("mlm_loss", "mlm_accuracy")  # metrics that are computed on the first variant's held-out rows
OWN = "own_"  # prefix of the masked-LM metrics of a variant's own objective, on its own held-out rows


@dataclasses.dataclass(frozen=True)
class Cell:
    """A run of a grid.

    Attributes:
      name: the name of its folder.
      overrides: plain data that tells this run apart from other runs.
      common: plain data that several cells share, such as the rows on which they are judged. If it changes, earlier
        results do not count.
      work: the kind of the run, such as "fine-tuning".
    """

    name: str
    overrides: Mapping[str, Any]
    common: Any = None
    work: str = "training"


@dataclasses.dataclass(frozen=True)
class VariantSummary:
    """The scores of a variant in a metric.

    ``difference`` and the fields after it compare with the variant ``reference``: the first, unless another is asked
    for. They are None for a reference itself, and if the two measure different things. With one seed, ``spread`` and
    the fields after ``difference`` are None.
    """

    variant: str
    seeds: int
    mean: float
    spread: float | None  # standard deviation over seeds, with denominator n - 1
    difference: float | None = None  # the mean minus the first variant's mean
    standard_error: float | None = None  # of ``difference``
    noise: float | None = None  # the standard error times Student's t: a larger difference is beyond the noise
    bars: float | None = None  # both variants' ``bar``: with a larger difference they do not overlap
    reference: str | None = None

    @property
    def bar(self) -> float | None:
        """Two standard errors of the mean over the seeds: the length of the error bar to either side."""
        return None if self.spread is None else 2 * self.spread / math.sqrt(self.seeds)

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the difference is beyond the noise; None if a difference or a noise is missing."""
        return None if self.difference is None or self.noise is None else abs(self.difference) > self.noise

    @property
    def is_another_measure(self) -> bool:
        """Whether the variant is not compared, because it measures something else than its reference."""
        return self.reference is not None and self.difference is None

    @property
    def doubt(self) -> str:
        """The reason why a difference is not shown; "" if it is shown, or if nothing is compared."""
        if self.difference is None:
            return ""
        if self.noise is None or self.bars is None:
            return "one seed"
        if abs(self.difference) <= self.bars:
            return "the bars overlap"
        return "" if self.beyond_noise else "within the noise"

    @property
    def shown(self) -> bool | None:
        """Whether a difference is beyond the noise and the error bars do not overlap; None as for ``beyond_noise``."""
        return None if self.beyond_noise is None else not self.doubt

    @property
    def verdict(self) -> str:
        verdicts = {None: "one seed: cannot tell", True: "beyond the noise", False: "within the noise"}
        return verdicts[self.beyond_noise] + (f", but {self.doubt}" if self.beyond_noise and self.doubt else "")


Tables = Mapping[str, Sequence[VariantSummary]]  # metric -> a summary for each variant that has it


@dataclasses.dataclass(frozen=True)
class MetricColumn:
    """A metric in the table of an ablation, with its meaning."""

    about: str
    better: str  # which values are better, in words
    scores: Mapping[str, Sequence[float]]  # variant -> a score per seed
    baselines: Mapping[str, float]  # name -> a score without learning
    is_main: bool = False
    step: str = ""  # the step that was fine-tuned, if not the last
    measures: Mapping[str, Any] | None = None  # variant -> plain data that says what it measures; None: all the same
    not_compared: str = ""  # which variants measure something else

    @property
    def line(self) -> str:
        return "; ".join(filter(None, [self.about, self.better, self.not_compared]))

    def of_all_steps(self, text: str) -> str:
        """Return a text, in which a fine-tuning is named, without the step of this column."""
        return text.replace(f"@{self.step}", "", 1) if self.step else text
