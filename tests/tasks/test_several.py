"""A run of several tasks: what it learns and writes, its model, its use as a teacher, and runs of it that were cut."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.errors import UserError
from bert_jax.interchange.loading import load, one_task
from bert_jax.runs.prediction import load_tuned, predict
from bert_jax.task import Variables
from bert_jax.workdir.run_record import read_run
from tests import toy
from tests.tasks import toy_tasks
from tests.training import gang

TASKS = ("classification", "regression", "tagging")
SIZES = {"classification": (96, 24), "regression": (64, 24), "tagging": (48, 16)}
EPOCH, EPOCHS = 13, 4  # steps of an epoch, and epochs
RESUMABLE: dict[str, Any] = {
    "mixing": {"alpha": 1.0, "alpha_end": 0.0},
    "model": {"dropout_rate": 0.1},
    "phases": {"train": {"num_epochs": EPOCHS}},
    "packing": "none",
    "checkpoints": {"every_steps": 4, "keep": 100},
    "training": {"loggers": (), "log_every_steps": 1, "logs_per_evaluation": None},
}


def data_of(name: str) -> dict[str, Any]:
    splits = {"train": f"{name}/train.jsonl", "dev": f"{name}/dev.jsonl"}
    return {"format": "jsonl", "splits": splits, "overlap": "warn"}


def recipe(**changes: Any) -> dict[str, Any]:
    """A recipe of three tasks, called by the first letters of theirs: clas, regr, tagg."""
    of_one = toy_tasks.recipe("tagging", **changes)
    tasks = {name[:4]: {"task": {"name": name}, "data": data_of(name)} for name in TASKS}
    return {"tasks": tasks, **{key: value for key, value in of_one.items() if key not in ("task", "data")}}


def write(folder: Path, **changes: Any) -> Path:
    for name, (train, dev) in SIZES.items():
        toy_tasks.write_examples(folder / name / "train.jsonl", toy_tasks.examples(name, train, 1))
        toy_tasks.write_examples(folder / name / "dev.jsonl", toy_tasks.examples(name, dev, 2))
    (folder / "recipe.json").write_text(json.dumps(recipe(**changes)))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, ``run``, whose shares change and whose every fourth step is saved."""
    folder = write(tmp_path_factory.mktemp("several"), **RESUMABLE)
    with toy.one_device():
        assert toy_tasks.finetune(folder) == 0
    return folder


def test_each_task_has_its_own_results(finished: Path) -> None:
    results, last = toy_tasks.results(finished), toy_tasks.evaluations(finished)[-1]
    assert results["metric"] == "mean"
    assert set(results["metrics"]) == {"clas/dev", "regr/dev", "tagg/dev"}
    best = next(one for one in toy_tasks.evaluations(finished) if one["step"] == results["best_step"])
    for name, main in (("clas", "accuracy"), ("regr", "spearmanr"), ("tagg", "f1")):
        of_task = results["metrics"][f"{name}/dev"]
        assert best[f"{name}/{main}"] == pytest.approx(of_task[main], abs=1e-5)
        assert best[f"{name}/loss"] == pytest.approx(of_task["loss"], rel=1e-4)
        records = toy_tasks.predictions(finished, f"{name}_dev")
        assert len(records) == {"clas": 24, "regr": 24, "tagg": 16}[name]
    mains = [last[name] for name in ("clas/accuracy", "regr/spearmanr", "tagg/f1")]
    assert last["mean"] == pytest.approx(np.mean(mains))
    assert not [name for name in last if name.count("/") > 1], "one dev split each"
    baselines = json.loads((finished / "run" / "baselines.json").read_text())
    names = {"clas/majority_rate", "regr/mean_label_loss", "tagg/majority_rate"}
    assert set(baselines) == names | {f"{name}_standard_error" for name in names}
    assert results["standard_errors"].keys() == results["metrics"].keys()
    assert {"f1", "accuracy"} <= results["standard_errors"]["tagg/dev"].keys()
    facts = read_run(str(finished / "run"))["facts"]
    assert not {"task", "labels", "data"} & facts.keys()
    assert facts["tasks"]["clas"]["labels"] == ["neg", "pos"]
    details = json.loads((finished / "run" / "details.json").read_text())["splits"]
    assert details["tagg/dev"]["labels"] != details["clas/dev"]["labels"]


def test_a_regression_is_learned(finished: Path) -> None:
    """The other tasks learn in the tests of their files."""
    records, metrics = toy_tasks.predictions(finished, "regr_dev"), toy_tasks.results(finished)["metrics"]["regr/dev"]
    truth, found = (np.array([record[key] for record in records]) for key in ("label", "prediction"))
    assert metrics["spearmanr"] > 0.8
    assert metrics["pearson"] == pytest.approx(np.corrcoef(truth, found)[0, 1], abs=1e-4)
    assert metrics["loss"] == pytest.approx(np.mean((truth - found) ** 2), rel=1e-3)
    assert metrics["loss"] < np.var(truth)


