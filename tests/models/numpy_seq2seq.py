"""An encoder with a decoder in numpy, sentence by sentence, written from the papers alone; float64.

Vaswani et al. 2017, section 3; Song et al. 2019, sections 3.2 and 4.1; Devlin et al. 2019 for the head of a BERT.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def norm(x: np.ndarray, of: Any, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * of["scale"] + of["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def attention(queries: np.ndarray, keys: np.ndarray, seen: np.ndarray, of: Any) -> np.ndarray:
    """Each query [Q, D] reads the keys [K, D] that ``seen`` [Q, K] allows, head by head."""
    made = []
    for head in range(of["query"]["kernel"].shape[1]):
        q, k, v = (
            x @ of[name]["kernel"][:, head] + of[name]["bias"][head]
            for name, x in (("query", queries), ("key", keys), ("value", keys))
        )
        scores = np.where(seen, q @ k.T / math.sqrt(q.shape[-1]), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        made.append(weights / weights.sum(-1, keepdims=True) @ v @ of["output"]["kernel"][head])
    return np.sum(made, axis=0) + of["output"]["bias"]


def layer(x: np.ndarray, seen: np.ndarray, of: Any, eps: float, source: Any = None) -> np.ndarray:
    """Self-attention, attention to the ``source`` (vectors, seen) if there is one, and the MLP; norms come after."""
    x = norm(x + attention(x, x, seen, of["attention"]), of["attention_layer_norm"], eps)
    if source is not None:
        read = attention(x, source[0], source[1], of["cross_attention"])
        x = norm(x + read, of["cross_attention_layer_norm"], eps)
    wide = gelu(x @ of["mlp"]["input"]["kernel"] + of["mlp"]["input"]["bias"])
    return norm(x + wide @ of["mlp"]["output"]["kernel"] + of["mlp"]["output"]["bias"], of["mlp_layer_norm"], eps)


def embed(ids: Any, places: Any, of: Any, scale: float, eps: float) -> np.ndarray:
    return norm(of["word_embeddings"][ids] * scale + of["position_embeddings"][places], of["layer_norm"], eps)


def logits(
    params: Any, config: Any, source: list[int], target: list[int], places: list[int], hidden: tuple[int, ...] = ()
) -> np.ndarray:
    """The scores [T, V] of the token after each of ``target``, which stand at ``places`` of the sentence.

    ``hidden``: positions of the source that the decoder may not read.
    """
    encoder, eps = params["encoder"], config.layer_norm_eps
    scale = math.sqrt(config.hidden_size) if config.word_scale == "root" else 1.0
    x = embed(source, range(len(source)), encoder["embeddings"], scale, eps)
    for number in range(config.num_layers):
        x = layer(x, np.ones((len(source),) * 2, bool), encoder[f"layer_{number}"], eps)
    y = embed(target, places, encoder["embeddings"], scale, eps)
    readable = np.array([[place not in hidden for place in range(len(source))]] * len(target))
    for number in range(config.num_decoder_layers):
        y = layer(y, np.tri(len(target), dtype=bool), encoder["decoder"][f"layer_{number}"], eps, (x, readable))
    table, bias = encoder["embeddings"]["word_embeddings"], 0.0
    if config.lm_head == "bert":
        head = params["mlm_head"]
        y = norm(gelu(y @ head["transform"]["kernel"] + head["transform"]["bias"]), head["layer_norm"], eps)
        bias = head["output_bias"]
    return y @ table.T + bias


def surprise(scores: np.ndarray, labels: list[int]) -> float:
    """The sum of -log p of the labels, in nats."""
    largest = scores.max(-1, keepdims=True)
    normaliser = largest[:, 0] + np.log(np.exp(scores - largest).sum(-1))
    return float((normaliser - scores[np.arange(len(labels)), labels]).sum())
