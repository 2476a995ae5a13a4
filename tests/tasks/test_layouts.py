"""The loss of every task and its gradient do not depend on the mesh and the accumulation."""

from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.tasks.base import KIND
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear
from bert_jax.training.state import InitialState
from bert_jax.training.step import make_gradients, make_train_step
from tests.tasks import toy_tasks

ROWS = 16
PACKED = ("classification", "regression", "tagging")
# Devices, mesh, micro-batches.
LAYOUTS = [(1, MeshConfig(), 4), (2, MeshConfig(), 2), (8, MeshConfig(data=2, fsdp=2, tensor=2), 2)]


@pytest.fixture(autouse=True)
def sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split the toys' matrices over data as well."""
    monkeypatch.setattr(meshes, "SPLIT", 16)


def one_update(
    name: str, devices: int, mesh_config: MeshConfig, micro_batches: int, packing: Any = "bucketed", **model: Any
) -> tuple[dict[str, float], Any]:
    """What ``update`` returns for a batch of uneven weights."""
    rates = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    train = toy_tasks.examples(name, ROWS if packing == "bucketed" else 4 * ROWS)
    task = toy_tasks.make_task(name, {"train": train}, packing=packing, **rates, **model)
    indices = np.arange(ROWS)
    batch = task.source("train", KIND, 0).rows(np.zeros_like(indices), indices)
    batch["label_weights"][: ROWS // 2 : 2] = 0  # uneven over rows, devices and micro-batches
    return update(task, batch, devices, mesh_config, micro_batches)


def update(
    task: Any, batch: dict[str, np.ndarray], devices: int, mesh_config: MeshConfig, micro_batches: int = 1
) -> tuple[dict[str, float], Any]:
    """Metrics and first moments (a tenth of the gradient) after one step on ``batch``."""
    mesh = meshes.make_mesh(mesh_config, jax.devices()[:devices])
    tx = adamw.Optimizer(clip_norm=None).make()
    schedule = linear.Schedule(1e-3, 0).make(10)
    state, frozen = InitialState(task, tx, mesh, mesh_config.weight_update).make(0)
    with meshes.activations(mesh):
        gradients = make_gradients(task, micro_batches, state.params)
        step = jax.jit(make_train_step(task, tx, schedule, 0, gradients))
        state = step(state, frozen, meshes.to_devices(batch, mesh))
    metrics = {key: float(s.value / s.count) for key, s in state.metrics.items() if key != "tokens"}
    return metrics, jax.device_get(state.opt_state[1].mu)


def compare(found: tuple[Any, Any], expected: tuple[Any, Any], loss: float, gradient: float) -> None:
    for key, value in expected[0].items():
        assert found[0][key] == pytest.approx(value, rel=loss), key
    wanted, got = (jax.tree_util.tree_leaves_with_path(side[1]) for side in (expected, found))
    everywhere = max(np.abs(leaf).max() for _, leaf in wanted)
    for (path, leaf), (_, other) in zip(wanted, got, strict=True):
        name = jax.tree_util.keystr(path)
        # Two gradients are zero but for rounding, because softmax does not see the parameter: a key's bias, and a bias
        # that all choices share.
        largest = everywhere if is_rounding(name, leaf, everywhere) else np.abs(leaf).max()
        assert np.abs(other - leaf).max() <= gradient * largest, name


def is_rounding(name: str, leaf: np.ndarray, everywhere: float) -> bool:
    if "['bias']" not in name or np.abs(leaf).max() > 1e-5 * everywhere:
        return False
    return "['key']" in name or "['classifier']" in name


# The others have one sequence in a row, as pretraining, or weigh rows alone.
@pytest.mark.parametrize("task", ["multiple_choice", pytest.param("tagging", marks=pytest.mark.heavy)])
def test_two_devices_and_accumulation_give_the_same_step(task: str) -> None:
    """Dropout is on: its bits follow the rows. Other meshes split the encoder, which pretraining tests."""
    with jax.enable_x64(True):
        expected = one_update(task, 1, MeshConfig(), 1, dtype="float64")
        found = one_update(task, 2, MeshConfig(), 2, dtype="float64")
    compare(found, expected, loss=1e-12, gradient=1e-12)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("task", "packing"), [*((name, "bucketed") for name in toy_tasks.MAKERS), *((name, "packed") for name in PACKED)]
)
def test_every_layout_gives_the_same_step_in_float32(task: str, packing: str) -> None:
    expected = one_update(task, 1, MeshConfig(), 1, packing)
    for devices, mesh_config, micro_batches in LAYOUTS:
        compare(one_update(task, devices, mesh_config, micro_batches, packing), expected, loss=1e-6, gradient=1e-5)
