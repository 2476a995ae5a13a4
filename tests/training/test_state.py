"""A state is made in place; the variables that no checkpoint holds can be made without it."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from bert_jax.task import Variables
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import adamw
from bert_jax.training.state import InitialState, abstract
from tests.training.line import WIDTH, Line


class Frozen(Line):
    """A line beside a matrix that is not trained."""

    def init(self, rng: Any) -> Variables:
        matrix = nn.LogicallyPartitioned(jax.random.normal(rng, (WIDTH, WIDTH)), ("embed", "mlp"))
        return super().init(rng)._replace(frozen={"encoder": matrix})


@pytest.mark.parametrize("mesh_config", [MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=2, fsdp=4)])
def test_frozen_variables_alone_are_those_beside_a_state(mesh_config: MeshConfig) -> None:
    mesh, update = make_mesh(mesh_config), mesh_config.weight_update
    initial = InitialState(Frozen(), adamw.Optimizer().make(), mesh, update)
    frozen, alone = initial.make(3)[1], initial.make_frozen(3)
    assert set(alone) == {"encoder"}
    assert abstract(alone) == abstract(frozen)
    jax.tree.map(np.testing.assert_array_equal, alone, frozen)
    whole = all(leaf.is_fully_replicated for leaf in jax.tree.leaves(alone))
    assert whole == (mesh_config.tensor == 1)  # a sharded update reads them whole
