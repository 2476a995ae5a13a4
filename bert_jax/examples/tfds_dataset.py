"""The reader ``tfds_dataset``: a prepared dataset of TensorFlow Datasets, read without TensorFlow."""

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
    """Which dataset. It is looked for in ``--data``, or if that is "" where TFDS keeps datasets."""

    name: str = ""  # "glue/sst2", also with a version; "" if --data is the dataset's folder


class Reader:
    """Examples with the features of the dataset as columns: bytes as text, labels as their names (a label of -1, which
    says that it is not told, as none). Splits are those of the dataset, also parts: ``train[:10%]``."""

    named_splits = True

    def __init__(self, options: Options = Options()) -> None:
        self._name = options.name

    def read(self, path: str) -> Iterator[Record | Bad]:
        """The examples of the split that ``path`` ends in. Raises ``UserError`` for what is not there or damaged."""
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
    """What TFDS decoded, as text, numbers, lists and dicts."""
    if hasattr(feature, "int2str") and not hasattr(value, "__len__"):
        return feature.int2str(int(value)) if int(value) >= 0 else None
    if isinstance(value, Mapping):
        inside = getattr(feature, "feature", feature)  # a sequence of dicts comes as a dict of sequences
        return {key: plain(item, inside[key] if inside is not None else None) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    shape: Any = getattr(value, "shape", None)
    if isinstance(value, list | tuple) or shape:
        inside = getattr(feature, "feature", feature)
        return [plain(item, inside) for item in value]
    return value.item() if hasattr(value, "item") else value
