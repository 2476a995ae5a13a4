"""Writes the tables of an ablation: every score, what each column measures, and the differences between variants."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bert_jax.experiments import table
from bert_jax.experiments.grid import Metrics
from bert_jax.objectives.base import MLM, PretrainingObjective
from bert_jax.reporting import page
from bert_jax.reporting.formats import figure
from bert_jax.reporting.measures import known_baselines, lower_is_better
from bert_jax.storage import files, reading

OWN = "own_"  # prefix of the masked-LM metrics of a variant's own objective, on its own held-out rows
SAME_ROWS = ("mlm_loss", "mlm_accuracy")  # metrics that are computed on the first variant's held-out rows
UNITS = {"loss": "cross-entropy in nats per target", "accuracy": "share of its targets that are predicted"}


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
        if term is None or not plain or {term.labels, term.weights} & set(self.task.derived):
            return [self.rows, self.objective]
        own_masks = type(self.task).masking is not PretrainingObjective.masking
        return [self.rows, term.logits, term.labels, term.weights, self.task.name if own_masks else ""]


def write_tables(
    workdir: str,
    command: str,
    seeds: Sequence[int],
    runs: Mapping[str, Sequence[Metrics]],
    variants: Mapping[str, Variant],
    tasks: Collection[str],
) -> tuple[table.Tables, str]:
    """Write the tables as Markdown, JSON and HTML; return them, and the text to show on the terminal.

    Args:
      runs: variant -> the metrics of each seed.
      variants: those that were pretrained.
      tasks: the names of fine-tuning recipes, with which the names of their metrics begin.
    """
    folder, title = files.as_path(workdir), f"{', '.join(runs)}: {len(seeds)} seeds"
    scores = table.by_metric(runs)
    measures = columns(scores, variants, tasks)
    tables = {metric: table.compare(scores[metric], by) for metric, by in measures.items()}
    lines = {metric: describe(metric, by, next(iter(variants)), tasks) for metric, by in measures.items()}
    every = {metric: _to_beat(workdir, seeds, metric, scores[metric], variants, tasks) for metric in measures}
    baselines = {metric: text for metric, text in every.items() if text}
    overview, differences = table.overview(tables, baselines), table.differences(tables)
    notes = table.SPREAD + (" The last line has what is reached without learning." if baselines else "")
    text = [
        f"# {title}",
        table.markdown(overview),
        notes,
        "\n".join(f"- {name}: {line}" for name, line in lines.items()),
    ]
    html = [f"<h1>{page.escape(title)}</h1>", page.table(*overview), f"<p>{notes}</p>"]
    html.append(page.table(("column", "what it is"), list(lines.items()), numbers_from=2))
    if differences[1]:
        heading = f"Differences from {next(iter(runs))}"
        text += [f"## {heading}", table.markdown(differences), table.NOTE]
        html.append(page.section(heading, page.table(*differences) + f"\n<p>{table.NOTE}</p>"))
    record = {"variants": tuple(runs), "seeds": seeds, "command": command, "metrics": table.as_data(tables)}
    record["scores"] = {metric: scores[metric] for metric in measures}  # of each variant, in the order of the seeds
    record |= {"columns": lines, "without_learning": baselines}
    markdown = "\n\n".join(text) + "\n"
    files.write_text(folder / "table.md", markdown)
    files.write_text(folder / "table.json", json.dumps(record, indent=2) + "\n")
    files.write_text(folder / "report.html", page.page(title, "\n".join(html)))
    return tables, f"{markdown}\ntables: {folder / 'table.md'}, {folder / 'table.json'}, {folder / 'report.html'}"


def columns(
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
    plain = [next(iter(variants.values())).rows, MLM.logits, MLM.labels, MLM.weights, ""]
    for metric, having in sorted(scores.items(), key=lambda one: _task_of(one[0], tasks) != ""):
        by = None if _task_of(metric, tasks) else {name: variants[name].measures(metric) for name in having}
        if by is None or not metric.startswith(OWN) or any(one != plain for one in by.values()):
            chosen[metric] = by
    return chosen


def describe(metric: str, by: Mapping[str, Any] | None, first: str, tasks: Collection[str]) -> str:
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
) -> str:
    """Return, as text, what ``metric`` is without learning: the mean over the runs of the first variant that has it.

    ``mlm_loss`` is computed on the rows of the first variant with its own seed, so only that run's baselines count.
    """
    variant, first, task = next(iter(having)), next(iter(variants)), _task_of(metric, tasks)
    if metric.startswith(OWN) or (metric in SAME_ROWS and variant != first):
        return ""
    if metric in SAME_ROWS and variants[first].rows["seed"] in seeds:
        seeds = [variants[first].rows["seed"]]
    known: dict[str, list[float]] = {}
    for seed in seeds:
        folder = files.as_path(workdir) / f"{f'{task}-' if task else ''}{variant}-seed{seed}"
        baselines = reading.read_object(folder / "baselines.json") or {}
        for name, value in known_baselines(metric.removeprefix(f"{task}/"), baselines):
            known.setdefault(name, []).append(value)
    return ", ".join(f"{name} {figure(statistics.fmean(values))}" for name, values in known.items())


def _task_of(metric: str, tasks: Collection[str]) -> str:
    name, slash, _ = metric.partition("/")
    return name if slash and name in tasks else ""
