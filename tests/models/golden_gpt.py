"""The tiny GPT-1 and GPT-2 whose losses and gradients torch has given, and where they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.encoders import gpt, gpt2
from bert_jax.models.model import LM_HEAD, Model

KINDS: dict[str, type[gpt2.Config]] = {"gpt2": gpt2.Config, "gpt": gpt.Config}
V, LENGTH = 64, 16
FIELDS = {"hidden_size": 32, "num_layers": 3, "num_heads": 4, "mlp_dim": 128, "max_length": 20}


def golden(kind: str) -> Path:
    return Path(__file__).with_name(f"golden_{kind}.npz")


def config_of(kind: str, **changes: Any) -> gpt2.Config:
    fields: dict[str, Any] = FIELDS | changes
    return KINDS[kind](V, **fields)


def batch_of() -> dict[str, np.ndarray]:
    """Three rows, of which two end in padding."""
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH)[None] < np.array([[LENGTH], [LENGTH - 5], [3]])
    ids = np.where(mask, rng.integers(0, V, mask.shape), V - 1).astype(np.int32)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int32)}


def loss_of(config: gpt2.Config, params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
    """Return the mean loss of the next tokens, without padding, and the logits of all positions [B, L, V]."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    everywhere = jnp.tile(jnp.arange(ids.shape[1], dtype=jnp.int32), (len(ids), 1))
    logits = Model(config, (LM_HEAD,)).apply({"params": params}, {**batch, "masked_positions": everywhere})[
        "mlm_logits"
    ]
    given = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], axis=-1)[..., 0]
    return -jnp.sum(given * mask[:, 1:]) / jnp.sum(mask[:, 1:]), logits
