"""GPT-1 and GPT-2 in numpy: the outputs from the tensors of a file, under the file's names (see ``numpy_models``).

Written after model.py of openai/gpt-2 and train.py of openai/finetune-transformer-lm, with a loop over the positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.interchange.numpy_layers import activated, normalised


def gpt_outputs(
    tensors: Mapping[str, np.ndarray], config: Any, batch: Mapping[str, np.ndarray], parts: frozenset[str]
) -> dict[str, np.ndarray]:
    """Return the outputs by name. A Conv1D's weight is [in, out]; queries, keys and values lie side by side in it."""
    own = {name.removeprefix("transformer."): array for name, array in tensors.items()}
    ids, heads = batch["input_ids"], config.num_heads
    first = config.encoder == "gpt"

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ own[f"{name}.weight"] + own[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return normalised(x, own[f"{name}.weight"], own[f"{name}.bias"], config.layer_norm_eps)

    def attention(name: str, x: np.ndarray) -> np.ndarray:
        query, key, value = np.split(dense(f"{name}.c_attn", x), 3, axis=-1)
        mixed = np.zeros_like(x)
        for at in range(x.shape[1]):
            for part in np.split(np.arange(x.shape[2]), heads):
                scores = np.einsum("bd,bkd->bk", query[:, at, part], key[:, : at + 1, part]) / np.sqrt(len(part))
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                mixed[:, at, part] = np.einsum("bk,bkd->bd", weights, value[:, : at + 1, part])
        return dense(f"{name}.c_proj", mixed)

    def mlp(name: str, x: np.ndarray) -> np.ndarray:
        return dense(f"{name}.c_proj", activated(dense(f"{name}.c_fc", x), config.activation))

    words, places = ("tokens_embed", "positions_embed") if first else ("wte", "wpe")
    x = own[f"{words}.weight"][ids] + own[f"{places}.weight"][: ids.shape[1]]
    for i in range(config.num_layers):
        layer = f"h.{i}"
        if first:
            x = norm(f"{layer}.ln_1", x + attention(f"{layer}.attn", x))
            x = norm(f"{layer}.ln_2", x + mlp(f"{layer}.mlp", x))
        else:
            x = x + attention(f"{layer}.attn", norm(f"{layer}.ln_1", x))
            x = x + mlp(f"{layer}.mlp", norm(f"{layer}.ln_2", x))
    found = {"sequence": x if first else norm("ln_f", x)}
    for part, name in {"classifier": "logits", "qa_outputs": "qa_logits"}.items():
        if part in parts:
            found[name] = found["sequence"] @ own[f"{part}.weight"].T + own[f"{part}.bias"]
    return found
