"""Terms whose loss is any function, in users' own files: the same on every layout, and pretrained by the command."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.models.dropout import RowRng
from bert_jax.objectives import base
from bert_jax.records import Batch, Sum
from bert_jax.rows.phases import Phase
from bert_jax.runs.pretraining import Pretraining
from bert_jax.task import Losses, Term, Variables
from bert_jax.tasks import classification
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear
from bert_jax.training.state import InitialState
from bert_jax.training.step import CountError, count_targets, make_gradients, make_train_step
from tests.objectives.texts import settings_of, write_own
from tests.tasks import toy_tasks
from tests.training.line import WIDTH, Line
from tests.training.test_layouts import compare

PAGE = Path(base.__file__).with_name("README.md").read_text(encoding="utf-8")
[PLACES] = re.findall(
    r"^```python\n(\"\"\"Masked language modelling, and the place.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
OWN = {
    "places": PLACES,
    "learner": '''
        """Masked language modelling, a second head that learns what the first one says (KL), and a third that says
        whether it beats chance: the labels and weights of the third are made from outputs."""
        import jax
        import jax.numpy as jnp
        import optax
        from bert_jax.models.heads import Classifier, LmHead
        from bert_jax.models.model import LM_HEAD, Part
        from bert_jax.models.gradients import gather
        from bert_jax.objectives import base
        from bert_jax.records import Sum

        Config = base.Config

        def divergence(outputs, batch):
            teacher = jax.nn.log_softmax(jax.lax.stop_gradient(outputs["mlm_logits"]))  # [B, P, V]
            learner, weights = jax.nn.log_softmax(outputs["learner_logits"]), batch["masked_weights"]
            each = jnp.sum(jnp.exp(teacher) * (teacher - learner), axis=-1)  # [B, P]
            return Sum(jnp.sum(each * weights), jnp.sum(weights))

        def read(outputs, batch):
            shares = jax.nn.softmax(jax.lax.stop_gradient(outputs["mlm_logits"]))  # [B, P, V]
            likely = jnp.take_along_axis(shares, batch["masked_labels"][..., None], axis=-1)[..., 0]
            said = gather(outputs["knows_logits"], batch["masked_positions"])[..., 0]  # [B, P]
            return said, likely * shares.shape[-1] > 1, 1 - likely, batch["masked_weights"]

        def sigmoid(outputs, batch):
            said, knows, surprise, weights = read(outputs, batch)
            losses = optax.sigmoid_binary_cross_entropy(said, knows.astype(jnp.float32))
            return Sum(jnp.sum(losses * surprise * weights), jnp.sum(weights))

        def accuracy(outputs, batch):
            said, knows, _, weights = read(outputs, batch)
            return Sum(jnp.sum(((said > 0) == knows) * weights), jnp.sum(weights))

        class Objective(base.PretrainingObjective):
            parts = (
                LM_HEAD,
                Part.of("learner_head", LmHead, logits="learner_logits"),
                Part.of("knows_head", Classifier, vectors="sequence", logits="knows_logits"),
            )
            arrangement = "sentences"

            def terms(self, config):
                knows = base.Term(sigmoid, 0.5, {"accuracy": accuracy})
                return {"mlm": base.MLM, "learner": base.Term(divergence), "knows": knows}
    ''',
}
METRICS = {"mlm_accuracy", "mlm_accuracy_no_punctuation", "perplexity"}
LAYOUTS = {  # devices, mesh, micro-batches
    "eight devices": (8, MeshConfig(weight_update="replicated"), 2),
    "eight devices, sharded": (8, MeshConfig(), 2),
}


def write(folder: Path, name: str) -> str:
    return write_own(folder, name, textwrap.dedent(OWN[name]).strip() + "\n", batch_size=16, micro_batches=2)


def one_update(task: Any, kind: str, devices: int, config: MeshConfig, parts: int) -> tuple[dict[str, float], Any]:
    """Metrics and first moments after one step with dropout, on 16 rows of which some weigh nothing.

    numpy draws the parameters: a mesh that draws them costs a program, and ``training/test_layouts.py`` compares its
    bits.
    """
    mesh = meshes.make_mesh(config, jax.devices()[:devices])
    tx = adamw.Optimizer(clip_norm=None).make()
    initial, rng = InitialState(task, tx, mesh, config.weight_update), np.random.default_rng(0)
    zeros = jax.tree.map(lambda like: np.zeros(like.shape, like.dtype), initial.shapes[0])
    params = jax.tree_util.tree_map_with_path(
        lambda path, w: rng.normal(path[-1].key == "scale", 0.1, w.shape).astype(w.dtype), zeros.params
    )
    places = jax.tree.map(lambda like: like.sharding, initial.shapes[0])
    state = jax.device_put(dataclasses.replace(zeros, params=params), places)
    indices = np.arange(16)
    batch = task.source("train", kind, 0).rows(np.zeros_like(indices), indices)
    weights = "masked_weights" if "masked_weights" in batch else "label_weights"
    batch[weights].reshape(16, -1)[::3, 1:] = 0
    with meshes.activations(mesh):
        gradients = make_gradients(task, parts, state.params)
        step = jax.jit(make_train_step(task, tx, linear.Schedule(1e-3, 0).make(10), 0, gradients))
        state = step(state, initial.make_frozen(0), meshes.to_devices(batch, mesh))
    found = jax.device_get(state)
    metrics = {name: float(s.value / s.count) for name, s in found.metrics.items() if name != "tokens"}
    return metrics, found.opt_state[1].mu


def same_on_every_layout(task: Any, monkeypatch: pytest.MonkeyPatch, layouts: Sequence[str] = tuple(LAYOUTS)) -> Any:
    """Assert that a step of "phase1" in float64 is the same on each of ``layouts``; return what ``one_update`` does."""
    monkeypatch.setattr(meshes, "SPLIT", 16)
    expected = one_update(task, "phase1", 1, MeshConfig(), 1)
    for name in layouts:
        compare(one_update(task, "phase1", *LAYOUTS[name]), expected, loss_tolerance=1e-12, gradient_tolerance=1e-10)
    return expected


@pytest.mark.parametrize("layout", [pytest.param("eight devices", marks=pytest.mark.heavy), "eight devices, sharded"])
def test_every_layout_gives_the_same_step(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.enable_x64(True):
        settings = settings_of(write(tmp_path, "learner"), "--config.model.dtype=float64")
        recipe = Pretraining(settings, devices=jax.devices()[:1])
        task, _ = recipe.with_text(
            *dataclasses.replace(recipe.inputs, workdir=str(tmp_path / "run")).open(lambda line: None)
        )
        assert not {f"{name}_majority_rate" for name in task.loss_weights} & task.baselines("phase1", 8).keys()
        expected = same_on_every_layout(task, monkeypatch, [layout])
        assert min(expected[0][f"{name}_loss"] for name in ("learner", "knows")) > 1e-3
        evaluation = Evaluation(task, recipe.mesh, recipe.experiment.evaluated_phase, 8)
        names = set(evaluation.metric_names())
        assert {*METRICS, "learner_loss", "knows_loss", "knows_accuracy"} < names
        assert "learner_accuracy" not in names


# The metrics of "learner" are named above, where the objective is made for its steps anyway.
@pytest.mark.parametrize("name", ["places", pytest.param("learner", marks=pytest.mark.heavy)])
def test_they_are_pretrained_by_the_command(name: str, tmp_path: Path, one_device: None) -> None:
    assert run(["pretrain", f"--config={write(tmp_path, name)}", f"--workdir={tmp_path / 'run'}"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = (line for line in lines if line["split"] == "eval")
    assert last["mlm_loss"] < first["mlm_loss"]
    assert {*METRICS, f"{name}_loss"} < last.keys()
    assert f"{name}_accuracy" not in last


class Doubting(classification.Task):
    """Classification, and a penalty on being sure (Pereyra et al. 2017)."""

    def terms(self, config: classification.Config) -> dict[str, Term]:
        def negative_entropy(outputs: Any, batch: Batch) -> Sum:
            shares, weights = jax.nn.log_softmax(outputs["logits"]), batch["label_weights"]
            return Sum(jnp.sum(jnp.sum(jnp.exp(shares) * shares, axis=-1) * weights), jnp.sum(weights))

        return {**super().terms(config), "sure": Term(negative_entropy, 0.1)}


def test_a_downstream_task_has_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "SPLIT", 16)
    monkeypatch.setattr(classification, "Task", Doubting)
    task: Any = toy_tasks.make_task("classification", {"train": toy_tasks.examples("classification", 16)})
    assert task.loss_weights == {"": 1.0, "sure": 0.1}
    expected = one_update(task, "train", 1, MeshConfig(), 1)
    found = one_update(task, "train", *LAYOUTS["eight devices, sharded"])
    compare(found, expected, loss_tolerance=2e-6, gradient_tolerance=2e-5)
    evaluation = Evaluation(task, meshes.make_mesh(MeshConfig()), Phase(1, 16, 32, "train"), 16)
    task.heldout_parts = ("train",)
    assert {"loss", "accuracy", "sure_loss"} <= set(evaluation.metric_names())


class CountsOutputs(Line):
    """Counts the rows that it finds hard."""

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        losses = super().loss(variables, batch, rng)
        hard = jnp.sum(batch["inputs"] @ variables.params["dense"]["kernel"] > 0.0).astype(jnp.float32)
        return losses._replace(terms={"loss": losses.terms["loss"]._replace(count=hard)})


class CountsByChance(Line):
    """Counts rows that are drawn."""

    def loss(self, variables: Variables, batch: Batch, rng: Any) -> Losses:
        losses = super().loss(variables, batch, rng)
        drawn = jnp.sum(rng.bits(batch["labels"].shape) > jnp.uint32(2**31)).astype(jnp.float32)
        return losses._replace(terms={"loss": losses.terms["loss"]._replace(count=drawn)})


@pytest.mark.parametrize("kind", [CountsOutputs, CountsByChance])
def test_a_count_that_does_not_follow_from_the_batch_is_refused(kind: type[Line]) -> None:
    batch = {"inputs": jnp.ones((4, WIDTH)), "labels": jnp.ones(4)}
    rng = RowRng.create(0, 0, jnp.arange(4, dtype=jnp.uint32))
    variables = jax.eval_shape(lambda: meshes.unbox(Line().init(jax.random.key(0))))
    assert float(count_targets(Line(), variables, batch, rng)["loss"]) == 4
    with pytest.raises(CountError, match="the count of the loss term 'loss' depends on what the model computes"):
        count_targets(kind(), variables, batch, rng)
