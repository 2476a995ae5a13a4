"""The table of an ablation: its columns, the meaning of each column in each variant, and its figures."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.experiments import output
from bert_jax.experiments.compare import compare
from bert_jax.experiments.heldout_rows import HeldoutRows
from bert_jax.experiments.nouns import OWN, SAME_ROWS, MetricColumn, Metrics, Tables
from bert_jax.experiments.pictures import Over, of_columns
from bert_jax.losses.cross_entropy import OfLabels
from bert_jax.metric_names import lower_is_better
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.reporting.formats import figure
from bert_jax.reporting.measures import known_baselines
from bert_jax.storage import files, reading

_UNITS = {"loss": "cross-entropy in nats per target", "accuracy": "share of its targets that are predicted"}


@dataclasses.dataclass(frozen=True)
class Variant:
    """The facts of a pretrained variant on which its held-out metrics depend.

    Attributes:
      keys: plain data, ``config.objective`` and the keys that phases replace in it.
    """

    objective: PretrainingObjective
    rows: HeldoutRows
    keys: Any

    def measures(self, metric: str) -> Any:
        """Return plain data that is equal for two variants if ``metric`` measures the same thing in both.

        The metric of a term whose labels and weights are features of the rows depends on the rows alone. Every other
        metric depends on the whole objective.
        """
        if metric in SAME_ROWS:
            return "rows of the first variant"
        name, _, unit = metric.removeprefix(OWN).partition("/")[0].rpartition("_")
        own, kind, whole = self.objective, type(self.objective), [self.rows.deciding, self.keys]
        term = own.terms(own.config).get(name) if unit in _UNITS else None
        function = {"loss": term.loss, **term.measures}.get(unit) if term else None
        if not isinstance(function, OfLabels) or kind.loss is not PretrainingObjective.loss:
            return whole
        features = next(iter(own.batch_specs.values())).keys() - set(own.derived)
        if not {function.labels, function.weights} <= features:
            return whole
        own_masks = kind.masking is not PretrainingObjective.masking
        return [self.rows.deciding, *dataclasses.astuple(function), own.name if own_masks else ""]


def cell_name(variant: str, seed: int, task: str = "") -> str:
    """Return the name of the run that pretrains a variant, or fine-tunes it on ``task``."""
    return f"{f'{task}-' if task else ''}{variant}-seed{seed}"


@dataclasses.dataclass(frozen=True)
class Results:
    """The scores that the runs of an ablation reached.

    Attributes:
      names: the variants, also those that are fine-tuned but not pretrained.
      metrics: the name of a run -> its metrics.
      pretrained: the pretrained variants; all other variants are compared with the first.
      tasks: the name of a fine-tuning, with which the names of its metrics begin -> its main metric.
    """

    workdir: str
    names: Sequence[str]
    seeds: Sequence[int]
    metrics: Mapping[str, Metrics]
    pretrained: Mapping[str, Variant]
    tasks: Mapping[str, str]

    def columns(self) -> dict[str, MetricColumn]:
        """Return the metrics of the table in their order: held-out metrics, then the scores of fine-tuning.

        The ``own_`` metrics are left out if they measure the same as ``mlm_loss`` and ``mlm_accuracy`` in all
        variants. The fine-tuning of a saved step has only its main metric, since there may be many steps.
        """
        found, (first, *_) = dict[str, MetricColumn](), self.pretrained.values()
        plain = [first.rows.deciding, "mlm_logits", "masked_labels", "masked_weights", ""]
        for metric, scores in self.scores().items():
            measures = {name: self.pretrained[name].measures(metric) for name in scores}
            if not metric.startswith(OWN) or any(one != plain for one in measures.values()):
                found[metric] = self._of_pretraining(metric, scores, measures)
        for task, main in self.tasks.items():
            step = task.partition("@")[2]
            for metric, scores in self.scores(task).items():
                if not step or metric == main:
                    about = f"{metric} of {task}'s best evaluation after fine-tuning with it"
                    baselines = self._baselines(metric, next(iter(scores)), self.seeds, task)
                    one = MetricColumn(about, _better(metric), scores, baselines, metric == main, step)
                    found[f"{task}/{metric}"] = one
        return found

    def scores(self, task: str = "") -> dict[str, dict[str, list[float]]]:
        """Return {metric: {variant: [scores]}}, which leaves out variants that do not have the metric."""
        found: dict[str, dict[str, list[float]]] = {}
        for name in self.names:
            for seed in self.seeds:
                for metric, value in self.metrics.get(cell_name(name, seed, task), {}).items():
                    found.setdefault(metric, {}).setdefault(name, []).append(value)
        return found

    def _of_pretraining(
        self, metric: str, scores: Mapping[str, Sequence[float]], measures: Mapping[str, Any]
    ) -> MetricColumn:
        """Return the column of a metric that is computed on held-out rows."""
        first, (reference, *others) = next(iter(self.pretrained)), scores
        name, _, source = metric.partition("/")
        term, _, unit = name.removeprefix(OWN).rpartition("_")
        if metric in SAME_ROWS:
            what = _UNITS[unit].replace("its targets", "masked tokens").replace("target", "masked token")
            about = f"{what}, unweighted, of every variant on the same held-out rows, those of {first}"
            # The rows belong to the first variant with the recipe's seed, so only the baselines of that run count.
            own = self.pretrained[first].rows.experiment.seed
            seeds = [own] if own in self.seeds else self.seeds
            baselines = self._baselines(metric, first, seeds) if reference == first else {}
            return MetricColumn(about, _better(name), scores, baselines, metric == SAME_ROWS[0], measures=measures)
        what = f"{name}, a metric of the variant's own objective"
        if term and unit in _UNITS:
            what = f"term {term!r} of the variant's own objective, as it weights it: {_UNITS[unit]}"
        about = f"{what}, on held-out rows{f' of {source}' if source else ''} of its own"
        if differing := ", ".join(variant for variant in others if measures[variant] != measures[reference]):
            differing += f" and {reference} measure different things by it, and are not compared"
        baselines = {} if metric.startswith(OWN) else self._baselines(metric, reference, self.seeds)
        return MetricColumn(about, _better(name), scores, baselines, measures=measures, not_compared=differing)

    def _baselines(self, metric: str, variant: str, seeds: Sequence[int], task: str = "") -> dict[str, float]:
        """Return name -> score without learning for a metric: the means over the runs of a variant."""
        known: dict[str, list[float]] = {}
        for seed in seeds:
            path = files.as_path(self.workdir) / cell_name(variant, seed, task) / "baselines.json"
            for name, value in known_baselines(metric, reading.read_object(path) or {}):
                known.setdefault(name, []).append(value)
        return {name: statistics.fmean(values) for name, values in known.items()}


def _better(metric: str) -> str:
    return f"{'lower' if lower_is_better(metric.partition('/')[0]) else 'higher'} is better"


def write_tables(results: Results, command: str, over: Over | None = None) -> tuple[Tables, str]:
    """Write the tables and pictures; return the tables, and the text to show on the terminal.

    ``over``: the place of each variant along x in the pictures.
    """
    columns, seeds, references = results.columns(), results.seeds, over.references if over else None
    tables = {metric: compare(column.scores, column.measures, references) for metric, column in columns.items()}
    lines = {metric: column.line for metric, column in columns.items()}
    to_beat = {
        metric: ", ".join(f"{name} {figure(value)}" for name, value in column.baselines.items())
        for metric, column in columns.items()
        if column.baselines
    }
    blocks: list[output.Block] = [
        f"# {', '.join(results.names)}: {len(seeds)} seed{'s' * (len(seeds) > 1)}",
        output.overview(tables, to_beat),
        output.SPREAD + (" The last line has what is reached without learning." if to_beat else ""),
        lines,
    ]
    if (compared := output.differences(tables))[1]:
        heading = "## Differences" + ("" if references else f" from {results.names[0]}")
        blocks += [heading, compared, output.NOTE]
    record = {
        "variants": results.names,
        "seeds": seeds,
        "command": command,
        "metrics": output.as_data(tables),
        "scores": {metric: column.scores for metric, column in columns.items()},  # in the order of the seeds
        "columns": lines,
        "without_learning": to_beat,
        **({"over": {over.key: over.values}} if over else {}),
    }
    figures = of_columns(columns, tables, over)
    main = [one for one, is_main in figures if is_main and len(one.marks) > 1]
    every = [one for one, _ in figures]
    return tables, output.write(results.workdir, blocks, record, every, main or every)
