"""What an evaluation reports is known before a model is compiled."""

import pytest

from bert_jax.rows.phases import Phase
from bert_jax.tasks.base import KIND
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import MeshConfig
from tests.tasks import toy_tasks


@pytest.mark.parametrize("name", sorted(toy_tasks.MAKERS))
def test_names_are_known_without_a_model(name):
    splits = {"train": toy_tasks.examples(name, 16, 1), "dev": toy_tasks.examples(name, 20, 2)}
    task = toy_tasks.make_task(name, splits)
    phase = Phase(1, 16, task.lengths[KIND], KIND)
    names = Evaluation(task, meshes.make_mesh(MeshConfig()), phase, 2**31).metric_names()
    assert task.main_metric in names
    assert "loss" in " ".join(names)
