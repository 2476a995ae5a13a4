"""Makes one shard of each split: tokenizes its text, and decides by a hash which documents are held out."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bert_jax.corpora import duplicates, hits
from bert_jax.corpora.columns import TOKENS, Column
from bert_jax.corpora.manifest import SPLITS
from bert_jax.corpora.privacy import redact
from bert_jax.corpora.source import Shard, Source
from bert_jax.corpora.store import DATASET_NAME, column_name, record_header
from bert_jax.corpora.workplace import Workplace
from bert_jax.records import Document
from bert_jax.storage import files, write_errors
from bert_jax.text.accents import Losses, added, losses
from bert_jax.text.encoded import places_of_text
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.words import joined_with

_BATCH_BYTES = 2 << 20  # bytes of text tokenized at a time
_EXTREMES = 3  # how many of the lowest and the highest draws are kept; from them, an error suggests a better fraction
_LOOKED_AT = 4_096  # characters of a document in which letters with accents are counted
EXAMPLES = 3  # how many places are kept for each reason to skip
SENTENCES, DOCUMENTS = "sentences.npy", "documents.npy"  # the endings of the two files of lengths
# Larger groups make random reads up to 85 times slower; compression saves a quarter of the space and halves the speed.
_WRITER_OPTIONS = "group_size:1,uncompressed"
FACTS = {"documents", "bytes", "words", "text_hits", "losses", "dropped", "skipped", "draws", "splits"}  # of each shard


class _Tokenized(NamedTuple):
    """A tokenized document, ready to be written to the store."""

    heldout_draw: float  # in [0, 1), from the document's hash; held out if below ``heldout_fraction``
    num_bytes: int
    num_words: int  # as white space cuts the text
    text_hits: collections.Counter[str]  # counts of traces of wrong encodings
    losses: Losses  # the letters from which stripped accents would take a part
    num_empty: int  # number of sentences without a token, which the store leaves out
    lengths: np.ndarray  # int64 [S], the number of tokens of each sentence, at least 1
    tokens: np.ndarray  # int32 [sum(lengths)]
    columns: dict[str, np.ndarray]  # the values [sum(lengths)] of each column


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """Writes one shard of each split, with its lengths and columns, to the shared work folder.

    It writes the lengths of sentences and documents. Its facts are the counts and hashes that the manifest needs.
    """

    source: Source
    tokenizer: Tokenizer
    workplace: Workplace
    num_shards: int
    heldout_fraction: float
    block_tokens: int
    dtype: str
    drop_duplicates: bool = False  # leave out the documents that ``duplicates.mark`` has marked
    columns: tuple[Column, ...] = ()
    private: bool = False  # whether places of skipped text are hashed

    def __call__(self, shard: Shard, folder: Path) -> dict[str, Any]:
        """Write the files and return the facts. ``folder`` is an empty local folder."""
        writers = {split: _SplitWriter(self, split, shard, folder) for split in SPLITS}
        dropped: collections.Counter[str] = collections.Counter()
        skipped: dict[str, dict[str, Any]] = {}
        draws: list[float] = []
        counts: dict[str, Any] = {"documents": 0, "bytes": 0, "words": dict.fromkeys(SPLITS, 0)}
        counts |= {"text_hits": hits.text_hits(b""), "losses": Losses(0, 0, 0, 0)}
        documents = self._documents(shard, skipped)
        if self.drop_duplicates:
            documents = duplicates.unmarked(documents, self.workplace, shard, folder)
        for document in tokenize(documents, self.tokenizer, self.columns):
            counts["documents"] += 1
            counts["bytes"] += document.num_bytes
            counts["text_hits"].update(document.text_hits)
            counts["losses"] = added(counts["losses"], document.losses)
            dropped["empty_sentences"] += document.num_empty
            dropped["empty_documents"] += not len(document.lengths)
            if len(document.lengths):
                draws = extremes([*draws, document.heldout_draw])
                split = "heldout" if document.heldout_draw < self.heldout_fraction else "train"
                counts["words"][split] += document.num_words
                writers[split].write(document)
        splits = {split: writer.close() for split, writer in writers.items()}
        facts = {"dropped": dict(dropped), "skipped": skipped, "draws": draws}
        return {**counts, **facts, "splits": splits}

    def _documents(self, shard: Shard, skipped: dict[str, dict[str, Any]]) -> Iterator[Document]:
        """Yield the documents of ``shard``, and count the skipped items by reason in ``skipped``."""
        for item in (item for piece in shard.pieces for item in self.source.read(piece)):
            if isinstance(item, Document):
                yield item
            else:
                facts = skipped.setdefault(item.reason, {"count": 0, "examples": []})
                facts["count"] += 1
                where = redact(item.where) if self.private else item.where
                facts["examples"] = [*facts["examples"], where][:EXAMPLES]


def lengths_name(shard: Shard, split: str, ending: str) -> str:
    """Return the name, in the work folder, of a shard's file of lengths, from which the corpus's offsets are made.

    Args:
      ending: ``SENTENCES`` or ``DOCUMENTS``.
    """
    return f"parts/{shard.name}.{split}.{ending}"


def extremes(draws: list[float]) -> list[float]:
    """Return ``draws``, ascending; if there are many, only the ``_EXTREMES`` lowest and highest."""
    draws = sorted(draws)
    return draws[:_EXTREMES] + draws[-_EXTREMES:] if len(draws) > 2 * _EXTREMES else draws


def tokenize(
    documents: Iterable[Document], tokenizer: Tokenizer, columns: Sequence[Column] = ()
) -> Iterator[_Tokenized]:
    """Yield the documents in order, tokenized in batches of about ``_BATCH_BYTES``."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.sentences))
        if size >= _BATCH_BYTES:
            yield from _tokenize(tokenizer, batch, columns)
            batch, size = [], 0
    yield from _tokenize(tokenizer, batch, columns)


