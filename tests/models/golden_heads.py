"""Fixed batches for every head, the loss of each written out, and where the golden arrays lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.config import ModelConfig
from tests.interchange.heads import HEADS, module_of
from tests.interchange.outputs import module_outputs

KINDS = ("encoder", "masked_lm", "classification", "regression", "tagging", "span_qa", "multiple_choice")
SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 32, "max_length": 16}
V, ROWS, LENGTH, CHOICES = 64, 4, 12, 3
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
IGNORED = -100  # label of a token that does not count, as in transformers


def golden(kind: str) -> Path:
    return Path(__file__).with_name(f"golden_{kind}.npz")


def batch_of(kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of three lengths, padded, with targets; ids [B, L], of multiple choice [B, C, L]."""
    rng = np.random.default_rng(seed)
    shape = (ROWS, CHOICES, LENGTH) if kind == "multiple_choice" else (ROWS, LENGTH)
    real = np.array([LENGTH, LENGTH - 2, LENGTH - 5, LENGTH]).reshape(ROWS, *(1,) * (len(shape) - 1))
    mask = np.broadcast_to(np.arange(LENGTH) < real, shape)
    batch = {
        "input_ids": rng.integers(5, V, shape).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, shape).astype(np.int32),
        "attention_mask": np.ascontiguousarray(mask, np.int32),
    }
    head, counted = HEADS[kind], mask & (rng.random(shape) < 0.6)
    if kind == "classification":
        batch["labels"] = rng.integers(0, head.num_outputs, ROWS)
    elif kind == "regression":
        batch["labels"] = rng.normal(size=ROWS)
    elif kind == "tagging":
        batch["labels"] = np.where(counted, rng.integers(0, head.num_outputs, shape), IGNORED)
    elif kind == "masked_lm":
        batch["labels"] = np.where(counted, rng.integers(5, V, shape), IGNORED)
    elif kind == "span_qa":
        batch["start_positions"] = np.array([3, 0, 2, 5])
        batch["end_positions"] = np.array([4, 0, 2, 11])
    elif kind == "multiple_choice":
        batch["labels"] = np.array([2, 0, 1, 1])
    else:
        batch["sequence_weights"] = rng.normal(size=(*shape, SIZES["hidden_size"])) * mask[..., None]
        batch["pooled_weights"] = rng.normal(size=(ROWS, SIZES["hidden_size"]))
    return batch


def loss_of(kind: str, config: ModelConfig, params: Any, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(loss as transformers reckons it, named outputs)."""
    inputs = {name: batch[name] for name in INPUTS}
    module = module_of(HEADS[kind], config)
    if module is None:
        outputs = module_outputs(params, config, inputs, HEADS[kind])
    else:
        outputs = module.apply({"params": params}, inputs)
    if kind == "encoder":
        kept = {"sequence": outputs["sequence"], "pooled": outputs["pooled"]}
        return sum(jnp.sum(x * batch[f"{name}_weights"]) / ROWS for name, x in kept.items()), kept  # type: ignore[return-value]
    if kind == "span_qa":
        kept = {name: outputs[name] for name in ("start_logits", "end_logits")}
        return sum(_cross_entropy(x, batch[name.replace("logits", "positions")]) for name, x in kept.items()) / 2, kept
    logits = outputs["mlm_logits" if kind == "masked_lm" else "logits"]
    if kind == "regression":
        return jnp.mean((logits[:, 0] - batch["labels"]) ** 2), {"logits": logits}
    return _cross_entropy(logits, batch["labels"]), {"logits": logits}


def _cross_entropy(logits: jax.Array, labels: Any) -> jax.Array:
    counted = labels != IGNORED
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.where(counted, labels, 0)[..., None], -1)[..., 0]
    return jnp.sum(nll * counted) / jnp.sum(counted)
