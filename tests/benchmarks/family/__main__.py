"""Pretrains and fine-tunes the systems of the family at equal size and equal tokens, and writes one table of them.

    python -m tests.benchmarks.family --output=FOLDER [--data=../shared/data] [--only=bert,gpt] [--seeds=0,1,2] \\
        [--page=tests/benchmarks/family.md]

The same command goes on after a stop: a run that is finished is never computed again. ``--only`` runs some rows; the
table has all rows that are finished in FOLDER: table.md, table.json, report.html and picture.svg. ``--page`` is a page
that gets the table, and beside it the picture.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import bert_jax
from bert_jax.configuration import complete
from bert_jax.errors import UserError
from bert_jax.experiments.grid import Grid
from bert_jax.experiments.nouns import Cell, Metrics
from bert_jax.recipes import recipes
from tests.benchmarks.family import facts, processor
from tests.benchmarks.family.inputs import Text
from tests.benchmarks.family.rows import CONTROL, ROWS
from tests.benchmarks.family.table import write

FLAGS = (
    "--config.packing=packed",
    "--config.phases.train.max_length=64",
    "--config.phases.train.num_epochs=3.0",
    "--config.schedule.peak_learning_rate=1e-3",
    "--config.selection.metric=",
    "--config.training.loggers=()",
    "--config.export=False",
)
TASKS = {  # name -> (recipe, its flags, the folder of its examples)
    "sst2": ("glue:sst2", ("--config.data.train_fraction=0.05",), "glue"),
    "conll2003": ("conll2003", ("--config.data.train_fraction=0.2",), "conll2003_ner"),
}


def tuning(task: str, seed: int) -> dict[str, Any]:
    """Return the recipe that fine-tunes a model on ``task``."""
    recipe, flags, _ = TASKS[task]
    config = recipes.load(recipes.in_folder(recipe, "finetune"), [*FLAGS, *flags]).to_dict()
    return {**config, "seed": seed}


def cells_of(names: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Return the runs: all rows with the first seed, then with the next. A fine-tuning follows its pretraining."""
    cells = []
    for seed in seeds:
        for name in names:
            origin = {"row": name, "seed": seed, "recipe": ROWS[name].config}
            if name != CONTROL:
                cells.append(Cell(f"{name}-seed{seed}", origin, work="pretraining"))
            for task in TASKS:
                overrides = {"task": task, "config": tuning(task, seed), "origin": origin}
                cells.append(Cell(f"{name}-{task}-seed{seed}", overrides, work=f"fine-tuning on {task}"))
    return cells


class Runner:
    """Runs a cell of the grid in its folder."""

    def __init__(self, output: Path, data: Path):
        self._output, self._data = output, data
        self._text = Text(output / "text", data, ROWS[CONTROL].config)

    def __call__(self, cell: Cell, workdir: str) -> Metrics:
        jax.clear_caches()
        origin = cell.overrides.get("origin", cell.overrides)
        name, seed = origin["row"], origin["seed"]
        config = self._text.config(name, origin["recipe"])
        if "task" in cell.overrides:
            init = "" if name == CONTROL else str(self._output / f"{name}-seed{seed}")
            return self._tune(cell, workdir, config, init)
        known = facts.facts(config)
        logged = {"seed": seed, "training": {"loggers": (processor.__file__,)}}
        metrics = bert_jax.pretrain(complete(logged, config), workdir)
        (Path(workdir) / facts.FILE).write_text(json.dumps(known, indent=2), encoding="utf-8")
        return metrics

    def _tune(self, cell: Cell, workdir: str, config: Mapping[str, Any], init: str) -> Metrics:
        own = cell.overrides["config"]
        if not init:
            own = {**own, "model": config["model"], "vocab": config["vocab"]}
        data = str(self._data / TASKS[cell.overrides["task"]][2])
        return bert_jax.finetune(own, workdir, init=init or None, data=data)


def run(
    output: Path,
    cells: Sequence[Cell],
    train: Callable[[Cell, str], Mapping[str, float]],
    page: Path | None = None,
) -> None:
    """Run the cells that are not finished. The table of the finished ones is written before each run and at the end."""

    def then(cell: Cell, workdir: str) -> Mapping[str, float]:
        write(output)
        return train(cell, workdir)

    Grid(cells, str(output)).run(then)
    print(write(output, page), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--data", default="../shared/data", type=Path)
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--page", type=Path)
    given = parser.parse_args(argv)
    names, output, data = given.only.split(","), given.output.absolute(), given.data.absolute()
    try:
        if unknown := [name for name in names if name not in ROWS]:
            raise UserError(f"--only has {', '.join(unknown)}; there are {', '.join(ROWS)}")
        run(output, cells_of(names, [int(seed) for seed in given.seeds.split(",")]), Runner(output, data), given.page)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
