"""What no refactoring may move: rows, parameter trees and losses of the objectives on pairs.

``make floor`` writes ``tests/fixtures/floor.json`` anew: only where a change is meant to move them.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.runs.inputs import Inputs
from bert_jax.runs.model_choice import choose_model
from bert_jax.runs.pretraining import PretrainingSettings, checked, open_inputs
from tests import toy
from tests.training import gang

FILE = Path(__file__).parent / "fixtures" / "floor.json"
OBJECTIVES = ("mlm_nsp", "mlm", "ltr")
PACKINGS = ("none", "packed", "bucketed")
CURVES = (("mlm_nsp", "packed"), ("mlm", "bucketed"), ("ltr", "none"))
STEPS, ROWS = 20, 64


def recipe(text: Path, objective: str, packing: str, length: int) -> dict[str, Any]:
    return toy.recipe(
        text,
        objective={"name": objective, "packing": packing, "short_row_probability": 0.2},
        model={"attention": "causal" if objective == "ltr" else "bidirectional", "max_length": length},
        phases={"phase1": {"num_steps": STEPS, "batch_size": 8, "max_length": length}},
        training={"log_every_steps": 1, "eval_every_steps": 10, "micro_batches": 2, "loggers": ()},
        export=False,
        examples=(),
    )


def rows_of(task: Any, split: str) -> str:
    """Return the sha256 of names, types, shapes and values of rows of two epochs, of every bucket."""
    digest, source = hashlib.sha256(), task.source(split, "phase1", 0)
    begin = 0
    for count in [bucket.rows_per_epoch for bucket in source.buckets] or [source.rows_per_epoch]:
        indices = begin + np.arange(ROWS) % count
        for name, values in sorted(source.rows(np.arange(ROWS) // (ROWS // 2), indices).items()):
            digest.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
        begin += count
    return digest.hexdigest()


def rows_and_trees(folder: Path) -> dict[str, str]:
    """Return the sha256 of the rows of each objective and packing, and of paths and shapes of each parameter tree."""
    text, found = toy.write_text(folder / "text.txt", documents=120), {}
    for objective in OBJECTIVES:
        for packing in PACKINGS:
            settings = configuration.build(PretrainingSettings, recipe(text, objective, packing, 64), "config")
            tokenizer, corpus = open_inputs(
                Inputs(str(folder), settings.vocab, settings.corpus, None, False), lambda line: None
            )
            model = choose_model(settings.model, tokenizer.size, None)
            task = checked(settings, settings.experiment())(corpus, tokenizer, model, settings.seed)
            for split in ("train", "eval"):
                found[f"rows {objective} {packing} {split}"] = rows_of(task, split)
        params = jax.eval_shape(task.init, jax.random.key(0)).params
        leaves = [f"{jax.tree_util.keystr(path)} {leaf.shape}" for path, leaf in jax.tree.leaves_with_path(params)]
        found[f"tree {objective}"] = hashlib.sha256("\n".join(leaves).encode()).hexdigest()
    return found


def curve(folder: Path, objective: str, packing: str) -> list[float]:
    """Return the losses of every step and every evaluation of a run."""
    folder = folder / objective
    folder.mkdir()
    path = toy.write_recipe(folder / "recipe.json", recipe(toy.write_text(folder / "text.txt"), objective, packing, 32))
    assert run(["pretrain", f"--config={path}", f"--workdir={folder / 'run'}"]) == 0
    lines = [
        sorted((name, value) for name, value in record.items() if "loss" in name)
        for record in gang.records(folder / "run")
    ]
    return [value for line in lines for _, value in line]


def found(folder: Path) -> dict[str, Any]:
    curves = {f"curve {objective} {packing}": curve(folder, objective, packing) for objective, packing in CURVES}
    return rows_and_trees(folder) | curves


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, toy.one_device():
        FILE.write_text(json.dumps(found(Path(temporary)), indent=1) + "\n")
