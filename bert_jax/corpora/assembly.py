"""Joins finished parts into one store: writes the offsets over all parts, and the metadata that TFDS reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.corpora.columns import Column
from bert_jax.corpora.manifest import SPLITS
from bert_jax.corpora.part_job import lengths_name
from bert_jax.corpora.part_writer import DOCUMENTS, SENTENCES
from bert_jax.corpora.parts import Part
from bert_jax.corpora.store import DATASET_NAME, document_starts_name, sentence_offsets_name
from bert_jax.corpora.workplace import Workplace

COUNTS = ("num_documents", "num_sentences", "num_tokens")


def join_splits(parts: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return split -> its entry in the manifest, computed from what is recorded for each part."""
    return {split: _join([part["splits"][split] for part in parts]) for split in SPLITS}


def _join(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    content = "\n".join(part["fingerprint"] for part in parts if part["num_documents"])
    return {
        **{name: sum(part[name] for part in parts) for name in COUNTS},
        "fingerprint": hashlib.sha256(content.encode()).hexdigest(),
        "shards": [
            {"name": part["file"]["name"], "num_blocks": part["num_blocks"], "num_tokens": part["num_tokens"]}
            for part in parts
        ],
    }


def join_columns(columns: Sequence[Column], parts: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return column name -> its entry in the manifest, computed from what is recorded for each part."""
    return {column.name: _join_column(column, parts) for column in columns}


def _join_column(column: Column, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    made = [part["splits"][split] for split in SPLITS for part in parts]
    values = [facts["columns"][column.name]["fingerprint"] for facts in made if facts["num_documents"]]
    identity = column.identity()
    return {**identity, "fingerprint": hashlib.sha256(json.dumps([identity, values]).encode()).hexdigest()}


def write_offsets(
    workplace: Workplace, parts: Sequence[Part], splits: dict[str, dict[str, Any]], folder: Path
) -> list[Path]:
    """Write the offset arrays of each split to ``folder``, part by part in bounded memory; return their paths."""
    written = []
    for split, facts in splits.items():
        for ending, name, count in (
            (SENTENCES, sentence_offsets_name(split), facts["num_sentences"]),
            (DOCUMENTS, document_starts_name(split), facts["num_documents"]),
        ):
            path = folder / name
            offsets = np.lib.format.open_memmap(path, "w+", np.int64, (count + 1,))
            offsets[0] = filled = total = 0
            for part in parts:
                copy = workplace.get(lengths_name(part, split, ending), folder)
                lengths = np.load(copy, mmap_mode="r")
                np.cumsum(lengths, out=offsets[filled + 1 : filled + 1 + len(lengths)])
                offsets[filled + 1 : filled + 1 + len(lengths)] += total
                filled += len(lengths)
                total = int(offsets[filled])
                if copy.parent == folder:
                    copy.unlink()
            offsets.flush()
            written.append(path)
    return written


def write_tfds_metadata(
    folder: Path, dtype: np.dtype, splits: dict[str, dict[str, Any]], num_bytes: dict[str, int]
) -> list[Path]:
    """Write ``dataset_info.json`` and ``features.json``, so that TFDS can read the store without TensorFlow.

    Args:
      folder: an empty folder.
      num_bytes: split -> the total size of its shards.

    Returns:
      The paths of the two files.
    """
    import tensorflow_datasets as tfds

    for facts in splits.values():
        for shard in facts["shards"]:
            (folder / shard["name"]).touch()  # TFDS now checks that files of these names exist
    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name=DATASET_NAME, filetype_suffix="array_record")
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=tfds.features.FeaturesDict(
            {"tokens": tfds.features.Tensor(shape=(None,), dtype=dtype, encoding=tfds.features.Encoding.BYTES)}
        ),
        split_infos=[
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=[shard["num_blocks"] for shard in facts["shards"]],
                num_bytes=num_bytes[name],
                filename_template=template,
            )
            for name, facts in splits.items()
        ],
        version="1.0.0",
        check_data=False,
        description="Blocks of tokens; sentence and document boundaries are in the .npy files beside them.",
    )
    return [folder / "dataset_info.json", folder / "features.json"]
