"""A fixed batch of ALBERT's pretraining, its loss, and where the golden arrays lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.encoders import albert
from bert_jax.models.model import LM_HEAD, POOLER, SOP_HEAD, Model
from tests.models import golden

GOLDEN = Path(__file__).with_name("golden_albert.npz")
V = 64
SIZES: dict[str, int] = {
    "hidden_size": 16,
    "num_layers": 3,
    "num_heads": 2,
    "mlp_dim": 32,
    "max_length": 16,
    "embedding_size": 8,
}


def batch_of() -> dict[str, np.ndarray]:
    """Random rows with padding and uneven numbers of masked positions."""
    batch = golden.batch_of(V)
    return {name.replace("next_sentence", "sentence_order"): x for name, x in batch.items()}


def loss_of(config: albert.Config, params: Any, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """MLM mean plus SOP mean, and the outputs, written out independently of the objective."""
    outputs = Model(config, (POOLER, LM_HEAD, SOP_HEAD)).apply({"params": params}, batch)

    def nll(logits: jax.Array, labels: np.ndarray) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]

    weights = batch["masked_weights"]
    mlm = jnp.sum(nll(outputs["mlm_logits"], batch["masked_labels"]) * weights) / weights.sum()  # type: ignore[index]
    return mlm + jnp.mean(nll(outputs["sop_logits"], batch["sentence_order_labels"])), outputs  # type: ignore[index, return-value]
