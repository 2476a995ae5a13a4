"""The store of a tokenized corpus: the build writes it, and training rows are read from it.

A store is a folder that TFDS can read too. Each split has ArrayRecord shards whose records are blocks of
``block_tokens`` tokens (the last block of a shard may be shorter; documents span blocks, never shards), an array with
the token offset of every sentence, and an array with the first sentence of every document. For each column
(``corpora.columns``), ``columns/<name>`` has shards of the same blocks with one value per token. ``manifest.json``
describes all files.

The manifest has a digest of itself and of every other file, to find damage. Opening a store checks the digests of all
small files, and the digests of the shards too if the shards have at most ``DIGESTED_BYTES`` together. Reading a shard
checks the hash of each of its chunks. In a larger store, only ``bert-jax corpus --verify`` finds a shard that was
replaced by a shard of another store with the same size and blocks of the same lengths.
"""

from __future__ import annotations

import collections
import functools
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from bert_jax.corpora import manifest as manifests
from bert_jax.corpora.columns import TOKENS, lacking
from bert_jax.corpora.manifest import SPLITS, DamagedError, check_file
from bert_jax.errors import UserError, first_line
from bert_jax.program import Note
from bert_jax.storage import files

if TYPE_CHECKING:
    from bert_jax.text.tokenizer import Tokenizer

DATASET_NAME = "corpus"
_CACHE_BYTES = 256 << 20
DIGESTED_BYTES = 256 << 20  # hashing these takes a fifth of a second
_OPEN_SHARDS = 256  # a corpus may have more shards than a process may have open files


def column_name(column: str, shard: str) -> str:
    """Return the name of the file with a column's values for the tokens of ``shard``."""
    return f"columns/{column}/{shard}"


def boundaries_name(split: str, kind: Literal["sentence_offsets", "document_starts"]) -> str:
    """Return the name of the file with the token offset of every sentence, or the first sentence of every document."""
    return f"{split}.{kind}.npy"


@functools.lru_cache
def record_header(num_bytes: int, feature: str = TOKENS) -> bytes:
    """Return the bytes of a record that come before its payload (tokens, or values of the column ``feature``).

    A record is ``tf.train.Example(features={feature: BytesList([<num_bytes> bytes])})``, so that TFDS can decode it.
    Since it has only one feature, the payload is the end of the record.
    """
    key = feature.encode()
    header = b""
    for tag in (b"\x0a", b"\x0a", b"\x12", b"\x0a", b"\x0a"):  # value, bytes_list, map value; map entry; features
        if tag == b"\x12":
            header = b"\x0a" + _varint(len(key)) + key + tag + _varint(len(header) + num_bytes) + header
        else:
            header = tag + _varint(len(header) + num_bytes) + header
    return header


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class Corpus:
    """A corpus opened for reading. A remote corpus is copied to the local cache first.

    Raises:
      UserError: the folder is not a corpus or has another format; its manifest, its boundaries or its metadata are
        damaged; a shard is missing or has the wrong size.
    """

    def __init__(self, path: str | os.PathLike[str], cache_bytes: int = _CACHE_BYTES, note: Note | None = None) -> None:
        """
        Args:
          cache_bytes: the bytes of decoded blocks that each split keeps in memory, for the tokens and for each column.
          note: called with a line for each copy from an object store.
        """
        self.folder = manifests.stage(path, note)
        self._cache_bytes = cache_bytes
        self.manifest = manifests.read(self.folder)
        _check_files(self.folder, self.manifest)
        self.fingerprint: str = self.manifest["fingerprint"]
        self.tokenizer_sha256: str = self.manifest["tokenizer_sha256"]

    def split(self, name: str) -> CorpusSplit:
        """Return the split ``train`` or ``heldout``."""
        if name not in SPLITS:
            raise UserError(f"unknown split {name!r} of a corpus; valid: {', '.join(SPLITS)}")
        return CorpusSplit(self.folder, name, self._cache_bytes)

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise ``UserError`` if the corpus lacks one of the columns ``names``."""
        for name in names:
            if name not in self.manifest["columns"]:
                raise lacking(self.folder, name, self.manifest["columns"])

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise ``UserError`` unless the corpus was made with this vocabulary."""
        if tokenizer.sha256 != self.tokenizer_sha256:
            raise UserError(
                f"the corpus {self.folder} was made with another vocabulary (sha256 {self.tokenizer_sha256[:12]}, not"
                f" {tokenizer.sha256[:12]}); name the vocabulary it was made with, or build the corpus again"
            )


