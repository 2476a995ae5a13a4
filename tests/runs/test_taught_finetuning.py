"""``config.teacher`` in fine-tuning: soft targets, labels in another order, and what is computed once."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.losses.teacher import Teacher, TeacherConfig, content
from bert_jax.metric_names import titles_of
from bert_jax.reporting.measures import headline_metrics
from bert_jax.reporting.progress import ProgressLine
from bert_jax.runs import cached_teacher
from bert_jax.runs.cached_teacher import fill
from bert_jax.task import Variables
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from tests import toy
from tests.objectives.test_terms import one_update
from tests.runs.commands import records
from tests.tasks import toy_tasks


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with examples of classification, a fine-tuned teacher, and a recipe for its students."""
    folder = tmp_path_factory.mktemp("tuned")
    toy_tasks.write_toy(folder, "classification", phase={"num_epochs": 6})
    with toy.one_device():
        assert toy_tasks.finetune(folder, workdir="teacher") == 0
    return folder


TUNED = ("--config.teacher.init={}/teacher", "--config.vocab.path={}/teacher/vocab.txt")


def finetune(folder: Path, workdir: str, *flags: str) -> int:
    return toy_tasks.finetune(folder, *(flag.format(folder) for flag in (*TUNED, *flags)), workdir=workdir)


@pytest.mark.heavy
def test_a_classifier_learns_from_another(tuned: Path, one_device: None) -> None:
    """From what it says alone, without labels."""
    flags = ("--config.teacher.labels=0", "--config.teacher.hidden.weight=0.1", "--config.seed=1")
    assert finetune(tuned, "student", *flags) == 0
    found = toy_tasks.evaluations(tuned, "student")
    assert found[0]["soft_loss"] > found[-1]["soft_loss"] > 0
    assert found[0]["hidden_loss"] > found[-1]["hidden_loss"] > 0
    metrics = toy_tasks.results(tuned, "student")["metrics"]["dev"]
    assert metrics.keys() == {"loss", "accuracy"}, "a finished student needs no teacher"
    assert metrics["accuracy"] > 0.9
    assert run(["evaluate", f"--workdir={tuned / 'student'}", f"--input={tuned / 'dev.jsonl'}"]) == 0


def taught_task(trained: Any, name: str = "classification", **keys: Any) -> Any:
    """A task on 16 examples, with a teacher."""
    plain = toy_tasks.make_task(name, {"train": toy_tasks.examples(name, 16)})
    model = dataclasses.replace(plain.setting.model, vocab_size=trained.tokenizer.size)
    teacher = Teacher(configuration.build(TeacherConfig, {"init": "X", **keys}, "config.teacher"), trained)
    setting = dataclasses.replace(plain.setting, tokenizer=trained.tokenizer, model=model, teacher=teacher)
    return type(plain)(plain.config, setting)


def losses(task: Any) -> dict[str, float]:
    batch = task.rows["train"].take(np.arange(16), 32)
    terms = jax.jit(lambda variables: task.loss(variables, batch, None).terms)
    shapes, rng = meshes.unbox(jax.eval_shape(task.init, jax.random.key(0))), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.1, leaf.shape).astype(leaf.dtype), shapes.params)
    variables = Variables(params, task.lessons.frozen)
    return {name: float(one.value / one.count) for name, one in terms(variables).items()}


def test_labels_are_matched_by_name(tuned: Path, tmp_path: Path) -> None:
    """A teacher whose labels, and outputs, have the other order says the same."""
    trained = bert_jax.load(str(tuned / "teacher"))
    assert trained.facts["labels"] == ["neg", "pos"]
    dense = jax.tree.map(lambda x: x[..., ::-1], trained.params["classifier"])
    other = dataclasses.replace(
        trained, params={**trained.params, "classifier": dense}, facts={**trained.facts, "labels": ["pos", "neg"]}
    )
    expected = losses(taught_task(trained))
    assert losses(taught_task(other)) == expected
    wrong = dataclasses.replace(trained, facts={**trained.facts, "labels": ["pos", "neg"]})
    assert losses(taught_task(wrong))["soft"] != expected["soft"]
    assert content(wrong) != content(trained), "so a run that was taught by the one is not resumed with the other"
    assert run(["export", f"--workdir={tuned / 'teacher'}", f"--output={tmp_path / 'model'}"]) == 0
    assert content(bert_jax.load(str(tmp_path / "model"))) == content(trained)