def test_one_task_of_the_model(finished: Path) -> None:
    run = str(finished / "run")
    with pytest.raises(UserError, match="was trained on several tasks: clas, regr, tagg; say which one: --task=clas"):
        load_tuned(run)
    with pytest.raises(UserError, match="unknown task 'class'; did you mean 'clas'"):
        load_tuned(run, task="class")
    model, whole = load_tuned(run, task="clas"), load(run)
    assert set(model.params) == {"encoder", "pooler", "classifier"}
    assert model.head is not None
    assert model.head.labels == ("neg", "pos")
    assert set(whole.params) == {"encoder", "pooler", "clas_classifier", "regr_classifier", "tagg_classifier"}
    examples = toy_tasks.examples("classification", 24, 2)
    metrics, records, errors = predict(model, examples)
    assert errors == pytest.approx(toy_tasks.results(finished)["standard_errors"]["clas/dev"])
    assert records == toy_tasks.predictions(finished, "clas_dev")
    assert metrics == pytest.approx(toy_tasks.results(finished)["metrics"]["clas/dev"])
    with pytest.raises(UserError, match="was not trained on several tasks"):
        one_task(model, "clas")


def taught(folder: Path, packing: str = "bucketed", **teacher: Any) -> Any:
    """The task of a run in which the finished one is the teacher, as far as before its first step."""
    changes = {
        "packing": packing,
        "teacher": {"init": str(folder / "run"), **teacher},
        "vocab": {"path": str(folder / "run" / "vocab.txt")},
    }
    return toy_tasks.prepared(folder, recipe(**changes))[0]


def frozen_of(task: Any) -> Any:
    """Return what the task reads and does not train; the program draws no parameters."""
    return jax.jit(lambda key: task.init(key).frozen)(jax.random.key(0))


def test_each_task_is_taught_by_the_task_of_its_name(finished: Path) -> None:
    """A student that is the teacher learns nothing more, in any task; the teacher is there once."""
    task, teacher = taught(finished, hidden={"weight": 1.0}), load(str(finished / "run"))
    every = frozen_of(task)
    [frozen] = every.values()
    assert frozen.keys() == teacher.params.keys() >= {"encoder", "clas_classifier", "tagg_classifier"}
    for name in ("clas", "regr", "tagg"):
        one = task.of(name)
        assert one.loss_weights == {f"{name}/": 1.0, f"{name}/soft": 1.0, f"{name}/hidden": 1.0}
        batch = task.source("eval", name, 0, f"{name}/dev").rows(np.zeros(8, np.int64), np.arange(8))
        terms = jax.jit(lambda params, one=one, batch=batch: one.loss(Variables(params, every), batch, None))(
            teacher.params
        ).terms
        assert float(terms[f"{name}/"].value) > 0.1
        assert max(abs(float(terms[f"{name}/{lesson}"].value)) for lesson in ("soft", "hidden")) < 1e-5


@pytest.mark.heavy
def test_a_teacher_of_packed_rows(finished: Path, one_device: None) -> None:
    """It says the same of an example alone and in a packed row; a student with its parameters has a loss of 0."""
    weights = {"hidden": {"weight": 1.0}, "attention": {"weight": 1.0}}
    task, teacher = taught(finished, packing="packed", **weights), load(str(finished / "run"))
    frozen, source = frozen_of(task), task.source("train", "train", 0)
    assert task.describe().startswith("batches of an epoch: clas ")
    for name, first in (("clas", 0), ("regr", 1), ("tagg", 2)):
        one, sizes = task.of(f"{name}/packed"), [bucket.rows_per_epoch for bucket in source.buckets]
        rows = np.arange(8) % sizes[first] + sum(sizes[:first])
        batch = source.rows(np.zeros(8, np.int64), rows)
        terms = jax.jit(lambda params, one=one, batch=batch: one.loss(Variables(params, frozen), batch, None))(
            teacher.params
        ).terms
        assert max(abs(float(terms[f"{name}/{lesson}"].value)) for lesson in ("soft", "hidden", "attention")) < 1e-5
        assert float(terms[f"{name}/"].value) > 0.1


def test_a_task_alone_is_taught_by_one_of_several(finished: Path) -> None:
    def of_one(**teacher: Any) -> Any:
        config = toy_tasks.recipe("classification", vocab={"path": str(finished / "run" / "vocab.txt")})
        config |= {"data": data_of("classification"), "teacher": {"init": str(finished / "run"), **teacher}}
        return toy_tasks.prepared(finished, config)[0]

    own = one_task(load(str(finished / "run")), "clas").params
    assert of_one(task="clas").lessons.params.keys() == own.keys()
    with pytest.raises(UserError, match="several tasks; config.teacher.task is one of clas, regr, tagg"):
        of_one()
    with pytest.raises(UserError, match="unknown config.teacher.task 'clss'; did you mean 'clas'"):
        of_one(task="clss")


