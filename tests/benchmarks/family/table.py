"""The table of the family, of all runs that are finished in a folder."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.experiments import output
from bert_jax.experiments.compare import compare
from bert_jax.experiments.grid import RESULTS
from bert_jax.experiments.nouns import MetricColumn
from bert_jax.experiments.pictures import of_columns
from bert_jax.reporting.measures import known_baselines
from tests.benchmarks.family import facts, processor
from tests.benchmarks.family.rows import BATCH, CONTROL, LENGTH, ROWS, SHAPE, STEPS

MAIN = {"sst2": "accuracy", "conll2003": "f1"}
TITLES = {"sst2": "SST-2, accuracy", "conll2003": "CoNLL-2003, F1"}
HEAD = (
    "system", "reads, to predict a token", "in parallel", "parameters", "MFLOPs a token", "tokens a processor second",
    "fills, generates", "as published", "held-out loss of its own terms", *TITLES.values(),
)  # fmt: skip
LINES = {
    "reads, to predict a token": "what the prediction of one token of the text is computed from, in pretraining",
    "in parallel": "whether the states of all positions of a row are computed at once, in training",
    "parameters": "of the encoder and the embeddings, in millions; of MASS also of the decoder",
    "MFLOPs a token": "matrix products of a train step, by Task.flops_per_row, per position of a row",
    "tokens a processor second": "positions of a row per second of one processor, all threads added, in pretraining",
    "as published": "whether the published system is fine-tuned or gives features; here all are fine-tuned alike",
    "held-out loss of its own terms": "nats; rows have terms of their own, so these are NOT comparable across rows",
    **dict.fromkeys(TITLES.values(), "the score of the last step on dev: mean ± deviation over the seeds"),
    "+, -": "shown to be above, or below, the row that was not pretrained (Welch's test and the bars); else no sign",
}


class Results(NamedTuple):
    """What the runs of a folder found.

    Attributes:
      metrics: name of a run -> its metrics.
      baselines: task -> name -> the score that is reached without learning.
      facts, seconds: name of a row -> its facts; the processor seconds of a step.
    """

    metrics: Mapping[str, Mapping[str, float]]
    baselines: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, Mapping[str, Any]]
    seconds: Mapping[str, float]

    def scores(self, task: str) -> dict[str, list[float]]:
        """Return the scores of each row on a task by its title, the control first."""
        runs = {name: self._runs(f"{name}-{task}") for name in sorted(ROWS, key=lambda name: name != CONTROL)}
        return {ROWS[name].title: [run[MAIN[task]] for run in found] for name, found in runs.items() if found}

    def losses(self, name: str) -> str:
        """Return the mean held-out loss of each term of a row."""
        runs, parts = self._runs(name), list[str]()
        for term in self.facts[name]["terms"]:
            if values := [run[f"{term}_loss"] for run in runs if f"{term}_loss" in run]:
                parts.append(f"{term} {statistics.fmean(values):.3f}")
        return ", ".join(parts)

    def _runs(self, name: str) -> list[Mapping[str, float]]:
        return [metrics for run, metrics in self.metrics.items() if run.rpartition("-seed")[0] == name]


def read(folder: Path) -> Results:
    """Return what the finished runs in ``folder`` found."""
    metrics, baselines, about, seconds = {}, dict[str, dict[str, float]](), {}, dict[str, list[float]]()
    for path in sorted(folder.glob(f"*-seed*/{RESULTS}")):
        place = path.parent
        metrics[place.name] = json.loads(path.read_text())["metrics"]
        name, _, task = place.name.rpartition("-seed")[0].partition("-")
        if task in MAIN and (there := place / "baselines.json").exists():
            baselines[task] = dict(known_baselines(MAIN[task], json.loads(there.read_text())))
        if not task and name in ROWS:
            about[name] = json.loads((place / facts.FILE).read_text())
            if (measured := place / processor.FILE).exists():
                seconds.setdefault(name, []).append(json.loads(measured.read_text()))
    return Results(metrics, baselines, about, {name: statistics.median(found) for name, found in seconds.items()})


def row(name: str, results: Results, scores: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of a row for ``HEAD``; the scores come last."""
    one, known = ROWS[name], results.facts.get(name)
    if known is None:
        return (one.title, *[""] * (len(HEAD) - 1 - len(scores)), *scores)
    able = [word for word, can in (("fills", known["fills"]), ("generates", known["writes"])) if can]
    seconds = results.seconds.get(name)
    return (
        one.title,
        one.reads or known["reads"],
        "no" if one.sequential else "yes",
        f"{known['parameters'] / 1e6:.2f} M",
        f"{known['flops'] / 1e6:.1f}",
        f"{BATCH * LENGTH / seconds:,.0f}" if seconds else "",
        ", ".join(able),
        one.used,
        results.losses(name),
        *scores,
    )


def write(folder: Path) -> str:
    """Write table.md, table.json, report.html and picture.svg; return the text for the terminal."""
    results = read(folder)
    every = {task: found for task in MAIN if (found := results.scores(task))}
    if not every:
        return "no row is fine-tuned yet"
    tables = {task: compare(found) for task, found in every.items()}
    cells = {(task, one.variant): _score(one) for task, found in tables.items() for one in found}
    names = [name for name in ROWS if any((task, ROWS[name].title) in cells for task in tables)]
    rows = [row(name, results, [cells.get((task, ROWS[name].title), "") for task in MAIN]) for name in names]
    lines = {
        "positions": f"{STEPS * BATCH * LENGTH:,} in pretraining, in rows of {LENGTH}",
        "layers": f"{SHAPE['num_layers']} of {SHAPE['hidden_size']}",
    }
    without = {task: ", ".join(f"{n} {v:.3f}" for n, v in found.items()) for task, found in results.baselines.items()}
    blocks: list[output.Block] = ["# The family at equal size and equal tokens", lines, (HEAD, rows), LINES]
    blocks.append({f"without learning, {TITLES[task]}": line for task, line in without.items() if line})
    columns = {}
    for task, found in every.items():
        about = f"{TITLES[task]} on dev, after fine-tuning; compared with {next(iter(found))}"
        columns[TITLES[task]] = MetricColumn(about, "higher is better", found, results.baselines.get(task, {}), True)
        beside = {task: compare({"BERT": found["BERT"], **found})} if "BERT" in found else {}
        blocks += [f"## {TITLES[task]}: differences from BERT", output.differences(beside)]
    figures = [one for one, _ in of_columns(columns, {TITLES[task]: found for task, found in tables.items()}, None)]
    record = {"metrics": results.metrics, "facts": results.facts, "processor_seconds": results.seconds}
    return output.write(str(folder), [*blocks, output.NOTE], record, figures, figures)


def _score(one: Any) -> str:
    sign = "" if not one.shown else " +" if one.difference > 0 else " -"
    return f"{one.mean:.3f}" + ("" if one.spread is None else f" ± {one.spread:.3f}") + sign
