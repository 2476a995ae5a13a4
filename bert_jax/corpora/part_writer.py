"""Writes one split of one part: a shard of token blocks, and the lengths of its sentences and documents beside it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bert_jax.corpora.store import record_header

# Larger groups are up to 85 times slower to read at random; compression saves a quarter and halves the speed.
WRITER_OPTIONS = "group_size:1,uncompressed"
SHARD, SENTENCES, DOCUMENTS = "array_record", "sentences.npy", "documents.npy"  # how the three files end


class PartWriter:
    """``<split>.array_record``, ``<split>.sentences.npy`` (tokens of each) and ``<split>.documents.npy`` (sentences of
    each) in ``folder``. Memory is bounded by the number of sentences of the part."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype, block_tokens: int) -> None:
        self._folder, self._split, self._dtype, self._block_tokens = folder, split, dtype, block_tokens
        self._writer = ArrayRecordWriter(str(self._path(SHARD)), WRITER_OPTIONS)
        self._lengths: list[np.ndarray] = []
        self._documents: list[int] = []
        self._content = hashlib.sha256()
        self._pending = np.zeros(0, dtype)  # tokens that do not fill a block yet
        self.num_tokens = self.num_blocks = 0
        self.num_long_documents = 0  # with at least two sentences

    def write(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Add a document: ``tokens`` [sum(lengths)] of the sentences ``lengths`` [S], S at least 1."""
        self._lengths.append(lengths)
        self._documents.append(len(lengths))
        self.num_tokens += len(tokens)
        self.num_long_documents += len(lengths) > 1
        self._content.update(tokens.astype("<u4").tobytes())
        self._pending = np.concatenate([self._pending, tokens.astype(self._dtype)])
        whole = len(self._pending) // self._block_tokens * self._block_tokens
        for start in range(0, whole, self._block_tokens):
            self._write_block(self._pending[start : start + self._block_tokens])
        self._pending = self._pending[whole:]

    def close(self) -> dict[str, Any]:
        """Finish the files; what the manifest says of them."""
        if len(self._pending):
            self._write_block(self._pending)
        with _os_errors():
            self._writer.close()
        for name, values in ((SENTENCES, np.concatenate([[], *self._lengths])), (DOCUMENTS, self._documents)):
            array = np.array(values, np.int64)
            np.save(self._path(name), array)
            self._content.update(array.astype("<i8").tobytes())
        return {
            "num_documents": len(self._documents),
            "num_sentences": sum(self._documents),
            "num_tokens": self.num_tokens,
            "num_long_documents": self.num_long_documents,
            "num_blocks": self.num_blocks,
            "fingerprint": self._content.hexdigest(),
        }

    def _write_block(self, tokens: np.ndarray) -> None:
        payload = tokens.tobytes()
        with _os_errors():
            self._writer.write(record_header(len(payload)) + payload)
        self.num_blocks += 1

    def _path(self, ending: str) -> Path:
        return self._folder / f"{self._split}.{ending}"


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """ArrayRecord says a full disk with a RuntimeError of several lines."""
    try:
        yield
    except RuntimeError as error:
        number = errno.ENOSPC if "No space left" in str(error) else errno.EIO
        raise OSError(number, str(error).partition(";")[0]) from error
