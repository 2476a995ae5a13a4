"""Our parameter paths, Hugging Face's names and those of the original checkpoints, as data.

Layer ``{i}`` stands for every layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Entry(NamedTuple):
    ours: str  # path in the unrolled tree
    theirs: str  # name under any head of transformers; a bare BertModel leaves ``bert.`` out
    inputs: int = 0  # number of leading input axes of a kernel; 0: an array that is the same on both sides
    original: str = ""  # name in a TensorFlow checkpoint of google-research/bert
    as_original: bool = False  # that one lies [out, in], as theirs does; other kernels of it lie [in, out]


def _original(theirs: str) -> str:
    return theirs.replace("layer.{i}", "layer_{i}").replace(".", "/")


def _dense(ours: str, theirs: str, inputs: int = 1) -> tuple[Entry, Entry]:
    original = _original(theirs)
    return (
        Entry(f"{ours}/kernel", f"{theirs}.weight", inputs, f"{original}/kernel"),
        Entry(f"{ours}/bias", f"{theirs}.bias", 0, f"{original}/bias"),
    )


def _norm(ours: str, theirs: str) -> tuple[Entry, Entry]:
    original = _original(theirs)
    return (
        Entry(f"{ours}/scale", f"{theirs}.weight", 0, f"{original}/gamma"),
        Entry(f"{ours}/bias", f"{theirs}.bias", 0, f"{original}/beta"),
    )


def _table(name: str) -> Entry:
    return Entry(f"encoder/embeddings/{name}", f"bert.embeddings.{name}.weight", 0, f"bert/embeddings/{name}")


def _outputs(ours: str, theirs: str, original: str) -> tuple[Entry, Entry]:
    """A last layer, whose variables run_pretraining.py and its kin make by hand."""
    return (
        Entry(f"{ours}/dense/kernel", f"{theirs}.weight", 1, f"{original}output_weights", as_original=True),
        Entry(f"{ours}/dense/bias", f"{theirs}.bias", 0, f"{original}output_bias"),
    )


_OURS, _THEIRS = "encoder/layer_{i}", "bert.encoder.layer.{i}"
ENTRIES: tuple[Entry, ...] = (
    _table("word_embeddings"),
    _table("position_embeddings"),
    _table("token_type_embeddings"),
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
    Entry("mlm_head/output_bias", "cls.predictions.bias", 0, "cls/predictions/output_bias"),
    *_outputs("nsp_head", "cls.seq_relationship", "cls/seq_relationship/"),
    *_outputs("classifier", "classifier", ""),
    *_outputs("qa_outputs", "qa_outputs", "cls/squad/"),
)

# Copies of other tensors, and buffers, that a file may hold beside the model: read past.
REDUNDANT = ("bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
# Ends of names in a TensorFlow checkpoint that belong to the optimizer and not to the model.
OPTIMIZER = ("/adam_m", "/adam_v", "global_step")


def part(entry: Entry) -> str:
    """The part of our tree that an entry belongs to: ``encoder``, ``pooler``, ``classifier``, ..."""
    return entry.ours.partition("/")[0]


def entries(num_layers: int) -> Iterator[Entry]:
    """Every entry, layers written out."""
    for entry in ENTRIES:
        for i in range(num_layers) if "{i}" in entry.ours else [0]:
            ours, theirs, original = (
                name.replace("{i}", str(i)) for name in (entry.ours, entry.theirs, entry.original)
            )
            yield entry._replace(ours=ours, theirs=theirs, original=original)


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


def from_original(tensors: dict[str, np.ndarray], num_layers: int) -> dict[str, np.ndarray]:
    """Tensors of a TensorFlow checkpoint as Hugging Face names and lays them; unknown ones keep their names."""
    known = {entry.original: entry for entry in entries(num_layers)}
    found = {}
    for name, array in tensors.items():
        entry = known.get(name)
        if entry is None:
            found[name] = array
        else:
            found[entry.theirs] = array.T if entry.inputs and not entry.as_original and array.ndim == 2 else array
    return found