@pytest.mark.heavy
def test_a_run_that_starts_from_one_of_several_tasks(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the heads of the tasks that are the same; a run of one task has the encoder and the pooler alone."""
    tree = recipe(phases={"train": {"num_epochs": 0.1}})
    tree["tasks"]["clas"]["task"]["metrics"] = ("f1",)
    (finished / "other.json").write_text(json.dumps(tree))
    flags = [f"--init={finished / 'run'}", f"--config={finished / 'other.json'}"]
    assert toy_tasks.finetune(finished, *flags, workdir="again") == 0
    assert "run; fresh: clas_classifier; left out: clas_classifier\n" in capsys.readouterr().err
    tree = toy_tasks.recipe("classification", phases={"train": {"num_epochs": 0.1}})
    tree["data"] = data_of("classification")
    (finished / "other.json").write_text(json.dumps(tree))
    assert toy_tasks.finetune(finished, *flags, workdir="single") == 0
    left_out = "clas_classifier, regr_classifier, tagg_classifier"
    assert f"run; fresh: classifier; left out: {left_out}\n" in capsys.readouterr().err


# ---- Runs that were cut ----------------------------------------------------------------------------------------------


def kind_of(record: dict[str, Any]) -> str:
    [kind] = {name.partition("/")[0] for name in record if "/" in name}
    return kind


def test_a_run_that_was_cut_at_a_switch_of_tasks_gives_the_same_bits(finished: Path, one_device: None) -> None:
    run, cut = finished / "run", finished / "cut"
    trained = [record for record in gang.records(run) if record["split"] == "train"]
    kinds = [kind_of(record) for record in trained]
    assert Counter(kinds[:EPOCH]) == {"clas": 6, "regr": 4, "tagg": 3}
    assert all(abs(count - EPOCH / 3) < 1 for count in Counter(kinds[-EPOCH:]).values()), "as many of each in the last"
    last = next(step for step in saved_steps(str(run))[-6:] if kinds[step] != kinds[step - 1])
    shutil.copytree(run, cut)
    for saved in (*(cut / "checkpoints").iterdir(), *(cut / "best").iterdir()):
        if saved.name.isdecimal() and int(saved.name) > last:
            shutil.rmtree(saved)
    assert toy_tasks.finetune(finished, workdir="cut") == 0
    assert gang.records(cut) == gang.records(run)
    gang.assert_same_model(cut, run)
    for name in ("results.json", "predictions_tagg_dev.jsonl"):
        assert (cut / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--config.mixing.alpha_end=0.5", "config.mixing.alpha_end: 0.0 -> 0.5"),
        ("--config.tasks.clas.weight=2.0", "config.tasks.clas.weight: 1.0 -> 2.0"),
        ("MORE", "config.tasks.more: left out -> given"),
        ("LESS", "config.tasks.clas: given -> left out"),
    ],
)
def test_another_mixture_is_refused_at_resume(
    change: str, message: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, tree = [change], json.loads((finished / "recipe.json").read_text())
    if change in ("MORE", "LESS"):
        more = {"task": {"name": "classification"}, "data": data_of("classification")}
        tree["tasks"] |= {"more": more} if change == "MORE" else {}
        tree["tasks"] = {name: one for name, one in tree["tasks"].items() if (name, change) != ("clas", "LESS")}
        (finished / "other.json").write_text(json.dumps(tree))
        flags = [f"--config={finished / 'other.json'}"]
    assert toy_tasks.finetune(finished, *flags) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"error: {finished / 'run'} holds another run: {message}"), said


@pytest.mark.heavy
@pytest.mark.parametrize("count", [1, 2])
def test_a_killed_run(count: int, finished: Path, tmp_path: Path) -> None:
    """Two processes give the losses of one, and each job that is killed and resumed gives its own bits."""
    recipe, flags = finished / "recipe.json", [f"--data={finished}"]
    runs = {name: tmp_path / name for name in ("whole", "cut")}
    for name, run in runs.items():
        job = gang.Gang(recipe, run, count, flags, verb="finetune")
        if name == "cut":
            job.until(lambda run=run: max(saved_steps(str(run)), default=0) >= 10)  # type: ignore[misc]
            job.send(count - 1, signal.SIGKILL)
            job.end()
            assert max(saved_steps(str(run))) < EPOCHS * EPOCH
            job = gang.Gang(recipe, run, count, flags, verb="finetune")
        ended = job.end()
        assert [code for code, _ in ended] == [0] * count, ended
    assert gang.records(runs["cut"]) == gang.records(runs["whole"])
    gang.assert_same_model(runs["cut"], runs["whole"])
    for one, other in zip(gang.records(runs["whole"]), gang.records(finished / "run"), strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose(one.get("loss", 0), other.get("loss", 0), rtol=1e-3)