class CorpusSplit:
    """One split of a corpus, with random access to tokens and columns. Threads may share it. Pickled as its path."""

    def __init__(self, folder: Path, name: str, cache_bytes: int = _CACHE_BYTES) -> None:
        manifest = manifests.read(folder)
        facts = manifest["splits"][name]
        self.name = name
        self.fingerprint: str = facts["fingerprint"]
        self.num_tokens: int = facts["num_tokens"]
        self.num_sentences: int = facts["num_sentences"]
        self.num_documents: int = facts["num_documents"]
        self.num_words: int | None = facts.get("num_words")  # as white space cuts the text; older stores do not say it
        # sentence_offsets: int64 [S + 1], the last entry is num_tokens
        # document_starts: int64 [N + 1], the last entry is num_sentences
        self.sentence_offsets: np.ndarray = np.load(folder / boundaries_name(name, "sentence_offsets"), mmap_mode="r")
        self.document_starts: np.ndarray = np.load(folder / boundaries_name(name, "document_starts"), mmap_mode="r")
        self._arguments = (folder, name, cache_bytes)
        self._blocks = {
            column: _Blocks(folder, manifest, name, cache_bytes, column) for column in (TOKENS, *manifest["columns"])
        }

    def __reduce__(self) -> tuple[type[CorpusSplit], tuple[Path, str, int]]:
        return CorpusSplit, self._arguments

    def sentence_lengths(self) -> np.ndarray:
        """Return int64 [S]: the number of tokens of each sentence, at least 1."""
        return np.diff(self.sentence_offsets)

    def read(self, starts: np.ndarray, lengths: np.ndarray, column: str = TOKENS) -> np.ndarray:
        """Return the tokens, or a column's values, of n spans, concatenated.

        Args:
          starts: int64 [n], the token offset in the split at which each span starts.
          lengths: int64 [n], the number of tokens of each span.
          column: the column to read, which has one value per token.

        Returns:
          int32 [sum(lengths)].

        Raises:
          UserError: the corpus has no such column, or is damaged in one of the spans.
        """
        if column not in self._blocks:
            raise lacking(self._arguments[0], column, self._blocks.keys() - {TOKENS})
        of_column = self._blocks[column]
        stops = starts + lengths
        assert len(starts) == 0 or (starts.min() >= 0 and lengths.min() >= 0 and stops.max() <= self.num_tokens)
        first, last = of_column.find(starts), of_column.find(np.maximum(stops - 1, starts))
        blocks = of_column.get(np.unique(np.concatenate([first, last])))
        pieces = []
        spans = (values.tolist() for values in (starts, stops, first, last, of_column.starts[first]))
        for start, stop, block, final, offset in zip(*spans, strict=True):
            if block == final:
                pieces.append(blocks[block][start - offset : stop - offset])
            else:
                pieces += of_column.across(blocks, start, stop, range(block, final + 1))
        return np.concatenate(pieces, dtype=np.int32, casting="same_kind") if pieces else np.zeros(0, np.int32)


