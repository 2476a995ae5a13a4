"""Runs whose devices each update a part of the parameters."""

from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import OptimizerConfig, make_optimizer
from bert_jax.training.sharded_update import unsplit
from bert_jax.training.state import InitialState
from tests.training.line import WIDTH, Line, train

SHARDED, REPLICATED = MeshConfig(), MeshConfig(weight_update="replicated")


@pytest.fixture(autouse=True)
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "SPLIT", WIDTH)


class WholeBatches(Line):
    """Its rows count as dependent on each other."""

    whole_batches = True


@pytest.mark.parametrize(
    ("mesh", "task", "parts"),
    [
        (SHARDED, Line(), 8),
        (REPLICATED, Line(), 1),
        (SHARDED, WholeBatches(), 1),
        (MeshConfig(2, 4, 1), Line(), 8),
        (MeshConfig(1, 8, 1), Line(), 8),
        (MeshConfig(2, 4, 1, weight_update="replicated"), Line(), 4),
        (MeshConfig(2, 2, 2), Line(), 2),
    ],
)
def test_where_parameters_and_moments_lie(mesh: MeshConfig, task: Line, parts: int) -> None:
    tx = make_optimizer(OptimizerConfig())
    state, _ = InitialState(task, tx, make_mesh(mesh), mesh.weight_update).make(0)
    adam = state.opt_state[1]
    for tree in (state.params, adam.mu, adam.nu):
        kernel = tree["dense"]["kernel"]
        assert kernel.addressable_shards[0].data.shape == (WIDTH // parts, 1)
    whole = meshes.whole(state.params)["dense"]["kernel"]
    assert whole.addressable_shards[0].data.shape == (WIDTH // (1 if parts == 8 else parts), 1)
    np.testing.assert_array_equal(jax.device_get(whole), jax.device_get(state.params["dense"]["kernel"]))


@pytest.mark.parametrize(
    ("mesh", "task", "said"),
    [
        (SHARDED, Line(), True),
        (REPLICATED, Line(), False),
        (SHARDED, WholeBatches(), False),
        (MeshConfig(4, 1, 2), Line(), False),
    ],
)
def test_devices_that_divide_no_matrix_are_told(mesh: MeshConfig, task: Line, said: bool) -> None:
    made = make_mesh(mesh)
    assert unsplit(task, made, mesh.weight_update, split=True) == []
    assert [
        f"8 devices divide no axis of {WIDTH} or more" in line
        for line in unsplit(task, made, mesh.weight_update, split=False)
    ] == [True] * said


def test_a_run_may_change_it_at_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the number of devices: there are as many as the mesh has."""
    found, devices = {}, jax.devices()
    for name, layouts in {
        "same": [MeshConfig(4, weight_update="replicated")] * 4,
        "changed": [MeshConfig(1, fsdp=4), MeshConfig(4), MeshConfig(2, fsdp=2), MeshConfig(1)],
    }.items():
        for number, mesh in enumerate(layouts, start=1):
            monkeypatch.setattr(jax, "devices", lambda count=mesh.data * mesh.fsdp: devices[:count])
            metrics = train(tmp_path / name, num_steps=10 * number, mesh=mesh)
        found[name] = metrics["squared_error"], read_params(str(tmp_path / name))[0]["dense"]["kernel"]
    assert found["changed"][0] == pytest.approx(found["same"][0], rel=1e-5)
    np.testing.assert_allclose(found["changed"][1], found["same"][1], rtol=1e-5)
