"""The reader ``hugging_face_dataset``: reads a dataset of the Hugging Face Hub or a local one (extra ``datasets``)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.corpora import hugging_face_dataset
from bert_jax.examples.reading import Bad, Record


@dataclasses.dataclass(frozen=True)
class Options:
    """The dataset to read."""

    name: str = ""  # the name on the Hub; "" if --data is a folder of data files, or one that save_to_disk wrote
    config_name: str = ""  # needed if the dataset has several configurations, such as "sst2" of "nyu-mll/glue"
    revision: str = ""  # branch, tag or commit; "" means the newest


class Reader:
    """Reads the rows of a split as records with the columns of the dataset.

    Label numbers become label names; the label -1, which stands for unknown, becomes None. A split is a split of the
    dataset or a part of one, such as ``train[:10%]``.
    """

    named_splits = True

    def __init__(self, options: Options = Options()) -> None:
        self._options = options

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the rows of the split that the last part of ``path`` names. Raises ``UserError`` if it is missing."""
        folder, split = os.path.split(path)
        options = self._options
        rows = hugging_face_dataset.rows_of(
            options.name or folder or ".", options.config_name, split, options.revision, "config.data.options"
        )
        for number, row in enumerate(rows):
            columns = {name: plain(value, rows.features[name]) for name, value in row.items()}
            yield Record(columns, f"{options.name or folder}, {split}, row {number}")


def plain(value: Any, feature: Any) -> Any:
    """Return ``value`` with label names in place of label numbers, also inside lists and dicts."""
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None
    if isinstance(value, Mapping) and isinstance(feature, Mapping):
        return {key: plain(item, feature[key]) for key, item in value.items()}
    if isinstance(value, list):
        inside = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        return [plain(item, inside) for item in value]
    return value
