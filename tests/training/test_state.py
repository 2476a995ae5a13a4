"""A state is made in place; the variables that no checkpoint holds can be made without it."""

import jax
import numpy as np

from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import OptimizerConfig, make_optimizer
from bert_jax.training.state import abstract, initialise, initialise_frozen
from bert_jax.training.step import metric_names
from tests.tasks import toy_tasks


def test_frozen_variables_alone_are_those_beside_a_state() -> None:
    task = toy_tasks.make_task("tagging", {"train": toy_tasks.examples("tagging", 8)}, frozen=("encoder",))
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    _, frozen = initialise(task, make_optimizer(OptimizerConfig()), metric_names(task), 8, 3, mesh)
    alone = initialise_frozen(task, 3, mesh)
    assert set(alone) == {"encoder"}
    assert abstract(alone) == abstract(frozen)
    jax.tree.map(np.testing.assert_array_equal, alone, frozen)
