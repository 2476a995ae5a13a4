"""Several tasks before a run: what a step leaves alone, on one device and on several, and what is wrong in a recipe."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.several import SeveralTasks
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamax, adamw, lamb
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.state import TrainState
from tests.tasks import toy_tasks
from tests.tasks.test_several import data_of, recipe, write

ORDER = ("clas", "tagg", "clas")  # the kinds of the steps
SHARED = {"encoder", "pooler"}
OWN = {"clas": {"clas_classifier"}, "regr": {"regr_classifier"}, "tagg": {"tagg_classifier"}}
TRAINS = {"clas": {"pooler"} | OWN["clas"], "tagg": {"encoder"} | OWN["tagg"]}
MESHES = {
    "one": (1, MeshConfig()),
    "replicated": (8, MeshConfig(weight_update="replicated")),
    "sharded": (2, MeshConfig()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("training"))


@functools.cache
def made(folder: Path) -> Any:
    """The task and the experiment of a recipe whose layers are scanned; ``clas`` does not train the encoder."""
    tree = recipe(
        model={"layers": "scanned", "num_layers": 2, "mlp_dim": 128}, packing="none", schedule={"warmup_fraction": 0.0}
    )
    tree["tasks"]["clas"] |= {"frozen": ("encoder",), "weight": 2.0}
    return toy_tasks.prepared(folder, tree)


@functools.cache
def states(folder: Path, optimizer: Rule, mesh_name: str, micro_batches: int) -> list[TrainState]:
    """The state before the steps of ORDER, and after each."""
    task, experiment = made(folder)
    devices, mesh_config = MESHES[mesh_name]
    training = dataclasses.replace(experiment.training, micro_batches=micro_batches)
    of = dataclasses.replace(experiment, optimizer=optimizer, mesh=mesh_config, training=training)
    mesh = of.check(jax.devices()[:devices])
    source, phase = task.source("train", "train", 0), of.phases.phases[0]
    steps = iter([of.phases.rows_of(number, {}, source.buckets) for number in range(of.phases.num_steps)])
    with meshes.activations(mesh):
        state, frozen = of.initial_state(task, mesh).make(0)
        assert meshes.is_split(state.params) == (mesh_name == "sharded")
        found, jitted = [jax.device_get(state)], {kind: of.jitted_step(task, kind, phase, state) for kind in TRAINS}
        for kind in ORDER:
            step = next(step for step in steps if step.kind == kind)
            batch = meshes.to_devices(source.rows(step.epochs, step.rows), mesh)
            state = jitted[kind](state, frozen, batch)
            found.append(jax.device_get(state))
    return found


def leaves(state: TrainState) -> dict[str, np.ndarray]:
    """Return the arrays of the parameters and of the optimizer's state by path."""
    tree = {"params": state.params, "optimizer": state.opt_state}
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize(
    ("mesh", "micro_batches", "optimizer"),
    [
        ("one", 1, adamw.Optimizer(clip_norm=0.1)),
        ("sharded", 2, adamw.Optimizer(clip_norm=0.1)),
        pytest.param("replicated", 1, lamb.Optimizer(clip_norm=0.1), marks=pytest.mark.heavy),
        pytest.param("sharded", 1, lamb.Optimizer(clip_norm=0.1), marks=pytest.mark.heavy),
        pytest.param("one", 2, adamax.Optimizer(), marks=pytest.mark.heavy),
    ],
)
def test_a_step_leaves_alone_what_its_task_does_not_train(
    folder: Path, mesh: str, micro_batches: int, optimizer: Rule
) -> None:
    """Parameters, moments, counts and decay, bit for bit; and what it trains has moved."""
    found = states(folder, optimizer, mesh, micro_batches)
    for kind, before, after in zip(ORDER, map(leaves, found), map(leaves, found[1:]), strict=False):
        for part in SHARED.union(*OWN.values()):
            own = [path for path in before if f"['{part}']" in path]
            assert sum("optimizer" in path for path in own) >= 2 * sum("params" in path for path in own) > 0
            same = [path for path in own if before[path].tobytes() == after[path].tobytes()]
            if part in TRAINS[kind]:  # a row of an embedding that did not come may stay in its moments
                assert not [path for path in same if "params" in path and "kernel" in path], (kind, part)
            else:
                assert same == own, (kind, part)


