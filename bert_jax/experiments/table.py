"""Compares the scores of variants, over seeds, with those of the first: which differences are beyond the noise.

The verdict on a difference is "beyond the noise" or "within the noise" (of the seeds). The tables of an ablation also
say what each column measures.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scipy import special

from bert_jax.experiments import pictures
from bert_jax.experiments.grid import Metrics
from bert_jax.experiments.output import Block, Page, write
from bert_jax.losses.cross_entropy import OfLabels
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.reporting.formats import figure
from bert_jax.reporting.measures import known_baselines, lower_is_better
from bert_jax.storage import files, reading

if TYPE_CHECKING:
    from bert_jax.experiments.ablation import Ablation

SPREAD = "Cells are the mean ± the standard deviation (n - 1) over the seeds; one seed has no deviation."
NOTE = (
    "A difference is the variant's mean minus that of the first; its standard error is that of two independent means"
    " (Welch). It is beyond the noise if it exceeds the error times Student's t for 95 % and so few seeds (4.3 for two"
    " alike, 2.8 for three, 2.3 for five); where nothing differs, about 1 in 20 or fewer do by chance. One seed cannot"
    " tell. Pictures call it shown if, besides, the bars of two standard errors around the two means do not overlap."
)
INSIDE = 0.95  # share of differences within the noise where nothing differs
OWN = "own_"  # prefix of the masked-LM metrics of a variant's own objective, on its own held-out rows
SAME_ROWS = ("mlm_loss", "mlm_accuracy")  # metrics that are computed on the first variant's held-out rows
UNITS = {"loss": "cross-entropy in nats per target", "accuracy": "share of its targets that are predicted"}


@dataclasses.dataclass(frozen=True)
class VariantSummary:
    """The scores of one variant in one metric.

    ``difference`` and what follows compare with the variant ``reference``: the first, unless another is asked for. They
    are None for a reference itself, and if the two measure different things. With one seed, ``spread`` and what follows
    ``difference`` are None.
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
        """Two standard errors of the mean over the seeds, the length of its error bar to either side."""
        return None if self.spread is None else 2 * self.spread / math.sqrt(self.seeds)

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the difference is beyond the noise; None if that cannot be told."""
        return None if self.difference is None or self.noise is None else abs(self.difference) > self.noise

    @property
    def doubt(self) -> str:
        """Why a difference is not shown; "" if it is, or if nothing is compared."""
        if self.difference is None:
            return ""
        if self.noise is None or self.bars is None:
            return "one seed"
        if abs(self.difference) <= self.bars:
            return "the bars overlap"
        return "" if self.beyond_noise else "within the noise"

    @property
    def shown(self) -> bool | None:
        """Whether a difference is beyond the noise and the error bars do not overlap; None if that cannot be told."""
        return None if self.beyond_noise is None else not self.doubt

    @property
    def verdict(self) -> str:
        verdicts = {None: "one seed: cannot tell", True: "beyond the noise", False: "within the noise"}
        return verdicts[self.beyond_noise] + (f", but {self.doubt}" if self.beyond_noise and self.doubt else "")


Tables = Mapping[str, Sequence[VariantSummary]]  # metric -> a summary for each variant that has it


def compare(
    scores: Mapping[str, Sequence[float]],
    measures: Mapping[str, Any] | None = None,
    references: Mapping[str, str] | None = None,
) -> list[VariantSummary]:
    """Return a summary per variant, which compares its scores with those of the first variant.

    The standard error treats the runs as independent. In fact all variants use the same seeds, and runs with the same
    seed start with similar batches, so the true error of a difference may be smaller. This is not corrected, because it
    is hard to estimate from few seeds.

    Args:
      scores: variant -> a non-empty list with one score per seed.
      measures: variant -> what its scores measure. A variant that measures something else than the first is not
        compared. If None, all measure the same.
      references: variant -> another than the first with which it is compared.
    """
    rows: dict[str, VariantSummary] = {}
    for variant, values in scores.items():
        mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
        rows[variant] = VariantSummary(variant, len(values), mean, spread)
    first, *others = rows.values()
    return [
        first,
        *(_beside(rows.get((references or {}).get(row.variant, ""), first), row, measures) for row in others),
    ]


def _beside(reference: VariantSummary, row: VariantSummary, measures: Mapping[str, Any] | None) -> VariantSummary:
    """Return ``row`` with its comparison with ``reference``."""
    if measures is not None and measures[row.variant] != measures[reference.variant]:
        return dataclasses.replace(row, reference=reference.variant)
    error, noise = _errors(reference, row)
    bars = None if reference.bar is None or row.bar is None else reference.bar + row.bar
    difference = row.mean - reference.mean
    return dataclasses.replace(
        row, difference=difference, standard_error=error, noise=noise, bars=bars, reference=reference.variant
    )


def _errors(a: VariantSummary, b: VariantSummary) -> tuple[float | None, float | None]:
    """Return the standard error and the noise of the difference of two means (Welch 1947)."""
    if a.spread is None or b.spread is None:
        return None, None
    x, y = a.spread**2 / a.seeds, b.spread**2 / b.seeds
    freedom = float(min(a.seeds, b.seeds) - 1)
    if x + y > 0:
        freedom = (x + y) ** 2 / (x**2 / (a.seeds - 1) + y**2 / (b.seeds - 1))
    error = math.sqrt(x + y)
    return error, error * float(special.stdtrit(freedom, (1 + INSIDE) / 2))


def _by_metric(results: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Return {metric: {variant: [scores]}} from {variant: [metrics of each seed]}.

    The entry of a metric leaves out the variants that do not have the metric.
    """
    names = dict.fromkeys(name for runs in results.values() for run in runs for name in run)
    scores: dict[str, dict[str, list[float]]] = {}
    for name in names:
        having = {variant: [run[name] for run in runs if name in run] for variant, runs in results.items()}
        scores[name] = {variant: values for variant, values in having.items() if values}
    return scores


