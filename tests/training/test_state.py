"""A state is made in place; the variables that no checkpoint holds can be made without it."""

import jax
import numpy as np
import pytest

from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import adamw
from bert_jax.training.state import InitialState, abstract
from tests.tasks import toy_tasks


@pytest.mark.parametrize("mesh_config", [MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=2, fsdp=4)])
def test_frozen_variables_alone_are_those_beside_a_state(mesh_config: MeshConfig) -> None:
    task = toy_tasks.make_task("tagging", {"train": toy_tasks.examples("tagging", 8)}, frozen=("encoder",))
    mesh, update = make_mesh(mesh_config), mesh_config.weight_update
    initial = InitialState(task, adamw.Optimizer().make(), mesh, update)
    frozen, alone = initial.make(3)[1], initial.make_frozen(3)
    assert set(alone) == {"encoder"}
    assert abstract(alone) == abstract(frozen)
    jax.tree.map(np.testing.assert_array_equal, alone, frozen)
    whole = all(leaf.is_fully_replicated for leaf in jax.tree.leaves(alone))
    assert whole == (mesh_config.tensor == 1)  # a sharded update reads them whole
