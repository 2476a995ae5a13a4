"""Reads the files that ``writing`` wrote, text by text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bert_jax.features.extract import LAYERS, TextFeatures, TextTokens
from bert_jax.features.inputs import Item

IDS = ("input_ids", "token_type_ids", "offsets", "word_ids")


def read_features(path: str | os.PathLike[str]) -> Iterator[TextFeatures]:
    """Yield the texts, with vectors, of a file that ``bert-jax features`` wrote, one in memory at a time.

    ``TextTokens.num_cut`` is not in the file, so it has its default.
    """
    file = pq.ParquetFile(path)
    layers = [name for name in LAYERS if name in file.schema_arrow.names]
    hidden_size = int((file.metadata.metadata or {}).get(b"hidden_size", 0))
    for batch in file.iter_batches(batch_size=1):
        row = {name: batch.column(name)[0] for name in batch.schema.names}
        vectors = {name: _array(row[name]) for name in layers}
        if "all" in vectors:
            vectors["all"] = vectors["all"].reshape(len(vectors["all"]), -1, hidden_size)
        yield TextFeatures(
            Item(str(row["id"]), str(row["text"]), str(row["pair"]) or None),
            _tokens({name: _array(row[name]) for name in IDS}),
            vectors,
        )


def _tokens(arrays: Mapping[str, np.ndarray]) -> TextTokens:
    return TextTokens(arrays["input_ids"], arrays["token_type_ids"], arrays["offsets"], arrays["word_ids"])


def _array(value: Any) -> np.ndarray:
    """Return a list as an array [n], or a list of lists of one size as an array [n, width]."""
    values = value.values
    if hasattr(values.type, "list_size"):
        return np.asarray(values.flatten()).reshape(len(values), values.type.list_size)
    return np.asarray(values)
