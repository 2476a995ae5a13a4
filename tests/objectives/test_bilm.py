"""Two language models: what each direction predicts, on which rows, and how their state goes on from step to step."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.encoders import bert, bilm
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.objectives import bilm as objective
from bert_jax.objectives import mlm
from bert_jax.objectives.base import Setting
from bert_jax.records import Feature, Sum
from bert_jax.rows.masking import MaskingConfig
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from tests.models.golden_bilm import V, config_of, task_of
from tests.objectives.texts import LENGTH, counts_of, rows_of
from tests.training import test_memory
from tests.training.test_memory import LANES, LAYOUTS, STEPS, Text

text = test_memory.text


def inputs(**rows: Any) -> dict[str, list[Any]]:
    batch = task_of(config_of()).inputs({name: jnp.asarray(x) for name, x in rows.items()})
    return {name: np.asarray(x).tolist() for name, x in batch.items()}


def test_both_directions_predict_their_neighbours_in_the_same_sequence() -> None:
    ids, sequences = np.array([[7, 8, 9, 5, 6, 0]]), np.array([[1, 1, 1, 2, 2, 0]])
    rows = {"input_ids": ids, "attention_mask": (sequences > 0) * 1, "row_weights": np.ones(1, np.float32)}
    packed = inputs(**rows, sequence_ids=sequences)
    forward = [(w, label) for w, label in zip(packed["forward_weights"][0], packed["forward_labels"][0], strict=True)]
    backward = [
        (w, label) for w, label in zip(packed["backward_weights"][0], packed["backward_labels"][0], strict=True)
    ]
    assert [label for weight, label in forward if weight] == [8, 9, 6]
    assert [label for weight, label in backward if weight] == [7, 8, 5]
    assert packed["forward_weights"] == [[1, 1, 0, 1, 0, 0]]
    assert packed["backward_weights"] == [[0, 1, 1, 0, 1, 0]]
    alone = inputs(**rows)
    assert (alone["forward_weights"], alone["backward_weights"]) == ([[1, 1, 1, 1, 0, 0]], [[0, 1, 1, 1, 1, 0]])


def test_the_token_after_a_row_is_predicted_and_the_token_before_it_is_not() -> None:
    rows = {"input_ids": np.array([[1, 2, 3], [4, 5, 6]]), "next_ids": np.array([4, 7])}
    rows |= {"attention_mask": np.ones((2, 3), np.int32), "row_weights": np.array([1, 0], np.float32)}
    found = inputs(**rows)
    assert found["forward_labels"] == [[2, 3, 4], [5, 6, 7]]
    assert found["forward_weights"] == [[1, 1, 1], [0, 0, 0]]
    assert found["backward_weights"] == [[0, 1, 1], [0, 0, 0]]
    assert found["backward_labels"][0][1:] == [1, 2]


@pytest.mark.parametrize("packing", ["none", "packed", "bucketed"])
def test_the_loss_is_the_mean_of_two_means_over_the_same_number_of_tokens(text: Text, packing: str) -> None:
    config = dataclasses.replace(config_of(max_length=LENGTH), vocab_size=text[1].size)
    task = objective.Objective(objective.Config(packing=packing), Setting(config, {"phase1": LENGTH})).with_text(*text)
    counts = counts_of(task, rows_of(task, 4))
    assert task.loss_weights == {"forward": 0.5, "backward": 0.5}
    assert counts["forward"] == counts["backward"] > 0
    sums = {f"{name}_loss": Sum(value, 10.0) for name, value in (("forward", 20.0), ("backward", 40.0))}
    found = task.summary(sums)
    assert found["forward_perplexity"] == pytest.approx(math.exp(2))
    assert found["perplexity"] == pytest.approx(math.exp(3)), "of the mean loss"
    assert "perplexity" not in task.summary({})


def test_flops_are_of_both_directions_and_both_softmaxes() -> None:
    config = config_of()
    assert task_of(config).flops_per_row["phase1"] == 6.0 * (config.products(9) + 2 * 9 * V * config.embedding_size)


BOTH, APART = "reads both sides", "reads both ways, apart"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: mlm.Objective(mlm.Config(), Setting(config_of(), {"phase1": 9})),
            f"'mlm' {BOTH}, and .* {APART} alone",
        ),
        (
            lambda: objective.Objective(objective.Config(), Setting(bert.Config(50), {"phase1": 9})),
            f"^objective 'bilm' {APART}, and encoder 'bert' {BOTH} alone; take another",
        ),
        (
            lambda: task_of(config_of(memory_length=1)),
            "arrangement 'sentences' has rows that do not go on .* 'streams'",
        ),
        (
            lambda: task_of(config_of(memory_length=1), arrangement="streams", packing="packed"),
            "packing is 'packed', and a row of the arrangement 'streams'",
        ),
        (
            lambda: task_of(config_of(), masking=MaskingConfig(rate=0.3)),
            "config.objective.masking is set, but the objective 'bilm' masks nothing",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


# ---- State from step to step -----------------------------------------------------------------------------------------

TENSOR = {"data, fsdp and tensor": (8, MeshConfig(data=2, fsdp=2, tensor=2), 1)}


def lanes_task(text: Text, memory: int = 1) -> objective.Objective:
    config = bilm.Config(text[1].size, 256, 2, 24, memory_length=memory, dropout_rate=0.0)  # wide enough to be split
    setting = Setting(config, {"phase1": test_memory.LENGTH}, batch_sizes={"phase1": LANES})
    return objective.Objective(objective.Config(arrangement="streams"), setting).with_text(*text)


@functools.cache
def trained(text: Text, layout: str) -> list[tuple[float, dict[str, np.ndarray]]]:
    """Return the forward loss of each step and the memory after it; the rate is next to nothing."""
    task, (devices, mesh_config, micro_batches) = lanes_task(text), {**LAYOUTS, **TENSOR}[layout]
    of = test_memory.experiment_of(mesh_config, micro_batches)
    mesh = of.make_mesh(jax.devices()[:devices])
    state, frozen = of.initial_state(task, mesh).make(0)
    assert meshes.is_split(state.params) == (layout == "sharded update")
    state.params = jax.tree.map(lambda x: 2 * x, state.params)  # so that a state makes a difference
    step, found, before = of.jitted_step(task, "phase1", of.phases.phases[0], state), [], Sum(0.0, 0.0)
    with meshes.activations(mesh):
        for batch in test_memory.batches_of(task):  # type: ignore[arg-type]
            state = step(state, frozen, meshes.to_devices(batch, mesh))
            now = jax.device_get(state.metrics["forward_loss"])
            found.append((Sum(now.value - before.value, now.count - before.count).mean(), jax.device_get(state.memory)))
            before = now
    return found


def test_the_state_of_a_lane_is_as_of_the_whole_text(text: Text) -> None:
    """Until the end of an epoch, each step has the loss of its part of one long row."""
    task = lanes_task(text)
    assert task.memory == {"past_hidden": Feature((2, 128), "float32"), "past_cells": Feature((2, 24), "float32")}
    assert lanes_task(text, memory=0).memory == {}
    batches = test_memory.batches_of(task)  # type: ignore[arg-type]
    per_epoch = task.source("train", "phase1", 0).for_batches(LANES).rows_per_epoch // LANES
    assert 1 < per_epoch < STEPS
    ids = np.concatenate([batch["input_ids"] for batch in batches[:per_epoch]], axis=1)
    labels = np.concatenate([ids[:, 1:], batches[per_epoch - 1]["next_ids"][:, None]], axis=1)
    of = test_memory.experiment_of()
    params = of.initial_state(task, of.make_mesh(jax.devices()[:1])).make(0)[0].params
    params = jax.tree.map(lambda x: 2 * x, params)

    @jax.jit
    def losses(ids: jax.Array, labels: jax.Array) -> jax.Array:
        batch = {"input_ids": ids, "attention_mask": jnp.ones_like(ids)}
        outputs: Any = Model(task.setting.model, (LM_HEAD,)).apply({"params": params}, batch)
        chances = jax.nn.log_softmax(outputs["forward_logits"])
        return -jnp.take_along_axis(chances, labels[..., None], axis=-1)[..., 0]

    wanted = losses(ids, labels).mean(axis=0).reshape(per_epoch, -1).mean(axis=1)
    found = [loss for loss, _ in trained(text, "one device")][:per_epoch]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    anew = losses(*(x.reshape(-1, test_memory.LENGTH) for x in (ids, labels))).mean(axis=1)
    lost = anew.reshape(LANES, per_epoch).mean(axis=0)
    assert np.abs(lost - wanted)[1:].min() > 0.01, "the power check: what a state that is lost would give"


@pytest.mark.parametrize(
    "layout", ["4 micro-batches", "sharded update", *(pytest.param(name, marks=pytest.mark.heavy) for name in TENSOR)]
)
def test_every_layout_hands_on_the_same_state(text: Text, layout: str) -> None:
    for (loss, memory), (wanted, kept) in zip(trained(text, layout), trained(text, "one device"), strict=True):
        assert loss == pytest.approx(wanted, 1e-5)
        for name, value in kept.items():
            np.testing.assert_allclose(memory[name], value, rtol=1e-3, atol=1e-3)
    lanes = trained(text, "one device")[-1][1]["past_cells"]
    assert np.abs(np.diff(lanes, axis=0)).max(axis=(1, 2)).min() > 0.1, "each lane has a state of its own"
