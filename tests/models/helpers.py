"""Tiny models and batches for the tests of models and interchange."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders import bert
from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, Model

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "mlp_dim": 64,
    "max_length": 32,
}


def tiny(**fields: Any) -> ModelConfig:
    return bert.Config(**(TINY | fields))


def pretraining(config: ModelConfig) -> Model:
    """Return the model of BERT's own pretraining."""
    return Model(config, (POOLER, LM_HEAD, NSP_HEAD))


def random_batch(
    seed: int = 0, rows: int = 4, length: int = 16, masked: int = 3, vocab: int = 64
) -> dict[str, np.ndarray]:
    """Rows of different lengths, padded; the inputs of ``pretraining``."""
    rng = np.random.default_rng(seed)
    lengths = np.linspace(length, length // 2, rows).astype(int)
    mask = np.arange(length)[None, :] < lengths[:, None]
    return {
        "input_ids": np.where(mask, rng.integers(5, vocab, (rows, length)), 0).astype(np.int32),
        "token_type_ids": (mask & (np.arange(length)[None, :] > length // 3)).astype(np.int32),
        "attention_mask": mask.astype(np.int32),
        "masked_positions": np.sort(rng.integers(1, length // 2, (rows, masked)), axis=1).astype(np.int32),
        "cls_positions": np.zeros((rows, 1), np.int32),
    }


def random_targets(seed: int = 1, rows: int = 4, masked: int = 3, vocab: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = np.ones((rows, masked), np.float32)
    weights[-1, -1] = 0.0
    return {
        "masked_labels": rng.integers(5, vocab, (rows, masked)).astype(np.int32),
        "masked_weights": weights,
        "next_sentence_labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
    }


def random_params(config: ModelConfig, seed: int = 0) -> Any:
    """Every parameter from N(0, 0.2), layer-norm gains around 1: the small initial values would hide mistakes."""
    return jax.tree.map(np.copy, _drawn(config, seed))


@functools.cache
def _drawn(config: ModelConfig, seed: int) -> Any:
    batch = random_batch(vocab=config.vocab_size)
    shapes = jax.eval_shape(lambda: nn.unbox(pretraining(config).init(jax.random.key(0), batch))["params"])
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        value = rng.normal(0.0, 0.2, leaf.shape)
        return (value + (path[-1].key == "scale")).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def loss(model: Model, params: Any, batch: Any, targets: Any, rng: Any = None) -> jax.Array:
    """Mean over masked positions plus mean over pairs, written out."""
    out = model.apply({"params": params}, batch, rng)
    assert isinstance(out, dict)
    weights = targets["masked_weights"]
    nll = _nll(out["mlm_logits"], targets["masked_labels"])
    return jnp.sum(nll * weights) / jnp.sum(weights) + jnp.mean(
        _nll(out["nsp_logits"], targets["next_sentence_labels"])
    )


def _nll(logits: jax.Array, labels: Any) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(labels)[..., None], axis=-1)[..., 0]


def influence(encoder: nn.Module, params: Any, ids: jax.Array, **inputs: Any) -> np.ndarray:
    """[query, key]: largest change of a query's output when the token at the key, of the only row, is replaced."""

    @jax.jit
    def run(ids: jax.Array) -> jax.Array:
        batch = {"input_ids": ids, "token_type_ids": jnp.zeros_like(ids), **inputs}
        return encoder.apply({"params": params}, batch).sequence  # type: ignore[union-attr, no-any-return]

    before = run(ids)
    changed = [run(ids.at[0, key].set(5 + (ids[0, key] + 7) % 50)) for key in range(ids.shape[1])]
    return np.stack([np.abs(np.asarray(c - before))[0].max(axis=-1) for c in changed], axis=1)


def as_jax(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)
