"""Training on several tasks: what a step leaves alone, on one device and on several; a run that was killed."""

from __future__ import annotations

import dataclasses
import functools
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
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.runs.finetuning import Finetuning
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamax, adamw, lamb
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.state import TrainState
from tests import toy
from tests.tasks import test_several, toy_tasks
from tests.training import gang

ORDER = ("clas", "tagg", "regr", "clas")  # their kinds, in turn
SHARED = {"encoder", "pooler"}
OWN = {"clas": {"clas_classifier"}, "regr": {"regr_classifier"}, "tagg": {"tagg_classifier"}}
TRAINS = {"clas": {"clas_classifier"}, "regr": SHARED | OWN["regr"], "tagg": {"encoder"} | OWN["tagg"]}
MESHES = {
    "one": (1, MeshConfig()),
    "replicated": (8, MeshConfig(weight_update="replicated")),
    "sharded": (8, MeshConfig()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return test_several.write(tmp_path_factory.mktemp("training"))


@functools.cache
def made(folder: Path) -> Any:
    """The task and the experiment of a recipe whose layers are scanned; ``clas`` does not train what is shared."""
    recipe = test_several.recipe(
        model={"layers": "scanned", "num_layers": 2, "mlp_dim": 128}, packing="none", schedule={"warmup_fraction": 0.0}
    )
    recipe["tasks"]["clas"] |= {"frozen": ("encoder", "pooler"), "weight": 2.0}
    checked = Finetuning(FinetuningSettings.of(recipe), None)
    return checked.with_examples(checked.load(str(folder), lambda line: None))


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
        found, jitted = [jax.device_get(state)], {kind: of.jitted_step(task, kind, phase, state) for kind in OWN}
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
        ("replicated", 1, lamb.Optimizer(clip_norm=0.1)),
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


def test_the_steps_are_those_of_one_device(folder: Path) -> None:
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


# ---- Runs that were cut ----------------------------------------------------------------------------------------------

RESUMABLE: dict[str, Any] = {
    "mixing": {"alpha": 1.0, "alpha_end": 0.0},
    "model": {"dropout_rate": 0.1},
    "phases": {"train": {"num_epochs": 2}},
    "packing": "none",
    "checkpoints": {"every_steps": 2, "keep": 100},
    "training": {"loggers": (), "log_every_steps": 1, "logs_per_evaluation": None},
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, ``run``, whose shares change and whose every second step is saved."""
    folder = test_several.write(tmp_path_factory.mktemp("resumed"), **RESUMABLE)
    with toy.one_device():
        assert toy_tasks.finetune(folder) == 0
    return folder


def kind_of(record: dict[str, Any]) -> str:
    [kind] = {name.partition("/")[0] for name in record if "/" in name}
    return kind


def test_a_run_that_was_cut_at_a_switch_of_tasks_gives_the_same_bits(unbroken: Path, one_device: None) -> None:
    run, cut = unbroken / "run", unbroken / "cut"
    trained = [record for record in gang.records(run) if record["split"] == "train"]
    kinds = [kind_of(record) for record in trained]
    assert Counter(kinds[:13]) == {"clas": 6, "regr": 4, "tagg": 3}
    assert all(abs(count - 13 / 3) < 1 for count in Counter(kinds[13:]).values()), "as many of each in the last epoch"
    last = next(i for i in range(16, 26, 2) if kinds[i] != kinds[i - 1])
    shutil.copytree(run, cut)
    shutil.rmtree(cut / "best")
    for step in saved_steps(str(cut)):
        if step > last:
            shutil.rmtree(cut / "checkpoints" / str(step))
    assert toy_tasks.finetune(unbroken, workdir="cut") == 0
    assert gang.records(cut) == gang.records(run)
    gang.assert_same_model(cut, run)


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
    change: str, message: str, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, tree = [change], json.loads((unbroken / "recipe.json").read_text())
    if change in ("MORE", "LESS"):
        more = {"task": {"name": "classification"}, "data": test_several.data_of("classification")}
        tree["tasks"] |= {"more": more} if change == "MORE" else {}
        tree["tasks"] = {name: one for name, one in tree["tasks"].items() if (name, change) != ("clas", "LESS")}
        (unbroken / "other.json").write_text(json.dumps(tree))
        flags = [f"--config={unbroken / 'other.json'}"]
    assert toy_tasks.finetune(unbroken, *flags) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"error: {unbroken / 'run'} holds another run: {message}"), said


@pytest.mark.heavy
@pytest.mark.parametrize("count", [1, 2])
def test_a_killed_run(count: int, unbroken: Path, tmp_path: Path) -> None:
    """Two processes give the losses of one, and each job that is killed and resumed gives its own bits."""
    recipe, flags = unbroken / "recipe.json", [f"--data={unbroken}"]
    runs = {name: tmp_path / name for name in ("whole", "cut")}
    for name, run in runs.items():
        job = gang.Gang(recipe, run, count, flags, verb="finetune")
        if name == "cut":
            job.until(lambda run=run: max(saved_steps(str(run)), default=0) >= 10)  # type: ignore[misc]
            job.send(count - 1, signal.SIGKILL)
            job.end()
            assert max(saved_steps(str(run))) < 26
            job = gang.Gang(recipe, run, count, flags, verb="finetune")
        ended = job.end()
        assert [code for code, _ in ended] == [0] * count, ended
    assert gang.records(runs["cut"]) == gang.records(runs["whole"])
    gang.assert_same_model(runs["cut"], runs["whole"])
    for one, other in zip(gang.records(runs["whole"]), gang.records(unbroken / "run"), strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose(one.get("loss", 0), other.get("loss", 0), rtol=1e-3)
