"""The tiny ERNIE with entities whose loss and gradients torch has given, and its batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.encoders import ernie_thu
from bert_jax.models.model import Model, Part
from bert_jax.objectives.entity_alignment import EntityHead, candidates

KINDS, HEADS = ("sim", "mix", "norm", "norm"), (4, 4)
SIZES = {"H": 24, "E": 12, "F": 40, "V": 50, "P": 16}
PARTS = (Part.of("entity_head", EntityHead),)


def config_of(**changes: Any) -> ernie_thu.Config:
    h, e, f, v, p = SIZES.values()
    entities = {"num_token_layers": 1, "entity_size": e, "num_entity_heads": HEADS[1]}
    return ernie_thu.Config(v, h, len(KINDS), HEADS[0], f, max_length=p, **{**entities, **changes})


def batch_of() -> dict[str, np.ndarray]:
    """Three padded rows: ``labels`` are their entities, of which ``entity_ids`` has one replaced and one removed."""
    rng = np.random.default_rng(11)
    lengths, shape = np.array([[10], [8], [6]]), (3, 10)
    mask = (np.arange(10)[None] < lengths).astype(np.int32)
    labels = np.zeros(shape, np.int32)
    labels[[0, 0, 1, 1, 2, 2], [3, 7, 2, 4, 1, 3]] = [4, 6, 4, 1, 5, 2]
    read = labels.copy()
    read[0, 7], read[1, 4] = 5, 0
    table = 0.7 * rng.normal(size=(8, SIZES["E"])) * (np.arange(8) > 0)[:, None]
    return {
        "input_ids": rng.integers(5, SIZES["V"], shape).astype(np.int32) * mask,
        "token_type_ids": mask * (np.arange(10)[None] >= lengths // 2),
        "attention_mask": mask,
        "entity_ids": read,
        "labels": labels,
        "table": table.astype(np.float32),
    }


def loss_of(config: ernie_thu.Config, params: Any, batch: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Return the mean loss of entities, the states of all layers, and the logits of all tokens."""
    table, labels = jnp.asarray(batch["table"], config.dtype), batch["labels"]
    known, classes = candidates(labels)
    places = jnp.broadcast_to(jnp.arange(labels.shape[1])[None], labels.shape)
    given = {**batch, "entity_vectors": table[batch["entity_ids"]], "entity_positions": places}
    out: Any = Model(config, PARTS).apply({"params": params}, given)
    hidden = ernie_thu.Encoder(config).apply({"params": params["encoder"]}, given, None, "all").hidden  # type: ignore[union-attr]
    logits = out["predicted_entities"] @ table[known[:6]].T  # five entities and none
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), classes[..., None], axis=-1)[..., 0]
    return jnp.sum(nll * (labels > 0)) / jnp.sum(labels > 0), (hidden, logits)