def _in_running_text(sentences: Sequence[str], joiner: str) -> list[str]:
    """Return ``sentences``, each but the first with ``joiner`` before it if their script puts spaces there."""
    return [*sentences[:1], *(joined_with(joiner, *pair) for pair in itertools.pairwise(sentences))]


def _spans(tokenizer: Tokenizer, sentence: str, ids: np.ndarray) -> np.ndarray:
    """Return int64 [n, 2]: the character span [start, stop) in ``sentence`` of each of its pieces ``ids`` [n]."""
    encoded = tokenizer.encode(sentence)
    inner = places_of_text(encoded, tokenizer.around)
    assert encoded.input_ids[inner] == tuple(ids.tolist()), f"encode and encode_batch differ on {sentence!r}"
    return np.array(encoded.offsets[inner], np.int64).reshape(-1, 2)


def _tokenize(tokenizer: Tokenizer, batch: list[Document], columns: Sequence[Column]) -> Iterator[_Tokenized]:
    texts = [text for document in batch for text in _in_running_text(document.sentences, tokenizer.joiner)]
    encoded = tokenizer.encode_batch(texts)
    spans = [_spans(tokenizer, *pair) for pair in zip(texts, encoded, strict=True)] if columns else []
    values = {column.name: column.values(texts, spans) for column in columns}
    start = 0
    for document in batch:
        here = slice(start, start + len(document.sentences))
        start = here.stop
        sentences = encoded[here]
        lengths = np.array([len(s) for s in sentences], np.int64)
        tokens = np.concatenate([np.zeros(0, np.int32), *sentences])
        joined = "\n".join(document.sentences)
        text = joined.encode("utf-8", "replace")
        name = document.id.encode("utf-8", "surrogateescape")
        draw = int.from_bytes(hashlib.sha256(name + b"\0" + text).digest()[:8], "big") / 2**64
        beside = {key: np.concatenate([np.zeros(0, np.uint8), *column[here]]) for key, column in values.items()}
        empty = int((lengths == 0).sum())
        lost = losses(joined[:_LOOKED_AT])
        words = len(joined.split())
        yield _Tokenized(
            draw, len(text), words, hits.text_hits(text), lost, empty, lengths[lengths > 0], tokens, beside
        )