def overview(tables: Tables, baselines: Mapping[str, str]) -> Page:
    """Return the table of everything: a row per variant and a column per metric, and a row of baselines if there are.

    ``baselines`` maps a metric to what is reached without learning, as text.
    """
    variants = dict.fromkeys(row.variant for rows in tables.values() for row in rows)
    summaries = {(metric, row.variant): row for metric, rows in tables.items() for row in rows}
    lines = []
    for variant in variants:
        rows = [summaries.get((metric, variant)) for metric in tables]
        lines.append((variant, str(max(row.seeds for row in rows if row)), *map(_mean, rows)))
    if baselines:
        lines.append(("without learning", "", *(baselines.get(metric, "") for metric in tables)))
    return ("variant", "seeds", *tables), lines


def _mean(row: VariantSummary | None) -> str:
    if row is None:
        return ""
    return f"{row.mean:.4f}" + ("" if row.spread is None else f" ± {row.spread:.4f}")


def differences(tables: Tables) -> Page:
    """Return the table of differences: a row for each metric and each variant that is compared with the first."""
    lines: list[tuple[str, ...]] = []
    for metric, rows in tables.items():
        for row in rows:
            if row.difference is not None:
                error = "" if row.standard_error is None else f"{row.standard_error:.4f}"
                lines.append((metric, f"{row.variant} - {row.reference}", f"{row.difference:+.4f}", error, row.verdict))
    return ("metric", "variants", "difference", "standard error", "verdict"), lines


