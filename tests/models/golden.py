"""A fixed batch, its loss, where the golden arrays lie, and how to read them."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.interchange.conversion import put
from bert_jax.models.config import ModelConfig
from tests.models.helpers import pretraining

GOLDEN = Path(__file__).with_name("golden_bert.npz")


def tree_of(stored: Any, kind: str) -> dict[str, Any]:
    """The arrays of a golden file whose names begin with ``kind`` and a slash, as a tree."""
    found: dict[str, Any] = {}
    for name in stored.files:
        if name.startswith(f"{kind}/"):
            put(found, name.removeprefix(f"{kind}/"), stored[name])
    return found


def write_golden(kind: str, params: Any, batch: dict[str, Any], gradients: dict[str, Any], **others: Any) -> None:
    """Store weights, inputs and what torch gives for them, in ``golden_<kind>.npz``."""
    flat = {"/".join(str(k.key) for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    np.savez_compressed(
        GOLDEN.with_name(f"golden_{kind}.npz"),
        **{f"params/{name}": np.asarray(x) for name, x in flat.items()},
        **{f"batch/{name}": np.asarray(x) for name, x in batch.items()},
        **{f"gradients/{name}": x for name, x in gradients.items() if "key/bias" not in name},
        **{name: np.float32(x) for name, x in others.items()},
    )


def batch_of(vocab_size: int, rows: int = 4, length: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """Random rows with padding and uneven numbers of masked positions."""
    rng = np.random.default_rng(seed)
    real = np.array([length, length - 3, length - 7, length][:rows])
    return {
        "input_ids": rng.integers(5, vocab_size, (rows, length)).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, (rows, length)).astype(np.int32),
        "attention_mask": (np.arange(length)[None] < real[:, None]).astype(np.int32),
        "masked_positions": np.sort(rng.integers(1, real.min(), (rows, 3)), axis=1).astype(np.int32),
        "masked_labels": rng.integers(5, vocab_size, (rows, 3)).astype(np.int32),
        "masked_weights": np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], np.float32)[:rows],
        "cls_positions": np.zeros((rows, 1), np.int32),
        "next_sentence_labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
    }


def loss_of(config: ModelConfig, params: Any, batch: dict[str, np.ndarray]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """MLM mean plus NSP mean, and the outputs, written out independently of the objective."""
    names = ("input_ids", "token_type_ids", "task_type_ids", "attention_mask", "masked_positions", "cls_positions")
    outputs = pretraining(config).apply({"params": params}, {name: batch[name] for name in names if name in batch})

    def nll(logits: jax.Array, labels: np.ndarray) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]

    weights = batch["masked_weights"]
    mlm = jnp.sum(nll(outputs["mlm_logits"], batch["masked_labels"]) * weights) / weights.sum()
    return mlm + jnp.mean(nll(outputs["nsp_logits"], batch["next_sentence_labels"])), outputs