def test_the_loss_is_that_of_the_labels_in_training_too(tuned: Path) -> None:
    """As in an evaluation; the sum of all terms has another name, and the line of a step shows each term."""
    task = taught_task(bert_jax.load(str(tuned / "teacher")), labels=0.5, soft={"weight": 2.0})
    metrics, _ = one_update(task, "train", 1, MeshConfig(), 1)
    assert metrics["total_loss"] == pytest.approx(0.5 * metrics["loss"] + 2.0 * metrics["soft_loss"], rel=1e-5)
    assert min(metrics["loss"], metrics["soft_loss"]) > 0.1
    line = ProgressLine(2, stream=io.StringIO(), order=tuple(titles_of(task)))
    line.update(1, metrics)
    assert f"loss {metrics['loss']:.3f} acc {metrics['accuracy']:.3f}  soft {metrics['soft_loss']:.3f}" in line.line()
    assert "total" not in line.line()
    evaluated = {"split": "eval", "step": 1, "soft_loss": 0.2, "loss": 0.5, "accuracy": 0.75}
    assert headline_metrics(evaluated, True, "accuracy", titles_of(task)) == ["accuracy", "loss", "soft_loss"]


@pytest.mark.parametrize(
    ("changes", "keys", "said"),
    [
        ({"labels": ["neg", "good"]}, {}, "has the labels neg, good, and this run neg, pos; they have to be the same"),
        ({"task": None}, {}, "was trained for pretraining, and this run is of the task classification"),
        ({"task": None}, {}, "set config.teacher.soft.weight to 0 and config.teacher.hidden.weight above 0"),
        (
            {"task": None},
            {"soft": {"temperature": 2.0}, "hidden": {"weight": 1.0}},
            "set config.teacher.soft.weight to 0 and config.teacher.soft.temperature to 1.0$",
        ),
        ({"task": {"name": "regression"}}, {}, "was trained for regression"),
    ],
)
def test_a_teacher_of_something_else(tuned: Path, changes: Any, keys: Any, said: str) -> None:
    trained = bert_jax.load(str(tuned / "teacher"))
    with pytest.raises(UserError, match=said):
        taught_task(dataclasses.replace(trained, facts={**trained.facts, **changes}), **keys)


@pytest.mark.heavy
def test_a_cached_teacher_gives_the_same_curve(tuned: Path, one_device: None) -> None:
    for workdir, cached in (("beside", False), ("cached", True)):
        assert (
            finetune(tuned, workdir, "--config.epochs=1", "--config.seed=1", f"--config.teacher.cached={cached}") == 0
        )
    curves = [records(tuned / workdir, split) for workdir in ("beside", "cached") for split in ("train", "eval")]
    for found, expected in zip(curves[2:], curves[:2], strict=True):
        for name in ("loss", "soft_loss", "accuracy"):
            np.testing.assert_allclose([x[name] for x in found], [x[name] for x in expected], rtol=1e-3, atol=1e-6)
    assert curves[0][-1]["soft_loss"] > 1e-3
    [kept] = (tuned / "cached").glob("teacher_*.npz")
    assert {name: x.shape for name, x in np.load(kept).items()} == {
        "train/teacher_logits": (192, 2),
        "dev/teacher_logits": (48, 2),
        "digest": (),
    }


def test_what_a_cached_teacher_says_is_computed_once(tuned: Path, tmp_path: Path) -> None:
    """The second time it is read; the devices have no teacher, and a step computes none."""
    trained, notes = bert_jax.load(str(tuned / "teacher")), list[str]()
    tasks = [taught_task(trained, cached=True) for _ in range(2)]
    assert jax.eval_shape(tasks[0].init, jax.random.key(0)).frozen == {}
    assert tasks[0].flops_per_row["train"] < taught_task(trained).flops_per_row["train"]
    for task in tasks:
        fill({"": task}, "teacher@1", "examples", str(tmp_path), notes.append)
        np.testing.assert_allclose(losses(task)["soft"], losses(taught_task(trained))["soft"], rtol=1e-5)
    assert notes == ["what the teacher says of 16 rows is computed once"]


