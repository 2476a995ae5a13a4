"""A run in the manner of ModernBERT: a batch that grows, schedules, masks and shares by phase; cut in every phase."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.cli.main import run
from bert_jax.rows.batch_warmup import batch_warmup
from tests import toy

pytestmark = [pytest.mark.usefixtures("one_device"), pytest.mark.heavy]
DECAY = {"name": "warmup_stable_decay", "peak_learning_rate": 4e-4, "warmup_steps": 0, "decay_fraction": 1.0}


def recipe(folder: Path) -> dict[str, Any]:
    """Steps 0 to 5 rise in tokens to 1e-3 and stay, 6 to 9 stay at 5e-4, 10 to 13 fall by 1 - sqrt."""
    texts = {name: toy.write_text(folder / f"{name}.txt", seed=seed) for name, seed in (("en", 0), ("fr", 5))}
    corpus = toy.recipe(texts["en"])["corpus"]
    parts = {
        name: {"options": {**corpus["options"], "paths": (str(path),)}, "weight": 1} for name, path in texts.items()
    }
    row = {"num_steps": 4, "batch_size": 8, "max_length": 32}
    extension = {"name": "linear", "peak_learning_rate": 5e-4, "warmup_steps": 1}
    return toy.recipe(
        texts["en"],
        corpus={"parts": parts, "options": {}},
        objective={"name": "mlm", "masking": {"rate": 0.3}},
        optimizer={"name": "stable_adamw"},
        schedule={"name": "warmup_stable_decay", "peak_learning_rate": 1e-3, "warmup_tokens": 3 * 4 * 32 + 1},
        phases={
            **batch_warmup((4, 8), 3 * 12 * 32, 32),
            "phase2": {**row, "schedule": extension},
            "phase3": {
                **row,
                "schedule": {**DECAY, "decay": "one_minus_sqrt", "final_fraction": 0.001},
                "masking": {"rate": 0.2},
                "shares": {"en": 0, "fr": 1},
            },
        },
        training={"log_every_steps": 1, "eval_every_steps": 7, "eval_masking": {"rate": 0.15}, "loggers": ()},
        checkpoints={"every_steps": 1, "keep": 20},
        examples=(),
        export=False,
    )


def without_default_phase(config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` without the phase of the toy recipe."""
    return (
        config
        | {"phases": {name: keys for name, keys in config["phases"].items() if name != "phase1"}}
        | {"schedule": {key: value for key, value in config["schedule"].items() if key != "warmup_steps"}}
    )


def pretrain(workdir: Path, config: dict[str, Any], *flags: str) -> int:
    path = toy.write_recipe(workdir.parent / "recipe.json", config)
    return run(["pretrain", f"--config={path}", f"--workdir={workdir}", *flags])


def records(workdir: Path, split: str) -> dict[int, dict[str, Any]]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line for line in lines if line["split"] == split}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run that was never cut."""
    folder = tmp_path_factory.mktemp("phases")
    with toy.one_device():
        assert pretrain(folder / "run", without_default_phase(recipe(folder))) == 0
    return folder / "run"


def test_the_rate_of_each_step(whole: Path) -> None:
    rates = [record["learning_rate"] for record in records(whole, "train").values()]
    shares = np.array([0, 1 / 4, 2 / 4, 3 / 4, 1, 1, *(0.5 * np.array([0, 1, 2 / 3, 1 / 3]))])
    decay = 0.4 * (0.001 + 0.999 * (1 - np.sqrt(np.arange(4) / 4)))
    np.testing.assert_allclose(rates, 1e-3 * np.concatenate([shares, decay]), rtol=1e-5)


def test_it_is_cut_in_every_phase(whole: Path, tmp_path: Path) -> None:
    """Bit for bit; the next line after a resume, with the rate of its step, is as in the run that was not cut."""
    for step in (2, 5, 8, 12):
        cut = tmp_path / str(step)
        shutil.copytree(whole, cut)
        for later in (one for one in saved_steps(str(cut)) if one > step):
            shutil.rmtree(cut / "checkpoints" / str(later))
        assert saved_steps(str(cut))[-1] == step
        config = json.loads((whole.parent / "recipe.json").read_text())
        assert pretrain(cut, config) == 0
        jax.tree.map(np.testing.assert_array_equal, read_params(str(cut))[0], read_params(str(whole))[0])
        for split in ("train", "eval"):
            found, wanted = records(cut, split), records(whole, split)
            assert found.keys() == wanted.keys()
            for at, record in wanted.items():
                same = {name: value for name, value in record.items() if name.startswith(("mlm", "learn", "loss"))}
                assert same.items() <= found[at].items()


def test_what_differs_is_named(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A longer phase, with --extend, has a decay that ends later."""
    config = json.loads((whole.parent / "recipe.json").read_text())
    changed = json.loads(json.dumps(config))
    changed["phases"]["phase3"]["schedule"]["final_fraction"] = 0.1
    changed["phases"]["phase3"]["shares"]["en"] = 1
    shutil.copytree(whole, tmp_path / "run")
    assert pretrain(tmp_path / "run", changed) == 2
    said = capsys.readouterr().err
    assert "config.phases.phase3.schedule.final_fraction: 0.001 -> 0.1" in said
    assert "config.phases.phase3.shares.en: 0 -> 1" in said
    changed["phases"]["phase3"]["shares"] = {"en": 1}
    assert pretrain(tmp_path / "other", changed) == 2
    assert "error: config.phases.phase3.shares lacks fr; give every part one" in capsys.readouterr().err

    longer = config | {"phases": config["phases"] | {"phase3": {**config["phases"]["phase3"], "num_steps": 6}}}
    assert pretrain(tmp_path / "run", longer, "--extend") == 0
    rates = [record["learning_rate"] for record in records(tmp_path / "run", "train").values()]
    np.testing.assert_allclose(rates[14:], 4e-4 * (0.001 + 0.999 * (1 - np.sqrt(np.array([4, 5]) / 6))), rtol=1e-5)
    assert run(["preflight", f"--config={tmp_path / 'recipe.json'}", f"--workdir={tmp_path / 'another'}"]) == 0