class _Blocks:
    """Reads blocks of the tokens or of a column, and caches the most recently used blocks, up to ``cache_bytes``."""

    def __init__(self, folder: Path, manifest: dict[str, Any], split: str, cache_bytes: int, column: str) -> None:
        facts = manifest["splits"][split]
        names = [shard["name"] for shard in facts["shards"]]
        self._folder, self._column = folder, column
        self._names = names if column == TOKENS else [column_name(column, name) for name in names]
        self._dtype = np.dtype((manifest if column == TOKENS else manifest["columns"][column])["dtype"])
        self._first_records = np.cumsum([0] + [shard["num_blocks"] for shard in facts["shards"]])
        # int64 [n + 1]: the offset of each block's first token, and at the end the number of tokens
        self.starts = _block_starts(facts["shards"], manifest["block_tokens"])
        self._capacity = max(1, cache_bytes // (manifest["block_tokens"] * self._dtype.itemsize))
        self._cache: collections.OrderedDict[int, np.ndarray] = collections.OrderedDict()
        self._readers: dict[int, ArrayRecordReader] = {}
        self._lock = threading.Lock()

    def find(self, tokens: np.ndarray) -> np.ndarray:
        """Return the number of the block that holds each token offset in ``tokens`` [n], int64 [n]."""
        return np.minimum(np.searchsorted(self.starts, tokens, side="right") - 1, len(self.starts) - 2)

    def get(self, numbers: np.ndarray) -> dict[int, np.ndarray]:
        """Return number -> block for each of ``numbers``. A block is an array of the stored dtype."""
        with self._lock:
            missing = [number for number in numbers.tolist() if number not in self._cache]
            if missing:
                self._cache.update(zip(missing, self._load(np.array(missing)), strict=True))
            blocks = {}
            for number in numbers.tolist():
                self._cache.move_to_end(number)
                blocks[number] = self._cache[number]
            while len(self._cache) > self._capacity:
                self._cache.popitem(last=False)
        return blocks

    def across(self, blocks: dict[int, np.ndarray], start: int, stop: int, numbers: range) -> list[np.ndarray]:
        """Return the pieces of the span [start, stop), one for each block that it covers.

        ``numbers`` are the numbers of those blocks, in order. ``blocks`` has at least the first and the last of them,
        already loaded.
        """
        inner = np.array(numbers[1:-1], np.int64)
        blocks = {**blocks, **self.get(inner)} if len(inner) else blocks
        offsets = self.starts[numbers.start : numbers.stop].tolist()
        return [blocks[b][max(start - o, 0) : stop - o] for b, o in zip(numbers, offsets, strict=True)]

    def _load(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Return the decoded blocks with the given ``numbers``, which must be ascending."""
        shards = np.searchsorted(self._first_records, numbers, side="right") - 1
        records: list[bytes] = []
        for shard in np.unique(shards).tolist():
            wanted = (numbers[shards == shard] - self._first_records[shard]).tolist()
            try:
                records += self._reader(shard).read(wanted)
            except (RuntimeError, ValueError, IndexError) as error:  # a wrong hash of a chunk or of the file's index
                raise self._damaged(shard, first_line(error)) from error
        return [self._decode(record, number) for record, number in zip(records, numbers.tolist(), strict=True)]

    def _reader(self, shard: int) -> ArrayRecordReader:
        if shard not in self._readers:
            if len(self._readers) >= _OPEN_SHARDS:
                self._readers.pop(next(iter(self._readers)))
            path = self._folder / self._names[shard]
            reader = ArrayRecordReader(os.fspath(path), "readahead_buffer_size:0,max_parallelism:0")
            expected = self._first_records[shard + 1] - self._first_records[shard]
            if not reader.ok() or reader.num_records() != expected:  # a truncated file opens with no records
                raise self._damaged(shard, f"without the {expected:,} blocks that the manifest says")
            if expected:  # a shard of another store usually has a last block of another length
                self._decode(reader.read([expected - 1])[0], self._first_records[shard + 1] - 1)
            self._readers[shard] = reader
        return self._readers[shard]

    def _damaged(self, shard: int, why: str) -> DamagedError:
        return DamagedError(f"{self._folder / self._names[shard]} is damaged ({why})")

    def _decode(self, record: bytes, number: int) -> np.ndarray:
        tokens = int(self.starts[number + 1] - self.starts[number])
        header = record_header(tokens * self._dtype.itemsize, self._column)
        if not record.startswith(header):
            shard = int(np.searchsorted(self._first_records, number, side="right")) - 1
            raise self._damaged(shard, f"block {number - self._first_records[shard]:,} is of another length")
        return np.frombuffer(record, self._dtype, count=tokens, offset=len(header))


def _block_starts(shards: list[dict[str, Any]], block_tokens: int) -> np.ndarray:
    """Return int64 [n + 1]: the token offset at which each of the n blocks starts, and the number of tokens."""
    sizes = [np.full(shard["num_blocks"], block_tokens, np.int64) for shard in shards]
    for size, shard in zip(sizes, shards, strict=True):
        if len(size):
            size[-1] = shard["num_tokens"] - block_tokens * (len(size) - 1)
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))


def _check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise ``DamagedError`` if a file has the wrong size or content.

    The content of shards with more than ``DIGESTED_BYTES`` together is not checked.
    """
    shards = {name for name in manifest["files"] if re.fullmatch(r".*\.array_record-\d+-of-\d+", name)}
    large = sum(manifest["files"][name]["bytes"] for name in shards) > DIGESTED_BYTES
    for name, facts in manifest["files"].items():
        check_file(folder / name, facts, None if large and name in shards else _digest_once)


def _digest_once(path: Path) -> str:
    facts = path.stat()
    return _digest(path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, *version: int) -> str:
    """Return the sha256 of a file, cached under its path and ``version`` (inode, size and times).

    A run opens its corpus several times, and the boundary files of a large corpus have gigabytes.
    """
    return files.sha256(path)
