"""Leaves have names, and those that an old checkpoint lacks are made alone."""

import numpy as np
import pytest

from bert_jax.checkpoints.leaves import listed, named_leaves
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizers import OptimizerConfig, make_optimizer
from bert_jax.training.state import fresh_leaves, initialise
from bert_jax.training.step import metric_names
from tests.tasks import toy_tasks


def test_fresh_leaves_are_those_of_a_fresh_state() -> None:
    task = toy_tasks.make_task("tagging", {"train": toy_tasks.examples("tagging", 8)})
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    how = (task, make_optimizer(OptimizerConfig()), metric_names(task), 8, 3, mesh)
    state = named_leaves(initialise(*how)[0])
    moment = "opt_state/1/nu/encoder/embeddings/word_embeddings"
    names = [moment, *(name for name in state if name.startswith("metrics/"))]
    made = fresh_leaves(*how, names)
    assert made.keys() == set(names)
    for name, leaf in made.items():
        np.testing.assert_array_equal(leaf, state[name])
        assert leaf.sharding == state[name].sharding
    assert not made[moment].sharding.is_fully_replicated
    for name in ("params/pooler/dense/bias", "step"):
        with pytest.raises(ValueError, match=f"it lacks {name}"):
            fresh_leaves(*how, [moment, name])


def test_a_list_of_names_is_short() -> None:
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
