"""Our parameter paths and Hugging Face's names, as data. Layer ``{i}`` stands for every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    ours: str  # path in the unrolled tree
    theirs: str  # name in a BertForPreTraining
    inputs: int = 0  # number of leading input axes of a kernel; 0: an array that is the same on both sides


def _dense(ours: str, theirs: str, inputs: int = 1) -> tuple[Entry, Entry]:
    return Entry(f"{ours}/kernel", f"{theirs}.weight", inputs), Entry(f"{ours}/bias", f"{theirs}.bias")


def _norm(ours: str, theirs: str) -> tuple[Entry, Entry]:
    return Entry(f"{ours}/scale", f"{theirs}.weight"), Entry(f"{ours}/bias", f"{theirs}.bias")


_OURS, _THEIRS = "encoder/layer_{i}", "bert.encoder.layer.{i}"
ENTRIES: tuple[Entry, ...] = (
    Entry("encoder/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight"),
    Entry("encoder/embeddings/position_embeddings", "bert.embeddings.position_embeddings.weight"),
    Entry("encoder/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings.weight"),
    *_norm("encoder/embeddings/layer_norm", "bert.embeddings.LayerNorm"),
    *_dense(f"{_OURS}/attention/query", f"{_THEIRS}.attention.self.query"),
    *_dense(f"{_OURS}/attention/key", f"{_THEIRS}.attention.self.key"),
    *_dense(f"{_OURS}/attention/value", f"{_THEIRS}.attention.self.value"),
    *_dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.output.dense", inputs=2),
    *_norm(f"{_OURS}/attention_layer_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *_dense(f"{_OURS}/mlp/input", f"{_THEIRS}.intermediate.dense"),
    *_dense(f"{_OURS}/mlp/output", f"{_THEIRS}.output.dense"),
    *_norm(f"{_OURS}/mlp_layer_norm", f"{_THEIRS}.output.LayerNorm"),
    *_dense("pooler/dense", "bert.pooler.dense"),
    *_dense("mlm_head/transform", "cls.predictions.transform.dense"),
    *_norm("mlm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
    Entry("mlm_head/output_bias", "cls.predictions.bias"),
    *_dense("nsp_head/dense", "cls.seq_relationship"),
)

# Copies of other tensors, and buffers, that a file may hold beside the model: read past.
REDUNDANT = ("bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias")


def entries(num_layers: int) -> Iterator[Entry]:
    """Every entry, layers written out."""
    for entry in ENTRIES:
        for i in range(num_layers) if "{i}" in entry.ours else [0]:
            yield Entry(entry.ours.format(i=i), entry.theirs.format(i=i), entry.inputs)


def to_theirs(array: np.ndarray, entry: Entry) -> np.ndarray:
    """A kernel [*inputs, *outputs] as the weight [out, in] of a Linear; anything else as it is."""
    if not entry.inputs:
        return array.reshape(-1) if entry.ours.endswith("/bias") else array
    rows = int(np.prod(array.shape[: entry.inputs]))
    return np.ascontiguousarray(array.reshape(rows, -1).T)


def to_ours(array: np.ndarray, entry: Entry, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of ``to_theirs``, for a leaf of ``shape``."""
    return np.ascontiguousarray(array.T if entry.inputs else array).reshape(shape)


def modern(name: str) -> str:
    """The present name of a tensor of an older file: ``gamma``/``beta``, and encoders saved without the prefix."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