class _SplitWriter:
    """Writes the shard of one split: tokens, values of columns, and lengths of sentences and documents.

    Memory is bounded by the number of sentences.
    """

    def __init__(self, job: ShardJob, split: str, shard: Shard, folder: Path) -> None:
        self._split, self._shard, self._folder, self._workplace = split, shard, folder, job.workplace
        self._name = f"{DATASET_NAME}-{split}.array_record-{shard.number:05d}-of-{job.num_shards:05d}"  # TFDS's default
        dtypes = {TOKENS: np.dtype(job.dtype)} | {c.name: np.dtype(c.annotator.dtype) for c in job.columns}
        self._writers = {
            name: _BlockWriter(folder / f"{split}.{name}", dtype, job.block_tokens, name)
            for name, dtype in dtypes.items()
        }
        self._sentences: list[np.ndarray] = []  # of each document, the numbers of tokens of its sentences
        self._documents: list[int] = []  # the number of sentences of each document

    def write(self, document: _Tokenized) -> None:
        """Add a document of at least one sentence."""
        self._sentences.append(document.lengths)
        self._documents.append(len(document.lengths))
        for name, writer in self._writers.items():
            writer.write(document.tokens if name == TOKENS else document.columns[name])

    def close(self) -> dict[str, Any]:
        """Finish the files, move them to the work folder, and return the facts from which the manifest is made."""
        tokens, *columns = self._writers.values()
        content = tokens.close()
        for ending, values in ((SENTENCES, np.concatenate([[], *self._sentences])), (DOCUMENTS, self._documents)):
            array = np.array(values, np.int64)
            np.save(self._folder / ending, array)
            self._workplace.put(self._folder / ending, lengths_name(self._shard, self._split, ending))
            content.update(array.astype("<i8").tobytes())
        return {
            "num_documents": len(self._documents),
            "num_sentences": sum(self._documents),
            "num_tokens": tokens.num_values,
            "num_blocks": tokens.num_blocks,
            "fingerprint": content.hexdigest(),
            "file": self._put(tokens.path, self._name),
            "columns": {
                column.name: {
                    "fingerprint": column.close().hexdigest(),
                    "file": self._put(column.path, column_name(column.name, self._name)),
                }
                for column in columns
            },
        }

    def _put(self, path: Path, name: str) -> dict[str, Any]:
        """Move a file to the work folder, and return its entry in the manifest."""
        facts = {"name": name, "bytes": path.stat().st_size, "sha256": files.sha256(path)}
        self._workplace.put(path, name)
        return facts


class _BlockWriter:
    """Writes values to a shard whose records are blocks of ``block_tokens`` values; the last block is shorter."""

    def __init__(self, path: Path, dtype: np.dtype, block_tokens: int, name: str) -> None:
        """
        Args:
          name: the name of the values in TFDS.
        """
        self.path, self.name = path, name
        self._dtype, self._block_tokens = dtype, block_tokens
        self._writer = ArrayRecordWriter(str(path), _WRITER_OPTIONS)
        self._content = hashlib.sha256()
        self._pending = np.zeros(0, dtype)  # values that do not fill a block yet
        self.num_values = self.num_blocks = 0

    def write(self, values: np.ndarray) -> None:
        """Add ``values`` [n]."""
        self.num_values += len(values)
        self._content.update(values.astype("<u4").tobytes())
        self._pending = np.concatenate([self._pending, values.astype(self._dtype)])
        whole = len(self._pending) // self._block_tokens * self._block_tokens
        for start in range(0, whole, self._block_tokens):
            self._write_block(self._pending[start : start + self._block_tokens])
        self._pending = self._pending[whole:]

    def close(self) -> hashlib._Hash:
        """Finish the shard, and return the hash of all values."""
        if len(self._pending):
            self._write_block(self._pending)
        with _os_errors():
            self._writer.close()
        return self._content

    def _write_block(self, values: np.ndarray) -> None:
        payload = values.tobytes()
        with _os_errors():
            self._writer.write(record_header(len(payload), self.name) + payload)
        self.num_blocks += 1


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Context manager that turns the ``RuntimeError`` that ArrayRecord raises for a full disk into ``OSError``."""
    try:
        yield
    except RuntimeError as error:
        number = write_errors.number_of(error) or errno.EIO
        raise OSError(number, str(error).partition(";")[0]) from error
