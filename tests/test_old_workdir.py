"""What commit 51fafe7 left behind (tests/fixtures) is resumed, exported, imported, predicted with and gone on from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cli.main import run
from bert_jax.reporting.run_record import read_run

ARCHIVE = Path(__file__).parent / "fixtures" / "workdir_51fafe7.tar.xz"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_device: None) -> Path:
    """A copy of it, and the current folder: its recipes name their files relative to it. On one device, as it was
    made."""
    shutil.unpack_archive(ARCHIVE, tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_same_weights(export: Path, expected: Path) -> None:
    tensors, wanted = (load_file(folder / "model.safetensors") for folder in (export, expected))
    assert tensors.keys() == wanted.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, wanted[name], err_msg=name)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_names_no_machine(old: Path) -> None:
    named = [path for path in old.rglob("*") if path.is_file() and b"/home/" in path.read_bytes()]
    assert named == []
    assert json.loads((old / "pretrained/status.json").read_text())["host"] == "host"


def test_a_cut_run_is_resumed_and_ends_as_it_would_have(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert saved_steps("pretrained") == [30, 31]
    before = read_run("pretrained")
    assert run(["pretrain", "--config=pretrain.json", "--workdir=pretrained"]) == 0
    said = capsys.readouterr().err
    assert "resumed at step 31" in said
    assert "step 31 is unverified: it has no list of sha256" in said
    assert saved_steps("pretrained")[-1] == 40
    after = read_run("pretrained")
    assert after["run_id"] == before["run_id"]
    assert [restart["step"] for restart in after["restarts"]] == [31]
    assert after["facts"]["objective"]["masking"]["rate"] == 0.15  # all of it, from here on
    metrics = records(old / "pretrained/metrics.jsonl")
    assert [r["step"] for r in metrics if r["split"] == "train"] == list(range(5, 41, 5))
    last = metrics[-1]
    for name, value in json.loads((old / "finished.json").read_text()).items():
        assert last[name] == pytest.approx(value, abs=1e-4), name


def without(tree: dict[str, Any], path: str) -> Any:
    """Take the key at the dotted ``path`` away."""
    *groups, key = path.split(".")
    for group in groups:
        tree = tree[group]
    return tree.pop(key)


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads(path.read_text())
    edit(tree)
    path.write_text(json.dumps(tree))


def test_a_cut_run_is_exported(old: Path) -> None:
    assert run(["export", "--workdir=pretrained", "--output=again"]) == 0
    assert_same_weights(old / "again", old / "pretrained_export")


def test_an_export_is_imported(old: Path) -> None:
    assert run(["import", "--input=pretrained_export", "--workdir=imported"]) == 0
    assert run(["export", "--workdir=imported", "--output=again"]) == 0
    assert_same_weights(old / "again", old / "pretrained_export")


def test_a_run_is_fine_tuned(old: Path) -> None:
    recipe = json.loads((old / "finetune.json").read_text()) | {"export": False}
    (old / "short.json").write_text(json.dumps(recipe | {"train": recipe["train"] | {"num_epochs": 0.5}}))
    assert run(["finetune", "--config=short.json", "--init=pretrained", "--data=.", "--workdir=tuned"]) == 0
    assert read_run("tuned")["identity"]["init"] == "pretrained"
    assert len(records(old / "tuned/predictions_dev.jsonl")) == 24


def test_a_fine_tuned_run_predicts_as_it_did_and_is_exported(old: Path) -> None:
    """The same command finds it at its end, and predicts and exports anew. Here it lacks keys, as if they had come
    since, and another default, which no recipe names, has changed since."""

    def older(run: dict[str, Any]) -> None:
        for path in ("identity.weights", "identity.train.buckets", "facts.data.split_seed"):
            without(run, path)
        for path in ("identity.optimizer.bias_correction", "facts.model.attention", "facts.task.positive"):
            without(run, path)
        run["identity"]["optimizer"]["eps"] = 1e-5

    change(old / "finetuned/run.json", older)
    for facts in (old / "finetuned/best/checkpoints").glob("*/facts/metadata"):
        change(facts, lambda tree: (without(tree, "model.attention"), without(tree, "task.positive")))
    expected = records(old / "finetuned/predictions_dev.jsonl")
    for made in ("predictions_dev.jsonl", "exported.json"):
        (old / "finetuned" / made).unlink()
    (old / "finetuned/hugging_face").rename(old / "as_it_was")
    flags = ["--init=pretrained", "--data=.", "--workdir=finetuned"]
    assert run(["finetune", "--config=finetune.json", *flags]) == 0
    assert saved_steps("finetuned") == [30]
    found = records(old / "finetuned/predictions_dev.jsonl")
    assert [(r["id"], r["prediction"]) for r in found] == [(r["id"], r["prediction"]) for r in expected]
    for record, wanted in zip(found, expected, strict=True):
        assert record["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-4)
    assert_same_weights(old / "finetuned/hugging_face", old / "as_it_was")
    run_now = read_run("finetuned")
    assert run_now["identity"]["optimizer"]["eps"] == 1e-5
    assert run_now["identity"]["optimizer"]["bias_correction"] == "none"  # the default then
    assert run_now["facts"]["model"]["attention"] == "bidirectional"
    assert "optimizer" not in run_now["config"]


REFUSED = {
    "a key of later": (
        lambda run: run["identity"]["optimizer"].update(rho=0.5),
        "pretrained was begun with config.optimizer.rho (0.5), which this version does not know; go on with the one "
        "that made it (git commit 51fafe7a93b5169a14c5f4a092a53bb959ff8bf5)",
    ),
    "a key that means something else": (
        lambda run: (
            run["config"]["schedule"].update(decay_steps=7),
            run["identity"]["schedule"].update(decay_steps=7),
        ),
        "config.schedule.decay_steps: 7 -> 0",
    ),
    "another default of the objective": (
        lambda run: run["facts"].update(objective={"name": "mlm_nsp", "packing": "packed"}),
        "begun with other inputs: run.objective.packing: 'packed' -> 'none'. Put",
    ),
    "an absent fact of another value": (
        lambda run: (without(run, "facts.model.attention"), run["facts"]["model"].update(activation="relu")),
        "begun with other inputs: run.model.activation: 'relu' -> 'gelu'. Put",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_is_an_error_by_name(name: str, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit, expected = REFUSED[name]
    change(old / "pretrained/run.json", edit)
    assert run(["pretrain", "--config=pretrain.json", "--workdir=pretrained"]) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]
    assert saved_steps("pretrained") == [30, 31]
