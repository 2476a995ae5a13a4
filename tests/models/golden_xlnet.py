"""The tiny XLNet whose losses and gradients torch has given, its batches, and where they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.encoders import xlnet
from bert_jax.models.model import LM_HEAD, Model

GOLDEN = Path(__file__).with_name("golden_xlnet.npz")
V, LENGTH, MEMORY = 64, 10, 6
FIELDS: dict[str, Any] = {"hidden_size": 16, "num_layers": 3, "num_heads": 2, "mlp_dim": 32, "memory_length": MEMORY}


def config_of(**changes: Any) -> xlnet.Config:
    return xlnet.Config(**{"vocab_size": V, **FIELDS, **changes})


def batch_of(memory: bool = True, seed: int = 0) -> dict[str, np.ndarray]:
    """Three rows in a random order, with three segments; some tokens of each have rank -1, and four are predicted.

    The row of padding is padded at its left, as transformers pads.
    """
    rng = np.random.default_rng(seed)
    mask = np.arange(LENGTH)[None] >= np.array([[0], [0], [3]])
    ranks = np.stack([rng.permutation(LENGTH) for _ in range(3)])
    ranks = np.where((ranks < 4) & mask, ranks, -1).astype(np.int32)  # four are predicted in each row, in this order
    places = np.stack([np.argsort(np.where(row < 0, 99, row))[:4] for row in ranks]).astype(np.int32)
    batch = {
        "input_ids": rng.integers(0, V, mask.shape).astype(np.int32),
        "attention_mask": mask.astype(np.int32),
        "token_type_ids": np.where(mask, np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 2]), 3).astype(np.int32),
        "order_ids": ranks,
        "query_positions": places,
    }
    if memory:
        batch["past_states"] = rng.normal(size=(3, 3, MEMORY, FIELDS["hidden_size"])).astype(np.float32)
        batch["past_mask"] = np.ones((3, MEMORY), np.int32)
    return batch


def labels_of(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return the tokens at the queries, [B, P]."""
    return np.take_along_axis(batch["input_ids"], batch["query_positions"], axis=1)


def loss_of(config: xlnet.Config, params: Any, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the mean loss of the queries, and the outputs of the model."""
    labels = labels_of(batch)
    out: Any = Model(config, (LM_HEAD,)).apply({"params": params}, batch)
    given = jnp.take_along_axis(jax.nn.log_softmax(out["mlm_logits"]), labels[..., None], axis=-1)[..., 0]
    return -jnp.mean(given), out
