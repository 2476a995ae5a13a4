"""Several tasks in one training: batches, parameters, metrics, results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interchange.loading import load, one_task
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.runs.finetuning import Finetuning
from bert_jax.runs.prediction import load_tuned, predict
from bert_jax.task import Variables
from bert_jax.tasks.several import SeveralTasks
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import unbox
from bert_jax.workdir.run_record import read_run
from tests import toy
from tests.tasks import toy_tasks

TASKS = ("classification", "regression", "tagging")
SIZES = {"classification": (96, 24), "regression": (64, 24), "tagging": (48, 16)}


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
    """A folder with a finished run, ``run``."""
    folder = write(tmp_path_factory.mktemp("several"), phases={"train": {"num_epochs": 2}})
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
    checked = Finetuning(FinetuningSettings.of(recipe(**changes)), None)
    task, _ = checked.with_examples(checked.load(str(folder), [].append))
    return task


def test_each_task_is_taught_by_the_one_of_its_name(finished: Path) -> None:
    """A student that is the teacher learns nothing more, in any task; the teacher is there once."""
    task, teacher = taught(finished, hidden={"weight": 1.0}), load(str(finished / "run"))
    variables = task.init(jax.random.key(0))
    [frozen] = variables.frozen.values()
    assert frozen.keys() == teacher.params.keys() >= {"encoder", "clas_classifier", "tagg_classifier"}
    for name in ("clas", "regr", "tagg"):
        one = task.of(name)
        assert one.loss_weights == {f"{name}/": 1.0, f"{name}/soft": 1.0, f"{name}/hidden": 1.0}
        batch = task.source("eval", name, 0, f"{name}/dev").rows(np.zeros(8, np.int64), np.arange(8))
        terms = jax.jit(
            lambda params, one=one, batch=batch: one.loss(Variables(params, variables.frozen), batch, None)
        )(teacher.params).terms
        assert float(terms[f"{name}/"].value) > 0.1
        assert max(abs(float(terms[f"{name}/{lesson}"].value)) for lesson in ("soft", "hidden")) < 1e-5


@pytest.mark.heavy
def test_a_teacher_of_packed_rows(finished: Path, one_device: None) -> None:
    """It says the same of an example alone and in a packed row; a student with its parameters has a loss of 0."""
    weights = {"hidden": {"weight": 1.0}, "attention": {"weight": 1.0}}
    task, teacher = taught(finished, packing="packed", **weights), load(str(finished / "run"))
    frozen, source = task.init(jax.random.key(0)).frozen, task.source("train", "train", 0)
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
        checked = Finetuning(FinetuningSettings.of(config), None)
        return checked.with_examples(checked.load(str(finished), [].append))[0]

    own = one_task(load(str(finished / "run")), "clas").params
    assert of_one(task="clas").lessons.params.keys() == own.keys()
    with pytest.raises(UserError, match="several tasks; config.teacher.task is one of clas, regr, tagg"):
        of_one()
    with pytest.raises(UserError, match="unknown config.teacher.task 'clss'; did you mean 'clas'"):
        of_one(task="clss")


def wrong(**changes: Any) -> Any:
    """A change of a recipe: a path of keys, joined by "__" -> its new value; None removes it."""

    def change(tree: dict[str, Any]) -> None:
        for path, value in changes.items():
            *above, last = path.split("__")
            node = tree
            for key in above:
                node = node[key]
            node[last] = value
            if value is None:
                del node[last]

    return change


CLAS = {"task": {"name": "classification"}, "data": data_of("classification")}
WRONG = {
    "config has task and data beside tasks; a run has one task or several": wrong(task=CLAS["task"], data=CLAS["data"]),
    "no task is given; name tasks and their files": wrong(tasks={}),
    "config.mixing is for several tasks (config.tasks); leave it out": wrong(
        tasks=None, task=CLAS["task"], data=CLAS["data"], mixing={"alpha": 1.0}
    ),
    "config.tasks has the name 'my-task'; letters, digits (not first) and _ are allowed": wrong(
        **{"tasks__my-task": CLAS}
    ),
    "config.tasks has the name 'encoder'; a task cannot be called encoder,": wrong(tasks__encoder=CLAS),
    "config.tasks has the name 'mean'; a task cannot be called encoder,": wrong(tasks__mean=CLAS),
    "config.tasks has the name 'my_loss'; a task cannot be called encoder,": wrong(tasks__my_loss=CLAS),
    "config.tasks.clas is 5; its keys are task and data": wrong(tasks__clas=5),
    "missing key config.tasks.clas.data": wrong(tasks__clas__data=None),
    "config.tasks.clas.weight is -1.0; a number above 0 is needed": wrong(tasks__clas__weight=-1.0),
    "unknown key config.tasks.clas.tusk; did you mean 'task'?": wrong(tasks__clas__tusk=1),
    "there is no task 'clasification' in bert_jax.tasks; did you mean": wrong(tasks__clas__task__name="clasification"),
    "unknown key config.tasks.clas.task.metric; did you mean 'metrics'?": wrong(tasks__clas__task__metric=1),
    "config.tasks.tagg.task.overlap is -1; at least 0": wrong(tasks__tagg__task__overlap=-1),
    "dev_ids need a split called train in config.tasks.clas.data.splits; name its file": wrong(
        tasks__clas__data__splits={"test": "classification/dev.jsonl"}
    ),
    "no file for train": wrong(tasks__clas__data__splits__train="none.jsonl"),
    "config.tasks.clas.frozen names 'classifer'; did you mean 'classifier'?": wrong(tasks__clas__frozen=("classifer",)),
    "batches of the kind 'clas' train nothing; the model has": wrong(
        tasks__clas__frozen=("encoder", "pooler", "classifier")
    ),
    "config.mixing.shares names 'clss', which is no task": wrong(mixing={"shares": {"clss": 1.0}}),
    "config.selection.metric is 'clas/f2'; did you mean 'clas/": wrong(selection={"metric": "clas/f2"}),
    "config.training.micro_batches is 2; only 1 is allowed where the rows of a batch are each other's negatives, as in "
    "config.tasks.vect": wrong(
        tasks__vect={"task": {"name": "sentence_embeddings"}, "data": data_of("regression")},
        training__micro_batches=2,
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_one_line(message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, tree = write(tmp_path), recipe()
    WRONG[message](tree)
    (folder / "recipe.json").write_text(json.dumps(tree))
    assert toy_tasks.finetune(folder) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert "config.task." not in line
    assert not (folder / "run").exists()


def test_parts_of_a_task_that_no_task_trains(tmp_path: Path) -> None:
    tree = recipe(frozen=("pooler", "tagg_classifier"), model={"layers": "scanned"}, weights="fresh")
    checked = Finetuning(FinetuningSettings.of(tree), None)
    task, _ = checked.with_examples(checked.load(str(write(tmp_path)), lambda line: None))
    assert isinstance(task, SeveralTasks)
    variables = jax.eval_shape(task.init, jax.random.key(0))
    assert set(variables.frozen) == {"pooler", "tagg_classifier"}
    assert set(variables.params) == {"encoder", "clas_classifier", "regr_classifier"}
    assert task.of("tagg").trains == {"encoder"}
    tree["frozen"] = ("tagg_clasifier",)
    checked = Finetuning(FinetuningSettings.of(tree), None)
    with pytest.raises(UserError, match="config.frozen names 'tagg_clasifier'; did you mean 'tagg_classifier'?"):
        checked.with_examples(checked.load(str(tmp_path), lambda line: None))


def test_metrics_of_several_dev_splits(tmp_path: Path) -> None:
    """Each has its own under NAME/metric/SPLIT, and NAME/metric is of both."""
    tree = recipe(packing="none")
    splits = {"train": "classification/train.jsonl", "dev_a": "classification/dev.jsonl"}
    tree["tasks"]["clas"]["data"]["splits"] = splits | {"dev_b": "classification/more.jsonl"}
    folder = write(tmp_path)
    toy_tasks.write_examples(folder / "classification" / "more.jsonl", toy_tasks.examples("classification", 8, 5))
    checked = Finetuning(FinetuningSettings.of(tree), None)
    task, experiment = checked.with_examples(checked.load(str(folder), lambda line: None))
    evaluation = Evaluation(task, experiment.check(), experiment.evaluated_phase, 2**31)
    variables = jax.tree.map(np.asarray, unbox(jax.jit(task.init)(jax.random.key(0))))
    found = evaluation.run(*variables)
    names = {"loss", "accuracy"}
    wanted = {f"clas/{name}{end}" for name in names for end in ("", "/dev_a", "/dev_b")}
    assert {name for name in found if name.startswith("clas")} == wanted
    assert list(found)[:4] == ["mean", "clas/accuracy", "regr/spearmanr", "tagg/f1"]
    assert found["clas/loss"] == pytest.approx((24 * found["clas/loss/dev_a"] + 8 * found["clas/loss/dev_b"]) / 32)
    assert set(evaluation.metric_names()) == set(found)


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
