"""The reader ``tfds_dataset``: reads a prepared dataset of TensorFlow Datasets (TFDS) without TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

from bert_jax.configuration import nearest
from bert_jax.corpora import tfds_dataset
from bert_jax.errors import UserError
from bert_jax.examples.reading import BadRecord, DataRecord
from bert_jax.examples.values import plain_value


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads the examples of a split as records with the features of the dataset as columns.

    The dataset is in the folder ``--data``, or if that is "", in the data folder of TFDS. Bytes become text. Label
    numbers become label names; the label -1, which stands for unknown, becomes None. A split is a split of the dataset
    or a part of one, such as ``train[:10%]``.
    """

    named_splits = True

    name: str = ""  # "glue/sst2", also with a version; "" if --data is the dataset's folder

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the examples of the split that the last part of ``path`` names.

        Raises ``UserError`` if the dataset or the split is missing or damaged.
        """
        folder, split = os.path.split(path)
        builder = tfds_dataset.open_dataset(self.name, folder, "config.data.options.name and --data")
        try:
            builder.info.splits[split]
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{self.name or folder} has no split {split!r}, set config.data.splits;"
                f" {nearest(split, builder.info.splits)}"
            ) from error
        for number, record in tfds_dataset.records(os.fspath(builder.data_path), split, 0, -1):
            yield DataRecord(
                plain_value(record, builder.info.features), f"{self.name or folder}, {split}, record {number}"
            )