def test_the_steps_equal_the_steps_on_one_device(folder: Path) -> None:
    optimizer = adamw.Optimizer(clip_norm=0.1)
    found, expected = (states(folder, optimizer, *of)[-1] for of in (("sharded", 2), ("one", 1)))
    for path, value in leaves(expected).items():
        tolerance = 2e-3 * np.abs(value).max() + 1e-8  # the gradient of a key bias is 0, but for rounding
        np.testing.assert_allclose(leaves(found)[path], value, rtol=0, atol=tolerance, err_msg=path)
    for name, total in expected.metrics.items():  # "tokens" counts micro-batches
        np.testing.assert_allclose(found.metrics[name].value, total.value, rtol=1e-4, err_msg=name)


def test_metrics_and_weights_are_of_each_task(folder: Path) -> None:
    task, _ = made(folder)
    first, second = states(folder, adamw.Optimizer(clip_norm=0.1), "one", 1)[1:3]
    loss = first.metrics["clas/loss"]
    assert first.metrics["loss"].value == pytest.approx(2.0 * loss.value / loss.count), "its weight is 2"
    assert loss.count == 16 == first.metrics["clas/accuracy"].count
    assert first.metrics["regr/loss"].count == first.metrics["tagg/loss"].count == 0
    assert second.metrics["clas/loss"] == loss
    assert second.metrics["tagg/loss"].count > 16, "words"
    assert task.of("clas").loss_weights == {"clas/": 2.0}


# ---- Recipes ---------------------------------------------------------------------------------------------------------


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
        tasks__vect={"task": {"name": "sentence_embeddings"}, "data": data_of("regression")}, training__micro_batches=2
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_one_line(message: str, folder: Path) -> None:
    tree = recipe()
    WRONG[message](tree)
    with pytest.raises(UserError) as error:
        toy_tasks.prepared(folder, tree)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "config.task." not in str(error.value)


def test_parts_of_a_task_that_no_task_trains(folder: Path) -> None:
    tree = recipe(frozen=("pooler", "tagg_classifier"), model={"layers": "scanned"}, weights="fresh")
    task, _ = toy_tasks.prepared(folder, tree)
    assert isinstance(task, SeveralTasks)
    variables = jax.eval_shape(task.init, jax.random.key(0))
    assert set(variables.frozen) == {"pooler", "tagg_classifier"}
    assert set(variables.params) == {"encoder", "clas_classifier", "regr_classifier"}
    assert task.of("tagg").trains == {"encoder"}
    tree["frozen"] = ("tagg_clasifier",)
    with pytest.raises(UserError, match="config.frozen names 'tagg_clasifier'; did you mean 'tagg_classifier'?"):
        toy_tasks.prepared(folder, tree)


def test_metrics_of_several_dev_splits(folder: Path, one_device: None) -> None:
    """Each has its own under NAME/metric/SPLIT, and NAME/metric is of both."""
    tree = recipe(packing="none")
    splits = {"train": "classification/train.jsonl", "dev_a": "classification/dev.jsonl"}
    tree["tasks"]["clas"]["data"]["splits"] = splits | {"dev_b": "classification/more.jsonl"}
    toy_tasks.write_examples(folder / "classification" / "more.jsonl", toy_tasks.examples("classification", 8, 5))
    task, experiment = toy_tasks.prepared(folder, tree)
    evaluation = Evaluation(task, experiment.check(), experiment.evaluated_phase, 2**31)
    variables = jax.tree.map(np.asarray, meshes.unbox(jax.jit(task.init)(jax.random.key(0))))
    found = evaluation.run(*variables)
    names = {"loss", "accuracy"}
    wanted = {f"clas/{name}{end}" for name in names for end in ("", "/dev_a", "/dev_b")}
    assert {name for name in found if name.startswith("clas")} == wanted
    assert list(found)[:4] == ["mean", "clas/accuracy", "regr/spearmanr", "tagg/f1"]
    assert found["clas/loss"] == pytest.approx((24 * found["clas/loss/dev_a"] + 8 * found["clas/loss/dev_b"]) / 32)
    assert set(evaluation.metric_names()) == set(found)
