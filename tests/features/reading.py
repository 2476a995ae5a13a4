"""Reads the files that ``writing`` wrote, text by text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from bert_jax.features.extract import LAYERS, SENTENCE, TextFeatures, TextTokens
from bert_jax.features.inputs import Item
from bert_jax.features.writing import STRINGS

IDS = ("input_ids", "token_type_ids", "offsets", "word_ids")


def read_features(path: str | os.PathLike[str]) -> Iterator[TextFeatures]:
    """Yield the texts, with vectors, of a file that ``bert-jax features`` wrote, one in memory at a time.

    ``Item.words`` and ``TextTokens.num_cut`` are not in the file, so they have their defaults.
    """
    path = Path(path)
    yield from _parquet(path) if path.suffix == ".parquet" else _safetensors(path)


def _safetensors(path: Path) -> Iterator[TextFeatures]:
    with safetensors.safe_open(path, framework="numpy") as file:
        starts = {name: file.get_tensor(f"{name}_starts") for name in ("token", *STRINGS)}
        slices = {name: file.get_slice(name) for name in file.keys() if not name.endswith("_starts")}  # noqa: SIM118
        layers = [name for name in LAYERS if name in slices]
        for i in range(len(starts["token"]) - 1):
            strings = {name: _string(slices[f"{name}_bytes"], *starts[name][i : i + 2]) for name in STRINGS}
            begin, end = starts["token"][i : i + 2]
            yield TextFeatures(
                Item(strings["id"], strings["text"], strings["pair"] or None),
                _tokens({name: slices[name][begin:end] for name in IDS}),
                {name: slices[name][i] if name in SENTENCE else slices[name][begin:end] for name in layers},
            )


def _string(values: Any, start: int, stop: int) -> str:
    return (
        values[start:stop].tobytes().decode("utf-8") if start < stop else ""
    )  # safetensors cannot read an empty slice


def _tokens(arrays: Mapping[str, np.ndarray]) -> TextTokens:
    return TextTokens(arrays["input_ids"], arrays["token_type_ids"], arrays["offsets"], arrays["word_ids"])


def _parquet(path: Path) -> Iterator[TextFeatures]:
    import pyarrow.parquet as pq

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


def _array(value: Any) -> np.ndarray:
    """Return a list as an array [n], or a list of lists of one size as an array [n, width]."""
    values = value.values
    if hasattr(values.type, "list_size"):
        return np.asarray(values.flatten()).reshape(len(values), values.type.list_size)
    return np.asarray(values)
