"""The tiny ModernBERT whose losses and gradients torch has given, and where they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.models.encoders import modernbert

GOLDEN = Path(__file__).parent / "golden_modernbert.npz"
V, LENGTH = 64, 120
# Four layers: global, two local, global; a token sees four to each side in a local layer, and rows have 15 windows, so
# that attention is computed in blocks.
FIELDS: dict[str, Any] = {
    "hidden_size": 32,
    "num_layers": 4,
    "num_heads": 4,
    "mlp_dim": 48,
    "max_length": 128,
    "local_attention": 8,
    "global_theta": 160_000.0,
    "local_theta": 10_000.0,
    "attention_output_dropout_rate": 0.0,
    "classifier_pooling": "cls",
}


def config_of(**changes: Any) -> modernbert.Config:
    return modernbert.Config(V, **FIELDS | changes)


def batch_of() -> dict[str, np.ndarray]:
    """Two rows, of which the second ends in padding; a third of the tokens is predicted."""
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH)[None] < np.array([[LENGTH], [LENGTH - 29]])
    return {
        "input_ids": np.where(mask, rng.integers(5, V, mask.shape), 0).astype(np.int32),
        "attention_mask": mask.astype(np.int32),
        "labels": np.where(mask & (rng.random(mask.shape) < 0.3), rng.integers(5, V, mask.shape), -100).astype(
            np.int32
        ),
    }
