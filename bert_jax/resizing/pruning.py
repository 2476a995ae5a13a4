"""Prunes a fine-tuned model: takes out the MLP units and layers that matter least on labelled examples.

The importance of a unit or layer is |w . dL/dw| of the weights w by which it adds to its input, summed over examples:
the slope of the loss at a gate on what it adds (Michel et al. 2019, section 4.1; Molchanov et al. 2017, section 2.2).

Classes of transformers have one width of all MLPs, so every layer keeps as many units; and heads of the width
hidden_size / num_heads, so that no class can hold fewer heads of the same width: heads stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import TransformerConfig
from bert_jax.models.transformer import UNROLLED
from bert_jax.records import Batch, Example
from bert_jax.runs.prediction import make_task
from bert_jax.task import Variables
from bert_jax.tasks.base import KIND, ExampleTask

BATCH_SIZE = 16  # rows whose gradients are computed at once


def pruned_config(model: TrainedModel, mlp: float, layers: int | None) -> TransformerConfig:
    """Return the config with the share ``mlp`` of the MLP units and with ``layers`` layers (None: all).

    Raises ``UserError`` if they cannot be kept, nothing would go, or no class of transformers has the model's head.
    """
    config, task = cast(TransformerConfig, model.config), model.facts["task"]["name"]
    if model.head is None or not model.head.task_parts:
        raise UserError(f"transformers has no class with the head of {task}, so the pruned model could not be written")
    if config.shares_layers:
        raise UserError(f"the layers of {model.source} share their parameters; one whose layers do not is needed")
    if any(block.gated or block != config.blocks[0] for block in config.blocks):
        raise UserError(
            f"{model.source} is of the encoder {config.encoder!r}, whose MLPs have gates or whose layers differ; one "
            "without gates and with layers that are all alike, such as BERT's, is needed"
        )
    if not 0 < mlp <= 1 or not 0 < (layers or config.num_layers) <= config.num_layers:
        raise UserError(f"--mlp above 0 and at most 1, and --layers from 1 to {config.num_layers}, are what can stay")
    units = max(1, round(mlp * config.mlp_dim))
    smaller = dataclasses.replace(config, num_layers=layers or config.num_layers, mlp_dim=units)
    if smaller == config:
        raise UserError("all units and layers would stay; give --mlp below 1 or fewer --layers")
    return smaller


def importance(model: TrainedModel, examples: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Return the importance of the MLP units, float64 [N, mlp_dim], and of the layers, float64 [N], without dropout.

    Raises ``UserError`` for an example that does not fit the task.
    """
    task = make_task(model, examples, "dev")
    of_rows = jax.jit(jax.vmap(lambda params, row: _of_row(task, params, row), (None, 0)))
    params, totals = jax.device_put(dict(model.params)), []
    source = task.source("eval", KIND, 0, "dev")
    for indices in np.split(np.arange(source.rows_per_epoch), range(BATCH_SIZE, source.rows_per_epoch, BATCH_SIZE)):
        batch = source.rows(np.zeros_like(indices), indices)
        totals.append([np.sum(jax.device_get(slopes), axis=0, dtype=float) for slopes in of_rows(params, batch)])
    units, layers = zip(*totals, strict=True)
    return sum(units), sum(layers)


def _of_row(task: ExampleTask, params: Any, row: Batch) -> tuple[jax.Array, jax.Array]:
    def loss(encoder: Any) -> jax.Array:
        batch = {name: value[None] for name, value in row.items()}
        terms = task.loss(Variables({**params, "encoder": encoder}, {}), batch, None).terms
        return sum((task.loss_weights[name] * term.value for name, term in terms.items()), jnp.zeros(()))

    slopes = jax.tree.map(jnp.multiply, params["encoder"], jax.grad(loss)(params["encoder"]))
    layers = [slopes[f"{UNROLLED}{i}"] for i in range(task.setting.model.num_layers)]
    units = [layer["mlp"]["output"]["kernel"].sum(axis=1) for layer in layers]
    adds = [jax.tree.leaves((layer["attention"]["output"], layer["mlp"]["output"])) for layer in layers]
    return jnp.abs(jnp.stack(units)), jnp.abs(jnp.stack([sum(jnp.sum(leaf) for leaf in leaves) for leaves in adds]))


def cut_model(model: TrainedModel, config: TransformerConfig, units: np.ndarray, layers: np.ndarray) -> TrainedModel:
    """Return the model with the layers and units of the highest importance, as many as ``config`` has, in order."""
    encoder = dict(model.params["encoder"])
    old_layers = [encoder.pop(f"{UNROLLED}{i}") for i in range(len(layers))]
    for new, old in enumerate(_highest(layers, config.num_layers)):
        layer, kept = old_layers[old], _highest(units[old], config.mlp_dim)
        inner, outer = layer["mlp"]["input"], layer["mlp"]["output"]
        inner = {"kernel": inner["kernel"][:, kept], "bias": inner["bias"][kept]}
        mlp = {"input": inner, "output": {**outer, "kernel": outer["kernel"][kept]}}
        encoder[f"{UNROLLED}{new}"] = {**layer, "mlp": mlp}
    return dataclasses.replace(model, params={**model.params, "encoder": encoder}, config=config)


def _highest(scores: np.ndarray, number: int) -> np.ndarray:
    """Return the places of the ``number`` highest scores, ascending; of equal scores, the first count."""
    return np.sort(np.argsort(-scores, kind="stable")[:number])
