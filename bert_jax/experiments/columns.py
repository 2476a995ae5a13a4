"""The columns of an ablation's table: which metrics they are, what each measures, and in which variants it is alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bert_jax.experiments.nouns import OWN, SAME_ROWS, Column, Metrics
from bert_jax.losses.cross_entropy import OfLabels
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.reporting.measures import lower_is_better

_UNITS = {"loss": "cross-entropy in nats per target", "accuracy": "share of its targets that are predicted"}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A pretrained variant, as far as its held-out metrics depend on it.

    Attributes:
      rows: plain data that decides its held-out rows.
      objective: ``config.objective`` and what phases replace in it.
    """

    task: PretrainingObjective
    rows: Any
    objective: Any

    def measures(self, metric: str) -> Any:
        """Return plain data that is equal for two variants if ``metric`` measures the same in both.

        The metric of a term whose labels and weights are features of the rows depends on the rows alone. Every other
        metric depends on the whole objective.
        """
        if metric in SAME_ROWS:
            return "rows of the first variant"
        name, _, unit = metric.removeprefix(OWN).partition("/")[0].rpartition("_")
        term = self.task.terms(self.task.config).get(name)
        plain = type(self.task).loss is PretrainingObjective.loss and unit in _UNITS
        function = {"loss": term.loss, **term.measures}.get(unit) if term else None
        features = next(iter(self.task.batch_specs.values())).keys() - set(self.task.derived)
        if not plain or not isinstance(function, OfLabels) or not {function.labels, function.weights} <= features:
            return [self.rows, self.objective]
        own_masks = type(self.task).masking is not PretrainingObjective.masking
        return [self.rows, *dataclasses.astuple(function), self.task.name if own_masks else ""]


def by_metric(runs: Mapping[str, Sequence[Metrics]]) -> dict[str, dict[str, list[float]]]:
    """Return {metric: {variant: [scores]}} from {variant: [metrics of each seed]}.

    The entry of a metric leaves out the variants that do not have the metric.
    """
    names = dict.fromkeys(name for of_seeds in runs.values() for metrics in of_seeds for name in metrics)
    scores: dict[str, dict[str, list[float]]] = {}
    for name in names:
        having = {variant: [one[name] for one in of_seeds if name in one] for variant, of_seeds in runs.items()}
        scores[name] = {variant: values for variant, values in having.items() if values}
    return scores


def columns_of(
    scores: Mapping[str, Collection[str]], variants: Mapping[str, Variant], tasks: Mapping[str, str]
) -> dict[str, Column]:
    """Return the metrics of the table in their order: held-out ones, then the scores of fine-tuning.

    The ``own_`` metrics are left out if in all variants they measure what ``mlm_loss`` and ``mlm_accuracy`` do. Of a
    fine-tuning of a saved step there is the main metric alone, since there may be many steps.

    Args:
      scores: metric -> the variants that have it.
      variants: the variants that were pretrained; the first is the one with which others are compared.
      tasks: the names of fine-tunings, with which the names of their metrics begin -> the main metric of each.
    """
    first = next(iter(variants))
    plain = [variants[first].rows, "mlm_logits", "masked_labels", "masked_weights", ""]
    found, tuned = dict[str, Column](), dict[str, Column]()
    for metric, having in scores.items():
        if task := task_of(metric, tasks):
            if "@" not in task or metric == f"{task}/{tasks[task]}":
                tuned[metric] = _of_task(metric, task)
            continue
        measures = {name: variants[name].measures(metric) for name in having}
        if not metric.startswith(OWN) or any(one != plain for one in measures.values()):
            found[metric] = _of_pretraining(metric, measures, first)
    return found | tuned


def task_of(metric: str, tasks: Collection[str]) -> str:
    """Return the fine-tuning whose metric it is; "" for a metric of pretraining."""
    name, slash, _ = metric.partition("/")
    return name if slash and name in tasks else ""


def _of_task(metric: str, task: str) -> Column:
    name = metric.removeprefix(f"{task}/")
    return Column(f"{name} of {task}'s best evaluation after fine-tuning with it", _better(name))


def _of_pretraining(metric: str, measures: Mapping[str, Any], first: str) -> Column:
    """Return the column of a metric that is computed on held-out rows."""
    name, _, source = metric.partition("/")
    term, _, unit = name.removeprefix(OWN).rpartition("_")
    if metric in SAME_ROWS:
        what = _UNITS[unit].replace("its targets", "masked tokens").replace("target", "masked token")
        about = f"{what}, unweighted, of every variant on the same held-out rows, those of {first}"
        return Column(about, _better(name), measures)
    what = f"{name}, a metric of the variant's own objective"
    if term and unit in _UNITS:
        what = f"term {term!r} of the variant's own objective, as it weights it: {_UNITS[unit]}"
    about = f"{what}, on held-out rows{f' of {source}' if source else ''} of its own"
    reference, *others = measures
    differing = ", ".join(variant for variant in others if measures[variant] != measures[reference])
    apart = f"{differing} and {reference} measure different things by it, and are not compared" if differing else ""
    return Column(about, _better(name), measures, apart)


def _better(name: str) -> str:
    return f"{'lower' if lower_is_better(name.partition('/')[0]) else 'higher'} is better"
