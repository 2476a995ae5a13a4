"""XLNet in numpy: the outputs from the tensors of a file, under the file's names (see ``numpy_models``).

Written after modeling.py of zihangdai/xlnet, with a loop over the positions and without a shift of scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.interchange.numpy_layers import activated, normalised


def xlnet_outputs(
    tensors: Mapping[str, np.ndarray], config: Any, batch: Mapping[str, np.ndarray], parts: frozenset[str]
) -> dict[str, np.ndarray]:
    """Return the outputs by name, of the content stream, in which each token sees all real tokens."""
    own = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in tensors.items()}
    ids, mask, types = (batch[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    places = np.arange(ids.shape[1])

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return normalised(x, own[f"{name}.weight"], own[f"{name}.bias"], config.layer_norm_eps)

    def attention(name: str, x: np.ndarray) -> np.ndarray:
        query, key, value = (np.einsum("bld,dnk->blnk", x, own[f"{name}.{one}"]) for one in "qkv")
        bias, far, segment = (own[f"{name}.r_{one}_bias"] for one in "wrs")
        mixed = np.zeros_like(query)
        for at in places:
            angles = (at - places)[:, None] / 10000 ** (np.arange(0, config.hidden_size, 2) / config.hidden_size)
            distances = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
            q, r = query[:, at], np.einsum("ld,dnk->lnk", distances, own[f"{name}.r"])
            scores = np.einsum("bnk,blnk->bnl", q + bias, key) + np.einsum("bnk,lnk->bnl", q + far, r)
            of_segments = np.einsum("bnk,snk->bns", q + segment, own[f"{name}.seg_embed"])
            other = types != types[:, at : at + 1]
            scores += np.where(other[:, None], of_segments[..., 1:], of_segments[..., :1])
            scores = np.where(mask[:, None] > 0, scores / np.sqrt(query.shape[-1]), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            mixed[:, at] = np.einsum("bnl,blnk->bnk", weights, value)
        return np.einsum("blnk,dnk->bld", mixed, own[f"{name}.o"])

    x = own["word_embedding.weight"][ids]
    for i in range(config.num_layers):
        layer = f"layer.{i}"
        x = norm(f"{layer}.rel_attn.layer_norm", x + attention(f"{layer}.rel_attn", x))
        wide = activated(linear(f"{layer}.ff.layer_1", x), config.activation)
        x = norm(f"{layer}.ff.layer_norm", x + linear(f"{layer}.ff.layer_2", wide))
    found = {"sequence": x}
    if "mlm_head" in parts:
        found["mlm_logits"] = x @ own["word_embedding.weight"].T + own["lm_loss.bias"]
    if "pooler" in parts:
        last = x[np.arange(len(ids)), np.max(places * mask, axis=1)]
        found["pooled"] = np.tanh(linear("sequence_summary.summary", last))
    if "classifier" in parts:
        of_text = "pooled" in found
        found["logits"] = linear("logits_proj" if of_text else "classifier", found["pooled" if of_text else "sequence"])
    if "qa_outputs" in parts:
        found["qa_logits"] = linear("qa_outputs", x)
    return found
