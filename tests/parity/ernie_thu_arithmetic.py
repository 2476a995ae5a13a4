"""ERNIE with entities (Zhang et al. 2019) as straight-line arithmetic in torch, written without reading bert_jax.

A Linear weight is [out, in]. Layer norms have an epsilon of 1e-12, gelu is the erf form, masked scores get -10000. With
tokens w [B, L, H], entities e [B, L, E] and the entity mask m [B, L], the kinds of layers are

  sim   w = BERT layer(w), and e passes through
  mix   w' = token attention(w), e' = e * m
  norm  w' = token attention(w), e' = LN(Dense(attention(e; keys masked by m)) + e) * m

  mix, norm: h = gelu(W_t w' + b_t + W_e e' + b_e); w = LN(W_o h + b_o + w'); e = LN(W_oe h + b_oe + e')

It equals the public model file (thunlp/ERNIE, code/knowledge_bert/modeling.py) in float64: states of all layers, logits
and loss within 1e-10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

EPS = 1e-12
Params = Mapping[str, Any]


def shapes(kinds: Sequence[str], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of encoder, pooler and entity head; sizes are H, E, F (inner), V and P."""
    h, e, f, v, p = (sizes[name] for name in "HEFVP")
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word": (v, h),
        "embeddings.position": (p, h),
        "embeddings.token_type": (2, h),
    }

    def norm(name: str, size: int) -> None:
        found.update({f"{name}.weight": (size,), f"{name}.bias": (size,)})

    def dense(name: str, inputs: int, outputs: int) -> None:
        found.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    norm("embeddings.norm", h)
    for i, kind in enumerate(kinds):
        at = f"layer.{i}."
        for part in ("query", "key", "value", "attention_output"):
            dense(at + part, h, h)
            if kind == "norm":
                dense(f"{at}entity_{part}", e, e)
        norm(f"{at}attention_norm", h)
        dense(f"{at}inner", h, f)
        dense(f"{at}output", f, h)
        norm(f"{at}output_norm", h)
        if kind == "norm":
            norm(f"{at}entity_attention_norm", e)
        if kind != "sim":
            dense(f"{at}entity_inner", e, f)
            dense(f"{at}entity_output", f, e)
            norm(f"{at}entity_output_norm", e)
    dense("pooler", h, h)
    dense("entity_head.dense", h, e)
    norm("entity_head.norm", e)
    return found


def draw(of: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    """Return float64 parameters from N(0, 0.2); gains of layer norms are 1 more."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: 0.2 * torch.randn(*shape, generator=generator, dtype=torch.float64) for name, shape in of.items()}
    return {name: x + 1.0 if name.endswith("norm.weight") else x for name, x in drawn.items()}


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def dense(p: Params, name: str, x: Any) -> Any:
    return x @ p[name + ".weight"].T + p[name + ".bias"]


def norm(p: Params, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return p[name + ".weight"] * (x - mean) / torch.sqrt(variance + EPS) + p[name + ".bias"]


def attend(factors: tuple[Any, Any, Any], heads: int, key_mask: Any) -> Any:
    """Return [B, L, D] for query, key and value [B, L, D] and key_mask [B, L], one head after another."""
    size, outputs = factors[0].shape[-1] // heads, []
    for head in range(heads):
        query, key, value = (x[..., head * size : (head + 1) * size] for x in factors)
        scores = query @ key.transpose(1, 2) / math.sqrt(size) + (1.0 - key_mask)[:, None, :] * -10000.0
        outputs.append(torch.softmax(scores, -1) @ value)
    return torch.cat(outputs, -1)


def attention_block(p: Params, at: str, x: Any, heads: int, key_mask: Any) -> Any:
    query, key, value = (dense(p, at + name, x) for name in ("query", "key", "value"))
    mixed = attend((query, key, value), heads, key_mask)
    return norm(p, at + "attention_norm", dense(p, at + "attention_output", mixed) + x)


def encode(p: Params, kinds: Sequence[str], heads: tuple[int, int], batch: Mapping[str, Any]) -> list[Any]:
    """Return the states of tokens: of the embeddings, and after each layer.

    Args:
      heads: of tokens and of entities.
      batch: ids, types, mask, entity_vectors [B, L, E] and entity_mask [B, L].
    """
    ids, mask, e, m = batch["ids"], batch["mask"].double(), batch["entity_vectors"], batch["entity_mask"]
    w = p["embeddings.word"][ids] + p["embeddings.position"][: ids.shape[1]][None]
    w = norm(p, "embeddings.norm", w + p["embeddings.token_type"][batch["types"]])
    states = [w]
    for i, kind in enumerate(kinds):
        at = f"layer.{i}."
        w = attention_block(p, at, w, heads[0], mask)
        inner = dense(p, at + "inner", w)
        if kind != "sim":
            e = attention_block(p, at + "entity_", e, heads[1], m) if kind == "norm" else e
            e = e * m[..., None]
            inner = inner + dense(p, at + "entity_inner", e)
            e = norm(p, at + "entity_output_norm", dense(p, at + "entity_output", gelu(inner)) + e)
        w = norm(p, at + "output_norm", dense(p, at + "output", gelu(inner)) + w)
        states.append(w)
    return states


def entity_logits(p: Params, w: Any, candidates: Any) -> Any:
    """Return [B, L, C] for w [B, L, H] and candidates [C, E]."""
    return norm(p, "entity_head.norm", gelu(dense(p, "entity_head.dense", w))) @ candidates.T


def alignment_loss(logits: Any, labels: Any) -> Any:
    """Return the mean over labels of 0 or more of -log softmax(logits) at the label."""
    keep = labels >= 0
    return -torch.log_softmax(logits, -1)[keep][torch.arange(int(keep.sum())), labels[keep]].mean()
