"""The source ``hugging_face_dataset``: a dataset of the Hugging Face Hub or a local dataset (extra ``datasets``)."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.configuration import nearest
from bert_jax.corpora.bad_text import BadText
from bert_jax.corpora.file_source import hash_files
from bert_jax.corpora.source import MARK, Piece, Skipped, record_pieces
from bert_jax.corpora.values import LineBreaks, RecordSource, column_of
from bert_jax.errors import UserError, first_line, optional_library
from bert_jax.records import Document

ROWS = 256  # the number of rows read at a time
COMMIT = re.compile(r"[0-9a-f]{40}")
_OPTIONS = "config.corpus.options"
_SAVED = ("state.json", "dataset_dict.json")  # a folder that save_to_disk wrote has one of these files


@dataclasses.dataclass(frozen=True)
class Source(RecordSource):
    """Reads the rows of a split. Each row is a document, named ``<split>#<number of the row>``.

    ``name`` is a dataset on the Hub (``wikimedia/wikipedia``), a folder that ``save_to_disk`` wrote, or a local folder
    of data files. The commit that ``revision`` stands for is looked up once and kept in the pieces and the manifest.
    """

    name: str  # a dataset on the Hub, or a local folder
    config_name: str = ""  # such as "20231101.en"; needed if a dataset has several configurations
    split: str = "train"  # or a part of a split, such as "train[:10%]"
    revision: str = ""  # branch, tag or commit; "" is the newest
    text_column: str = "text"  # a dot selects a nested column
    line_breaks: LineBreaks = "end_sentences"  # are_spaces for hard-wrapped text
    language: str = "en"  # the language whose rules split text into sentences
    bad_text: BadText = "error"  # skip: leave out and count what cannot be read

    def pieces(self) -> list[Piece]:
        """Return the pieces: runs of consecutive rows. Downloads the dataset if ``datasets`` has not cached it.

        Raises:
          UserError: ``datasets`` is not installed, or there is no such dataset, split or column.
        """
        commit = self._commit()
        rows = self._rows(commit)
        # If ``rows`` is only some of a split, ``rows.data`` is still the table of the whole split.
        size = int(rows.data.nbytes * len(rows) / max(len(rows.data), 1))
        return record_pieces(f"{self.name}@{commit}", len(rows), size)

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of the rows of ``piece``."""
        rows = self._rows(piece.name.rpartition("@")[2])
        stop = len(rows) if piece.stop < 0 else piece.stop
        if stop == 0:
            yield Skipped(self.split, "no text")
        for start in range(piece.start, stop, ROWS):
            batch = rows[start : min(start + ROWS, stop)]
            [column] = batch
            for row, value in enumerate(batch[column], start):
                where = f"{self.name}, {self.split}, row {row}"
                yield self.cell(f"{self.split}#{row}", column, value, self.text_column, where)

    def fingerprint(self) -> str:
        """Return the hash of the settings and of the commit, or of the content of a local folder."""
        settings = (self.config_name, self.split, self.text_column, self.line_breaks, self.language, self.bad_text)
        root = os.path.expanduser(self.name)
        if not os.path.isdir(root):
            return hash_files((), (self.name, self._commit(), *settings))
        names = sorted(p.relative_to(root).as_posix() for p in Path(root).rglob("*") if p.is_file())
        return hash_files([f"{root}{MARK}{name}" for name in names], settings)

    def describe(self) -> dict[str, Any]:
        commit = self._commit()
        rows = self._rows(commit)
        facts = {"revision": commit, "rows": len(rows), "license": rows.info.license, "homepage": rows.info.homepage}
        return {"source": "hugging_face_dataset", **dataclasses.asdict(self), **facts}

    def _commit(self) -> str:
        return _commit(self.name, self.revision, _OPTIONS)

    def _rows(self, commit: str) -> Any:
        """Return the rows of the split, with only the column that is read."""
        rows = rows_of(self.name, self.config_name, self.split, commit, _OPTIONS)
        return rows.select_columns([column_of(self.text_column, rows.column_names, self.name)])


def rows_of(name: str, config_name: str, split: str, revision: str, options: str) -> Any:
    """Return the rows of a split, with all columns, as a ``datasets.Dataset``.

    Args:
      options: the config key of the options, for error messages.

    Raises:
      UserError: see ``Source.pieces``.
    """
    folder = os.path.expanduser(name)
    commit = _commit(name, revision, options)
    return _load(folder if os.path.isdir(folder) else name, config_name, split, commit, options)


def _library() -> Any:
    return optional_library("datasets", "the source hugging_face_dataset")


@functools.lru_cache(maxsize=8)  # cached, since the newest commit may change while a corpus is built
def _commit(name: str, revision: str, options: str) -> str:
    """Return the commit that ``revision`` stands for; "" for a local folder."""
    if os.path.isdir(os.path.expanduser(name)):
        return ""
    if COMMIT.fullmatch(revision):
        return revision
    _library()
    import huggingface_hub

    try:
        return huggingface_hub.HfApi().dataset_info(name, revision=revision or None).sha or ""
    except Exception as error:  # not found, not allowed or no network: errors of many libraries
        raise UserError(
            f"cannot find the dataset {name!r} at revision {revision or 'main'!r} on the Hugging Face Hub"
            f" ({first_line(error)}); check {options}.name, log in if it is private, or, without a network, set"
            f" {options}.revision to the commit (40 digits) that is in the cache"
        ) from error


@functools.lru_cache(maxsize=2)  # cached, since it is called for each piece
def _load(name: str, config_name: str, split: str, commit: str, options: str) -> Any:
    datasets = _library()
    try:
        if not commit and any(os.path.exists(os.path.join(name, file)) for file in _SAVED):
            return _saved(datasets, name, split, options)
        return datasets.load_dataset(name, config_name or None, split=split, revision=commit or None)
    except UserError:
        raise
    except Exception as error:  # no such config or split, no network, damaged files: errors of many libraries
        raise UserError(
            f"cannot load {name!r}, config {config_name!r}, split {split!r} ({first_line(error)}); check {options}"
        ) from error


def _saved(datasets: Any, name: str, split: str, options: str) -> Any:
    """Return the dataset that ``save_to_disk`` wrote to the folder ``name``.

    If it is a ``DatasetDict``, only ``split`` is returned; otherwise the whole dataset, whatever ``split`` is.
    """
    dataset = datasets.load_from_disk(name)
    if not isinstance(dataset, dict):
        return dataset
    if split not in dataset:
        raise UserError(f"{name} has no split {split!r}; set {options}.split; {nearest(split, dataset)}")
    return dataset[split]