def as_data(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """Return the tables as plain data that JSON can hold."""
    return {
        metric: [
            dataclasses.asdict(row) | {"beyond_noise": row.beyond_noise, "bar": row.bar, "shown": row.shown}
            for row in rows
        ]
        for metric, rows in tables.items()
    }


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
        plain = type(self.task).loss is PretrainingObjective.loss and unit in UNITS
        function = {"loss": term.loss, **term.measures}.get(unit) if term else None
        features = next(iter(self.task.batch_specs.values())).keys() - set(self.task.derived)
        if not plain or not isinstance(function, OfLabels) or not {function.labels, function.weights} <= features:
            return [self.rows, self.objective]
        own_masks = type(self.task).masking is not PretrainingObjective.masking
        return [self.rows, *dataclasses.astuple(function), self.task.name if own_masks else ""]


def write_tables(
    ablation: Ablation,
    runs: Mapping[str, Sequence[Metrics]],
    variants: Mapping[str, Variant],
    tasks: Mapping[str, str],
    over: pictures.Over | None = None,
) -> tuple[Tables, str]:
    """Write the tables and pictures of an ablation; return the tables, and the text to show on the terminal.

    Args:
      runs: variant -> the metrics of each seed.
      variants: those that were pretrained.
      tasks: the names of fine-tuning recipes, with which the names of their metrics begin -> the main metric of each.
      over: the place of each variant along x in the pictures.
    """
    seeds, steps = ablation.seeds, [task for task in tasks if "@" in task]
    scores = {  # of many steps, the main metric alone
        metric: of_variants
        for metric, of_variants in _by_metric(runs).items()
        if (task := _task_of(metric, tasks)) not in steps or metric == f"{task}/{tasks[task]}"
    }
    measures = _columns(scores, variants, tasks)
    references = over.references if over else None
    tables = {metric: compare(scores[metric], by, references) for metric, by in measures.items()}
    lines = {metric: _describe(metric, by, next(iter(variants)), tasks) for metric, by in measures.items()}
    every = {metric: _to_beat(ablation.workdir, seeds, metric, scores[metric], variants, tasks) for metric in measures}
    baselines = {
        metric: ", ".join(f"{name} {figure(value)}" for name, value in known.items())
        for metric, known in every.items()
        if known
    }
    compared = differences(tables)
    notes = SPREAD + (" The last line has what is reached without learning." if baselines else "")
    blocks: list[Block] = [
        f"# {', '.join(runs)}: {len(seeds)} seed{'s' * (len(seeds) > 1)}",
        overview(tables, baselines),
        notes,
        lines,
    ]
    if compared[1]:
        blocks += ["## Differences" + ("" if references else f" from {next(iter(runs))}"), compared, NOTE]
    record = {"variants": tuple(runs), "seeds": seeds, "command": ablation.command, "metrics": as_data(tables)}
    record["scores"] = {metric: scores[metric] for metric in measures}  # of each variant, in the order of the seeds
    record |= {"columns": lines, "without_learning": baselines}
    if over:
        record["over"] = {over.key: over.values}
    figures = pictures.of_metrics(tables, lines, every, over)
    main = {SAME_ROWS[0], *(f"{task.partition('@')[0]}/{metric}" for task, metric in tasks.items())}
    shown = [one for one in figures if one.title in main and len(one.rows) > 1]
    return tables, write(ablation.workdir, blocks, record, figures, shown or figures)


def _columns(
    scores: Mapping[str, Mapping[str, Sequence[float]]], variants: Mapping[str, Variant], tasks: Collection[str]
) -> dict[str, Mapping[str, Any] | None]:
    """Return the metrics of the table in their order: held-out ones, then the scores of fine-tuning.

    The ``own_`` metrics are left out if in all variants they measure what ``mlm_loss`` and ``mlm_accuracy`` do.

    Args:
      scores: metric -> variant -> scores.

    Returns:
      Metric -> {variant: what it measures}; None for scores of fine-tuning, which all measure the same.
    """
    chosen: dict[str, Mapping[str, Any] | None] = {}
    plain = [next(iter(variants.values())).rows, "mlm_logits", "masked_labels", "masked_weights", ""]
    for metric, having in sorted(scores.items(), key=lambda one: _task_of(one[0], tasks) != ""):
        by = None if _task_of(metric, tasks) else {name: variants[name].measures(metric) for name in having}
        if by is None or not metric.startswith(OWN) or any(one != plain for one in by.values()):
            chosen[metric] = by
    return chosen


def _describe(metric: str, by: Mapping[str, Any] | None, first: str, tasks: Collection[str]) -> str:
    """Return in one line what a column is. ``by``: variant -> what the metric measures in it."""
    task = _task_of(metric, tasks)
    name, _, source = metric.removeprefix(f"{task}/").partition("/")
    better = f"{'lower' if lower_is_better(name) else 'higher'} is better"
    if task:
        return f"{metric.removeprefix(f'{task}/')} of {task}'s best evaluation after fine-tuning with it; {better}"
    term, _, unit = name.removeprefix(OWN).rpartition("_")
    if metric in SAME_ROWS:
        what = UNITS[unit].replace("its targets", "masked tokens").replace("target", "masked token")
        return f"{what}, unweighted, of every variant on the same held-out rows, those of {first}; {better}"
    what = f"{name}, a metric of the variant's own objective"
    if term and unit in UNITS:
        what = f"term {term!r} of the variant's own objective, as it weights it: {UNITS[unit]}"
    line = f"{what}, on held-out rows{f' of {source}' if source else ''} of its own; {better}"
    reference, *others = by or {first: None}
    if by and (differing := [variant for variant in others if by[variant] != by[reference]]):
        line += f"; {', '.join(differing)} and {reference} measure different things by it, and are not compared"
    return line


def _to_beat(
    workdir: str,
    seeds: Sequence[int],
    metric: str,
    having: Collection[str],
    variants: Mapping[str, Variant],
    tasks: Collection[str],
) -> dict[str, float]:
    """Return what ``metric`` is without learning, by name: the mean over the runs of the first variant that has it.

    ``mlm_loss`` is computed on the rows of the first variant with its own seed, so only that run's baselines count.
    """
    variant, first, task = next(iter(having)), next(iter(variants)), _task_of(metric, tasks)
    if metric.startswith(OWN) or (metric in SAME_ROWS and variant != first):
        return {}
    if metric in SAME_ROWS and variants[first].rows["seed"] in seeds:
        seeds = [variants[first].rows["seed"]]
    known: dict[str, list[float]] = {}
    for seed in seeds:
        folder = files.as_path(workdir) / f"{f'{task}-' if task else ''}{variant}-seed{seed}"
        baselines = reading.read_object(folder / "baselines.json") or {}
        for name, value in known_baselines(metric.removeprefix(f"{task}/"), baselines):
            known.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in known.items()}


def _task_of(metric: str, tasks: Collection[str]) -> str:
    name, slash, _ = metric.partition("/")
    return name if slash and name in tasks else ""
