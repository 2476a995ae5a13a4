"""What attacks on commands start from."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.configuration import build
from bert_jax.models.encoders import bert
from bert_jax.objectives import mlm_nsp
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from tests import toy
from tests.tasks import toy_tasks
from tests.trust.fuzzing import Inputs

PHASE = {"num_steps": 8, "batch_size": 8, "max_length": 32}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inputs]:
    """What is mutated holds paths relative to an empty current folder, so that it is the same on every machine."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "empty").mkdir()
    with contextlib.chdir(folder / "empty"):
        config = toy.recipe(toy.write_text(Path("../text.txt")), phases={"phase1": PHASE})
        recipe = toy.write_recipe(folder / "recipe.json", config)
        assert run(["pretrain", f"--config={recipe}", f"--workdir={folder / 'run'}"]) == 0
        config["vocab"]["path"] = "../run/vocab.txt"
        corpus, config["corpus"] = config["corpus"], {"path": "../run/corpus"}
        toy_tasks.write_toy(folder, "classification", train=32, dev=16)
        finetune = toy_tasks.recipe("classification")
        finetune["vocab"]["path"] = config["vocab"]["path"]
        yield Inputs(folder, whole(config), corpus, finetune)


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with every key that a component has, also those whose default stands."""
    tree = dataclasses.asdict(build(PretrainingSettings, config, "config"))
    no_keys = {"vocab_size", "attention"}  # the text and the objective say them
    model = {f.name: f.default for f in dataclasses.fields(bert.Config) if f.name not in no_keys}
    objective = dataclasses.asdict(mlm_nsp.Config())
    return {**tree, "model": model | config["model"], "objective": objective | config["objective"]}
