"""What the columns of an ablation's table measure: in which variants they are the same, and in words."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bert_jax.objectives.base import MLM, PretrainingObjective
from bert_jax.reporting.formats import figure
from bert_jax.reporting.measures import known_baselines, lower_is_better

OWN = "own_"  # prefix of the masked-LM metrics of a variant's own objective, on its own held-out rows
KINDS = {"loss": "cross-entropy in nats per target", "accuracy": "share of its targets that are predicted"}


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the held-out metrics of one variant measure.

    Attributes:
      rows: plain data that decides the variant's held-out rows.
      objective: ``config.objective`` and what phases replace in it.
    """

    task: PretrainingObjective
    rows: Any
    objective: Any

    def by(self, metric: str) -> Any:
        """Return plain data that is equal for two variants if the metric measures the same in both.

        That of a term whose labels and weights are features of the rows depends on these alone. Everything else depends
        on the whole objective.
        """
        if metric in ("mlm_loss", "mlm_accuracy"):
            return "rows of the first variant"
        name, _, kind = metric.removeprefix(OWN).partition("/")[0].rpartition("_")
        term = self.task.terms(self.task.config).get(name)
        plain = type(self.task).loss is PretrainingObjective.loss and kind in KINDS
        if term is None or not plain or {term.labels, term.weights} & set(self.task.derived):
            return [self.rows, self.objective]
        own_masks = type(self.task).masking is not PretrainingObjective.masking
        return [self.rows, term.logits, term.labels, term.weights, self.task.name if own_masks else ""]


def columns(
    scores: Mapping[str, Mapping[str, Sequence[float]]], measured: Mapping[str, Measured], tasks: Collection[str]
) -> dict[str, Mapping[str, Any] | None]:
    """Return the metrics of the table in their order: held-out ones, then the scores of fine-tuning.

    The ``own_`` metrics are left out if in all variants they measure what ``mlm_loss`` and ``mlm_accuracy`` do.

    Args:
      scores: metric -> variant -> scores.
      tasks: the names of fine-tuning recipes, with which the names of their metrics begin.

    Returns:
      Metric -> {variant: what it measures}; None for scores of fine-tuning, which all measure the same.
    """
    found: dict[str, Mapping[str, Any] | None] = {}
    plain = [next(iter(measured.values())).rows, MLM.logits, MLM.labels, MLM.weights, ""]
    for metric, having in sorted(scores.items(), key=lambda one: _task_of(one[0], tasks) != ""):
        if _task_of(metric, tasks):
            found[metric] = None
            continue
        by = {variant: measured[variant].by(metric) for variant in having}
        if not metric.startswith(OWN) or any(one != plain for one in by.values()):
            found[metric] = by
    return found


def explained(metric: str, by: Mapping[str, Any] | None, tasks: Collection[str], first: str) -> str:
    """Return in one line what a column is."""
    better = "lower" if lower_is_better(metric.rpartition("/")[2] if _task_of(metric, tasks) else metric) else "higher"
    if task := _task_of(metric, tasks):
        what = f"{metric.removeprefix(f'{task}/')} of {task}'s best evaluation after fine-tuning with it"
        return f"{what}; {better} is better"
    name, _, part = metric.partition("/")
    term, _, kind = name.removeprefix(OWN).rpartition("_")
    where = f" of the part {part}" if part else ""
    if metric in ("mlm_loss", "mlm_accuracy"):
        what = KINDS[kind].replace("its targets", "masked tokens").replace("target", "masked token")
        return f"{what}, unweighted, of every variant on the same held-out rows, those of {first}; {better} is better"
    what = f"term {term!r} of the variant's own objective, as it weights it: {KINDS.get(kind, kind)}"
    if not term or kind not in KINDS:
        what = f"{name}, a metric of the variant's own objective"
    line = f"{what}, on held-out rows{where} of its own; {better} is better"
    if by and len({repr(one) for one in by.values()}) > 1:
        first_of_these, *others = by
        differing = [variant for variant in others if by[variant] != by[first_of_these]]
        line += f"; {', '.join(differing)} and {first_of_these} measure different things by it, and are not compared"
    return line


def to_beat(metric: str, baselines: Sequence[Mapping[str, Any]], tasks: Collection[str]) -> str:
    """Return, as text, the scores that are reached without learning: means over the runs with these baselines."""
    task = _task_of(metric, tasks)
    known: dict[str, list[float]] = {}
    for one in baselines:
        for name, value in known_baselines(metric.removeprefix(f"{task}/"), one):
            known.setdefault(name, []).append(value)
    return ", ".join(f"{name} {figure(statistics.fmean(values))}" for name, values in known.items())


def _task_of(metric: str, tasks: Collection[str]) -> str:
    name, slash, _ = metric.partition("/")
    return name if slash and name in tasks else ""
