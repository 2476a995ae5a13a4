"""Runs whose devices each update a part of the parameters."""

from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import OptimizerConfig, make_optimizer
from bert_jax.training.state import initialise
from bert_jax.training.step import metric_names
from tests.training.line import BATCH, WIDTH, Line, train

SHARDED, REPLICATED = MeshConfig(), MeshConfig(weight_update="replicated")


@pytest.fixture(autouse=True)
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "SPLIT", WIDTH)


class WholeBatches(Line):
    """Its rows count as dependent on each other."""

    whole_batches = True


@pytest.mark.parametrize(
    ("mesh", "task", "parts"),
    [(SHARDED, Line(), 8), (REPLICATED, Line(), 1), (SHARDED, WholeBatches(), 1), (MeshConfig(2, 4, 1), Line(), 4)],
)
def test_where_parameters_and_moments_lie(mesh: MeshConfig, task: Line, parts: int) -> None:
    names, tx = metric_names(task), make_optimizer(OptimizerConfig())
    state, _ = initialise(task, tx, names, BATCH, 0, make_mesh(mesh), mesh.weight_update)
    adam = state.opt_state[1]
    for tree in (state.params, adam.mu, adam.nu):
        kernel = tree["dense"]["kernel"]
        assert kernel.addressable_shards[0].data.shape == (WIDTH // parts, 1)
    whole = meshes.whole(state.params)["dense"]["kernel"]
    assert whole.addressable_shards[0].data.shape == (WIDTH // (4 if parts == 4 else 1), 1)
    np.testing.assert_array_equal(jax.device_get(whole), jax.device_get(state.params["dense"]["kernel"]))


def test_a_run_may_change_it_at_a_restart(tmp_path: Path) -> None:
    found = {}
    for name, layouts in {
        "same": (REPLICATED, REPLICATED, REPLICATED),
        "changed": (SHARDED, MeshConfig(data=2, fsdp=4), SHARDED),
    }.items():
        for number, mesh in enumerate(layouts, start=1):
            metrics = train(tmp_path / name, num_steps=10 * number, mesh=mesh)
        found[name] = metrics["squared_error"], read_params(str(tmp_path / name))[0]["dense"]["kernel"]
    assert found["changed"][0] == pytest.approx(found["same"][0], rel=1e-5)
    np.testing.assert_allclose(found["changed"][1], found["same"][1], rtol=1e-5)
