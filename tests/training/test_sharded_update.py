"""Runs whose devices each update a part of the parameters."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from bert_jax.checkpoints.restoring import read_params
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import adamw, base, lamb, muon, stable_adamw
from bert_jax.training.optimizers.base import Rule
from bert_jax.training.sharded_update import unsplit
from bert_jax.training.state import InitialState, TrainState
from tests.training.line import BATCH, WIDTH, Line, experiment, train

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
    tx = adamw.Optimizer().make()
    state, _ = InitialState(task, tx, make_mesh(mesh), mesh.weight_update).make(0)
    adam = state.opt_state[1]
    for tree in (state.params, adam.mu, adam.nu):
        kernel = tree["dense"]["kernel"]
        assert kernel.addressable_shards[0].data.shape == (WIDTH // parts, 1)
    whole = meshes.gathered(state.params)["dense"]["kernel"]
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


def updated(optimizer: Rule, mesh_config: MeshConfig) -> tuple[TrainState, np.ndarray]:
    """Return the state after six steps, and its kernel."""
    of = dataclasses.replace(experiment(mesh=mesh_config), optimizer=optimizer)
    task, mesh = Line(), of.check()
    source = task.source("train", "phase1", 0)
    with meshes.activations(mesh):
        state, frozen = of.initial_state(task, mesh).make(0)
        step = of.jitted_step(task, "phase1", of.phases.phases[0], state)
        for number in range(6):
            rows = np.arange(BATCH) + number * BATCH
            state = step(state, frozen, meshes.to_devices(source.rows(np.zeros_like(rows), rows), mesh))
    return state, np.asarray(jax.device_get(state.params["dense"]["kernel"]))


@dataclasses.dataclass(frozen=True)
class TwoRules(base.Rule):
    """Adam in a partition, beside a state of other shapes."""

    def make(self) -> optax.GradientTransformation:
        rules = {"adam": optax.scale_by_adam(), "none": optax.identity()}
        labels = lambda params: jax.tree.map(lambda _: "adam", params)  # noqa: E731
        return optax.chain(optax.partition(rules, labels), optax.scale_by_factored_rms(min_dim_size_to_factor=1))


@pytest.mark.parametrize("optimizer", [lamb.Optimizer(), stable_adamw.Optimizer(), muon.Optimizer(), TwoRules()])
def test_an_optimizer_sees_whole_matrices_on_every_mesh(optimizer: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms of a part would differ: the trust ratio of LAMB, the means over rows and columns of factored moments."""
    monkeypatch.setattr(muon, "PART", "dense")
    kernels = {}
    for mesh_config in (REPLICATED, SHARDED, MeshConfig(2, 4)):
        state, kernels[mesh_config] = updated(optimizer, mesh_config)
        parts = 8 if mesh_config.weight_update == "sharded" else 1
        for leaf in jax.tree.leaves((state.params, state.opt_state)):
            split = leaf.shape == (WIDTH, 1)
            assert leaf.addressable_shards[0].data.size * (parts if split else 1) == leaf.size
    for found in kernels.values():
        np.testing.assert_allclose(found, kernels[REPLICATED], rtol=2e-6)


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
