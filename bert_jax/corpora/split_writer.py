"""Writes one split of a store, document by document, in bounded memory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bert_jax.corpora.store import record_header, shard_name

SHARD_TOKENS = 1 << 26  # 128 MiB of uint16
# Larger groups are up to 85 times slower to read at random; compression saves a quarter and halves the speed.
WRITER_OPTIONS = "group_size:1,uncompressed"


class SplitWriter:
    """Blocks into ArrayRecord shards; sentence offsets and document starts into ``.npy`` files beside them."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype, block_tokens: int) -> None:
        self._folder, self._split, self._dtype, self._block_tokens = folder, split, dtype, block_tokens
        self._sentences = _GrowingArray(folder / f"{split}.sentence_offsets.npy")
        self._documents = _GrowingArray(folder / f"{split}.document_starts.npy")
        self._sentences.append(np.zeros(1, np.int64))
        self._documents.append(np.zeros(1, np.int64))
        self._content = hashlib.sha256()
        self._pending = np.zeros(0, dtype)  # tokens that do not fill a block yet
        self._shards: list[int] = []  # blocks of each
        self._writer: ArrayRecordWriter | None = None
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self.num_long_documents = 0  # with at least two sentences

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the files, also of a split that was not finished."""
        self._writer = None
        self._sentences.abandon()
        self._documents.abandon()

    def write(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Add a document: ``tokens`` [sum(lengths)] of the sentences ``lengths`` [S], S at least 1."""
        self._sentences.append(self.num_tokens + np.cumsum(lengths))
        self.num_tokens += len(tokens)
        self.num_sentences += len(lengths)
        self.num_documents += 1
        self.num_long_documents += len(lengths) > 1
        self._documents.append(np.array([self.num_sentences], np.int64))
        self._content.update(tokens.astype("<u4").tobytes())
        self._pending = np.concatenate([self._pending, tokens.astype(self._dtype)])
        whole = len(self._pending) // self._block_tokens * self._block_tokens
        for start in range(0, whole, self._block_tokens):
            self._write_block(self._pending[start : start + self._block_tokens])
        self._pending = self._pending[whole:]

    def close(self) -> dict[str, Any]:
        """Finish the files; what the manifest says of the split."""
        if len(self._pending):
            self._write_block(self._pending)
        self._close_shard()
        names = [shard_name(self._split, i, len(self._shards)) for i in range(len(self._shards))]
        for i, name in enumerate(names):
            self._part(i).rename(self._folder / name)
        for array in (self._sentences, self._documents):
            self._content.update(array.close().encode())
        return {
            "num_documents": self.num_documents,
            "num_sentences": self.num_sentences,
            "num_tokens": self.num_tokens,
            "fingerprint": self._content.hexdigest(),
            "shards": [{"name": n, "num_blocks": b} for n, b in zip(names, self._shards, strict=True)],
        }

    def _write_block(self, tokens: np.ndarray) -> None:
        if self._writer is None or self._shards[-1] * self._block_tokens >= SHARD_TOKENS:
            self._close_shard()
            self._shards.append(0)
            self._writer = ArrayRecordWriter(str(self._part(len(self._shards) - 1)), WRITER_OPTIONS)
        payload = tokens.tobytes()
        with _os_errors():
            self._writer.write(record_header(len(payload)) + payload)
        self._shards[-1] += 1

    def _close_shard(self) -> None:
        if self._writer is not None:
            with _os_errors():
                self._writer.close()
            self._writer = None

    def _part(self, index: int) -> Path:
        """The number of shards is in their names, and known only at the end."""
        return self._folder / f"{self._split}.{index:05d}.part"


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """ArrayRecord says a full disk with a RuntimeError of several lines."""
    try:
        yield
    except RuntimeError as error:
        number = errno.ENOSPC if "No space left" in str(error) else errno.EIO
        raise OSError(number, str(error).partition(";")[0]) from error


class _GrowingArray:
    """An int64 ``.npy`` file that is appended to: numpy pads the header so that the length can be written later."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (close, abandon)
        self._length = 0
        self._hash = hashlib.sha256()
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        data = values.astype("<i8").tobytes()
        self._file.write(data)
        self._hash.update(data)
        self._length += len(values)

    def close(self) -> str:
        """Write the final length; the hash of the values."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        return self._hash.hexdigest()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk does not take is not wanted any more
            self._file.close()

    def _write_header(self) -> None:
        facts = {"descr": "<i8", "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, facts)