def saved(arrays: dict[str, Any]) -> bytes:
    """Return the content of a .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def unlike_files(content: bytes, fifo: Path) -> dict[str, Any]:
    """Return what may stand in the place of a file of soft targets: name -> its bytes, or what a link leads to."""
    kept = dict(np.load(io.BytesIO(content)))
    logits = kept["train/teacher_logits"]
    with zipfile.ZipFile(found := io.BytesIO(), "w") as zipped:
        zipped.writestr("a.txt", "no array")
    archive = found.getvalue()
    middle = content.index(logits.tobytes()) + logits.nbytes // 2
    return {
        "reversed": saved(kept | {"train/teacher_logits": logits[::-1]}),
        "not a number": saved(kept | {"train/teacher_logits": logits * np.nan}),
        "one row": saved(kept | {"train/teacher_logits": logits[:1]}),
        "wide": saved(kept | {"train/teacher_logits": np.zeros((1, 3), np.float32)}),
        "wider numbers": saved(kept | {"train/teacher_logits": logits.astype(np.float64)}),
        "no split": saved({"digest": kept["digest"]}),
        "empty split": saved(kept | {"train/teacher_logits": logits[:0]}),
        "more": saved(kept | {"test/teacher_logits": logits}),
        "no digest": saved({name: x for name, x in kept.items() if name != "digest"}),
        "digest of numbers": saved(kept | {"digest": np.zeros(4)}),
        "objects": saved(kept | {"train/teacher_logits": logits.astype(object)}),
        "another file in the zip": archive,
        "one array": b"\x93NUMPY" + content[6:],
        "flipped bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "flipped byte of the list": content[:-30] + bytes([content[-30] ^ 255]) + content[-29:],
        "cut": content[: len(content) // 2],
        "empty": b"",
        "text": b"soft targets",
        "pickle": pickle.dumps(logits),
        "pipe": fifo,
        "device": Path("/dev/zero"),
    }


def test_a_file_of_soft_targets_that_is_not_as_it_was_written(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says so, the same are computed again, and the next time the file is read."""
    trained, notes = bert_jax.load(str(tuned / "teacher")), list[str]()
    task = taught_task(trained, cached=True)
    logits = task.rows["train"].arrays["teacher_logits"]
    fill({"": task}, "teacher@1", "examples", str(tmp_path), notes.append)
    right, [path] = logits.copy(), list(tmp_path.iterdir())
    content = path.read_bytes()
    monkeypatch.setattr(cached_teacher, "_compute", lambda task: logits.__setitem__(..., right))
    os.mkfifo(tmp_path / "fifo")
    for name, found in unlike_files(content, tmp_path / "fifo").items():
        path.unlink()
        path.symlink_to(found) if isinstance(found, Path) else path.write_bytes(found)
        notes.clear()
        for _ in range(2):
            logits[...] = -1
            fill({"": task}, "teacher@1", "examples", str(tmp_path), notes.append)
            assert (logits == right).all(), name
        assert len(notes) == 2, (name, notes)
        assert notes[0].startswith(f"{path} "), name
        assert notes[0].endswith("; the file is made anew"), name
        assert "\n" not in notes[0]
        assert path.read_bytes() == content, name
    other = next(tmp_path.glob("*.npz")).rename(tmp_path / "other")
    notes.clear()
    fill({"": task}, "teacher@2", "examples", str(tmp_path), notes.append)
    [path] = tmp_path.glob("*.npz")
    other.replace(path)
    fill({"": task}, "teacher@2", "examples", str(tmp_path), notes.append)
    assert f"{path} is damaged, or was written by another version; the file is made anew" in notes
    assert np.load(path).files == ["train/teacher_logits", "digest"], "numpy reads the file"


def test_a_teacher_that_says_no_numbers_is_named(tuned: Path, tmp_path: Path) -> None:
    trained = bert_jax.load(str(tuned / "teacher"))
    params = {**trained.params, "classifier": jax.tree.map(lambda x: x * np.nan, trained.params["classifier"])}
    task = taught_task(dataclasses.replace(trained, params=params), cached=True)
    with pytest.raises(UserError, match=r"config.teacher.init says what is not a finite number \(train/teacher_logits"):
        fill({"": task}, "teacher@1", "examples", str(tmp_path), print)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_cached(tuned: Path) -> None:
    trained = bert_jax.load(str(tuned / "teacher"))
    with pytest.raises(
        UserError, match="cached keeps soft targets alone; set the weights of hidden and attention to 0"
    ):
        taught_task(trained, cached=True, hidden={"weight": 1.0})
    tags = toy_tasks.make_task("tagging", {"train": toy_tasks.examples("tagging", 4)})
    dense = {"kernel": np.zeros((32, len(tags.setting.labels))), "bias": np.zeros(len(tags.setting.labels))}
    facts = {"task": {"name": "tagging"}, "labels": list(tags.setting.labels)}
    tagger = dataclasses.replace(trained, params={**trained.params, "classifier": {"dense": dense}}, facts=facts)
    with pytest.raises(UserError, match="in this task it says something of each token; set it to False"):
        taught_task(tagger, "tagging", cached=True)
