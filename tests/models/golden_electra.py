"""A fixed batch of ELECTRA's pretraining, its loss by the objective, and where the golden arrays lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.encoders import electra
from bert_jax.objectives import replaced_tokens
from bert_jax.objectives.base import Setting
from tests.models import golden

GOLDEN = Path(__file__).with_name("golden_electra.npz")
V, LENGTH = 64, 16
SIZES: dict[str, int] = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 32,
    "max_length": LENGTH,
    "embedding_size": 12,
}


def batch_of() -> dict[str, np.ndarray]:
    """Random rows with padding and uneven numbers of masked positions, each masked once."""
    batch = golden.batch_of(V, length=LENGTH)
    batch["masked_positions"] = np.tile(np.array([[2, 5, 7]], np.int32), (4, 1))
    batch["row_weights"] = np.ones(4, np.float32)
    return {name: x for name, x in batch.items() if name not in ("cls_positions", "next_sentence_labels")}


def objective(config: electra.Config) -> replaced_tokens.Objective:
    """The objective, whose generator is half as wide as the model, on rows of pairs."""
    settings = replaced_tokens.Config(generator_size=0.5, arrangement="sentence_pairs")
    return replaced_tokens.Objective(settings, Setting(config, {"phase1": LENGTH}))


def loss_of(task: replaced_tokens.Objective, params: Any, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of a step, and the outputs; the draws are those of an evaluation."""
    batch = {name: jnp.asarray(x) for name, x in batch.items()}
    outputs = task.forward(replaced_tokens.Variables(params, {}), batch, None)
    terms = task.terms(task.config)
    sums = {name: term.loss(outputs, batch) for name, term in terms.items()}
    return sum(terms[name].weight * one.value / one.count for name, one in sums.items()), outputs  # type: ignore[return-value]
