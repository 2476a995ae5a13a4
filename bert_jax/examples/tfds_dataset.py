"""The reader ``tfds_dataset``: reads a prepared dataset of TensorFlow Datasets (TFDS) without TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.configuration import nearest
from bert_jax.corpora import tfds_dataset
from bert_jax.errors import UserError
from bert_jax.examples.reading import Bad, Record


@dataclasses.dataclass(frozen=True)
class Options:
    """The dataset to read, which is in the folder ``--data``, or if that is "", in the data folder of TFDS."""

    name: str = ""  # "glue/sst2", also with a version; "" if --data is the dataset's folder


class Reader:
    """Reads the examples of a split as records with the features of the dataset as columns.

    Bytes become text. Label numbers become label names; the label -1, which stands for unknown, becomes None. A split
    is a split of the dataset or a part of one, such as ``train[:10%]``.
    """

    named_splits = True

    def __init__(self, options: Options = Options()) -> None:
        self._name = options.name

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the examples of the split that the last part of ``path`` names.

        Raises ``UserError`` if the dataset or the split is missing or damaged.
        """
        folder, split = os.path.split(path)
        builder = tfds_dataset.opened(self._name, folder, "config.data.options.name and --data")
        try:
            builder.info.splits[split]
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{self._name or folder} has no split {split!r}, set config.data.splits;"
                f" {nearest(split, builder.info.splits)}"
            ) from error
        for number, record in tfds_dataset.records(os.fspath(builder.data_path), split, 0, -1):
            yield Record(plain(record, builder.info.features), f"{self._name or folder}, {split}, record {number}")


def plain(value: Any, feature: Any) -> Any:
    """Return a value that TFDS decoded, converted to text, numbers, lists and dicts."""
    if hasattr(feature, "int2str") and not hasattr(value, "__len__"):
        return feature.int2str(int(value)) if int(value) >= 0 else None
    if isinstance(value, Mapping):
        inside = getattr(feature, "feature", feature)  # TFDS gives a sequence of dicts as a dict of sequences
        return {key: plain(item, inside[key] if inside is not None else None) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    shape: Any = getattr(value, "shape", None)
    if isinstance(value, list | tuple) or shape:
        inside = getattr(feature, "feature", feature)
        return [plain(item, inside) for item in value]
    return value.item() if hasattr(value, "item") else value
