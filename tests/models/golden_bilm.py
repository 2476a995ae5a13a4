"""The tiny bidirectional language model whose vectors, loss and gradients torch has given, and its batch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bert_jax.models.encoders import bilm
from bert_jax.models.model import Model
from bert_jax.objectives import bilm as objective
from bert_jax.objectives.base import Setting
from bert_jax.task import Variables
from tests.models.golden import GOLDEN as OF_BERT

GOLDEN = OF_BERT.with_name("golden_bilm.npz")
V, P, F, LAYERS, ROWS, LENGTH = 24, 6, 10, 2, 3, 9
LENGTHS = np.array([9, 6, 2])


def config_of(**changes: Any) -> bilm.Config:
    return bilm.Config(**{"vocab_size": V, "hidden_size": 2 * P, "num_layers": LAYERS, "cell_size": F, **changes})


def batch_of(seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of unlike lengths, padded at the right."""
    mask = (np.arange(LENGTH) < LENGTHS[:, None]).astype(np.int32)
    ids = np.random.default_rng(seed).integers(1, V, mask.shape).astype(np.int32) * mask
    return {"input_ids": ids, "attention_mask": mask, "row_weights": np.ones(ROWS, np.float32)}


def loss_of(config: bilm.Config, params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
    """Return the loss of the objective, and all hidden states [N + 1, B, L, 2P], zeros at padding."""
    terms = task_of(config).loss(Variables(params, {}), batch, None).terms
    encoder: Any = Model(config).bind({"params": {"encoder": params["encoder"]}}).encoder
    hidden = encoder(batch, None, "all").hidden * batch["attention_mask"][None, :, :, None]
    return sum(0.5 * term.value / term.count for term in terms.values()), hidden  # type: ignore[return-value]


def task_of(config: bilm.Config, length: int = LENGTH, **changes: Any) -> objective.Objective:
    return objective.Objective(objective.Config(**changes), Setting(config, {"phase1": length}))
