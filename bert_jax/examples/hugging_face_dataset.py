"""The reader ``hugging_face_dataset``: reads a dataset of the Hugging Face Hub or a local one (extra ``datasets``)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

from bert_jax.corpora import hugging_face_dataset
from bert_jax.examples.reading import BadRecord, DataRecord
from bert_jax.examples.values import plain_value


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads the rows of a split as records with the columns of the dataset.

    Label numbers become label names; the label -1, which stands for unknown, becomes None. A split is a split of the
    dataset or a part of one, such as ``train[:10%]``.
    """

    named_splits = True

    name: str = ""  # the name on the Hub; "" if --data is a folder of data files, or one that save_to_disk wrote
    config_name: str = ""  # needed if the dataset has several configurations, such as "sst2" of "nyu-mll/glue"
    revision: str = ""  # branch, tag or commit; "" means the newest

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the rows of the split that the last part of ``path`` names. Raises ``UserError`` if it is missing."""
        folder, split = os.path.split(path)
        name = self.name or folder
        rows = hugging_face_dataset.rows_of(name or ".", self.config_name, split, self.revision, "config.data.options")
        for number, row in enumerate(rows):
            columns = {column: plain_value(value, rows.features[column]) for column, value in row.items()}
            yield DataRecord(columns, f"{name}, {split}, row {number}")
