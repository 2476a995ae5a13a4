"""The source ``tfds_dataset``: a text dataset of TensorFlow Datasets by name, read without TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, Literal

from bert_jax.corpora.bad_text import BadText, BadTextError
from bert_jax.corpora.file_source import hash_files
from bert_jax.corpora.source import MARK, Piece, Skipped, record_pieces
from bert_jax.corpora.values import LineBreaks, as_document, as_text, pick, runs
from bert_jax.errors import UserError, first_line
from bert_jax.records import Document

RECORDS = 256  # the number of records read at a time
_FORMAT = "array_record"
# The markers that stand for a line break in the text of a dataset.
MARKERS = {"wiki40b": ("_START_ARTICLE_", "_START_SECTION_", "_START_PARAGRAPH_", "_NEWLINE_")}


@dataclasses.dataclass(frozen=True)
class Source:
    """Reads the examples of a split of a dataset.

    ``document_rule`` says which texts are documents: each example (named ``<split>#<number>``), or each run of lines
    of an example that are not blank (named ``<split>#<number>@<number of the run>``). If a dataset has shuffled
    sentences (``lm1b``), each sentence is a document; such documents can be used for masked language modelling, but not
    for next-sentence prediction. The dataset must be prepared as ArrayRecord; nothing is downloaded or converted.
    """

    name: str  # "wikipedia/20230601.en", also with a version, "lm1b:1.1.0"; "" if data_dir is the dataset's folder
    split: str = "train"  # or a part of a split, such as "train[:10%]"
    data_dir: str = ""  # "" is where TFDS keeps datasets: $TFDS_DATA_DIR or ~/tensorflow_datasets
    text_field: str = "text"  # a dot selects a nested feature
    document_rule: Literal["example", "blank_line"] = "example"  # what is a document
    line_breaks: LineBreaks = "end_sentences"  # are_spaces for hard-wrapped text
    language: str = "en"  # the language whose rules split text into sentences
    bad_text: BadText = "error"  # skip: leave out and count what cannot be read

    def pieces(self) -> list[Piece]:
        """Return the pieces: runs of consecutive records.

        Raises:
          UserError: the dataset is not prepared, lacks the split, or is in another format than ArrayRecord.
        """
        builder = self._builder()
        split = self._split(builder)
        return record_pieces(os.fspath(builder.data_path), split.num_examples, _split_bytes(builder, split))

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of the records of ``piece``."""
        if piece.stop == 0:
            yield Skipped(self.split, "no text")
        for number, record in records(piece.name, self.split, piece.start, piece.stop):
            yield from self._documents(number, record)

    def fingerprint(self) -> str:
        """Return the hash of the settings and of the dataset's name, version and files."""
        builder = self._builder()
        rules = (self.split, self.text_field, self.document_rule, self.line_breaks, self.language, self.bad_text)
        folder = os.fspath(builder.data_path)
        names = sorted(os.path.basename(path) for path in self._split(builder).filepaths)
        return hash_files([f"{folder}{MARK}{name}" for name in names], (builder.info.full_name, *rules))

    def describe(self) -> dict[str, Any]:
        info = self._builder().info
        license_ = info.redistribution_info.license if info.redistribution_info else ""
        facts = {"dataset": info.full_name, "records": info.splits[self.split].num_examples}
        facts |= {"homepage": info.homepage, "license": license_}
        return {"source": "tfds_dataset", **dataclasses.asdict(self), **facts}

    def _documents(self, number: int, record: Any) -> Iterator[Document | Skipped]:
        name = f"{self.split}#{number}"
        where = f"{self.name}, {name}"
        try:
            value = pick(record, self.text_field, where, "config.corpus.options.text_field")
            value = _without_markers(value, MARKERS.get(self.name.partition("/")[0].partition(":")[0], ()))
            if self.document_rule == "blank_line" and isinstance(value, str | bytes):
                texts = {f"{name}@{i}": text for i, text in enumerate(runs(as_text(value, where)))}
            else:
                texts = {name: value}
            for key, text in texts.items():
                yield as_document(key, text, where, self.line_breaks, self.language)
            if not texts:
                yield Skipped(name, "no text")
        except BadTextError as error:
            yield error.skip_or_raise(self.bad_text, name)

    def _split(self, builder: Any) -> Any:
        try:
            return builder.info.splits[self.split]
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{self.name} has no split {self.split!r}; set config.corpus.options.split; found:"
                f" {', '.join(sorted(builder.info.splits))}"
            ) from error

    def _builder(self) -> Any:
        return open_dataset(self.name, self.data_dir, "config.corpus.options.name and data_dir")


def open_dataset(name: str, data_dir: str, keys: str) -> Any:
    """Return the TFDS builder of a dataset that is prepared as ArrayRecord. No code of the dataset is run.

    Args:
      keys: the config keys of ``name`` and ``data_dir``, for error messages.

    Raises:
      UserError: the dataset is not prepared, or in another format.
    """
    builder = _prepared(name, data_dir, keys)
    if _FORMAT not in {known.value for known in builder.info.available_file_formats()}:
        folder = builder.data_path
        raise UserError(
            f"{name or folder} is prepared as {builder.info.file_format.value}, which only TensorFlow reads; convert"
            f" it once, on one machine: pip install tensorflow apache-beam; tfds convert_format"
            f" --dataset_version_dir={folder} --out_file_format={_FORMAT}"
        )
    if builder.info.file_format.value != _FORMAT:  # ArrayRecord is there, but not the default
        builder.info.set_file_format(_FORMAT, override=True, override_if_initialized=True)
    return builder


def _prepared(name: str, data_dir: str, keys: str) -> Any:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import dataset_info, naming, read_only_builder

    folder = os.path.expanduser(data_dir) or None
    try:
        if not name:
            return tfds.builder_from_directory(folder or ".")
        folder_name, options = naming.parse_builder_name_kwargs(name, data_dir=folder)
        return read_only_builder.builder_from_files(str(folder_name), **options)
    except (tfds.core.DatasetNotFoundError, dataset_info.DatasetInfoFileError, OSError, ValueError) as error:
        where = f" --data_dir={data_dir}" if data_dir else ""
        raise UserError(
            f"no prepared TFDS dataset {name!r} in {data_dir or 'the data folder of TFDS'}; check {keys}, or prepare it"
            f" once with: tfds build {name} --file_format=array_record{where} (pip install tensorflow)"
        ) from error


def records(folder: str, split: str, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    """Yield (number, example) for the records [start, stop) of a split of the dataset in ``folder``.

    If ``stop`` is -1, all records from ``start`` on are read. Raises ``UserError`` if files are missing or damaged.
    """
    import tensorflow_datasets as tfds

    place = start
    try:
        source = tfds.builder_from_directory(folder).as_data_source(split=split, file_format=_FORMAT)
        stop = len(source) if stop < 0 else stop
        for place in range(start, stop, RECORDS):
            numbers = range(place, min(place + RECORDS, stop))
            yield from zip(numbers, source.__getitems__(list(numbers)), strict=True)
    except (ValueError, OSError, RuntimeError, IndexError) as error:
        raise UserError(
            f"{folder} is damaged or not whole, in the records from {place} on of {split!r} ({first_line(error)});"
            " prepare it again"
        ) from error


def _split_bytes(builder: Any, split: Any) -> int:
    """Return an estimate of the bytes of ``split``, which may be some of one or several splits."""
    whole = builder.info.splits
    examples = sum(s.num_examples for s in whole.values())
    return int(sum(s.num_bytes for s in whole.values()) * split.num_examples / max(examples, 1))


def _without_markers(value: Any, markers: tuple[str, ...]) -> Any:
    for marker in markers if isinstance(value, str | bytes) else ():
        value = value.replace(marker, "\n") if isinstance(value, str) else value.replace(marker.encode(), b"\n")
    return value
