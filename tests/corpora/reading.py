"""What a source gives, for its tests."""

import bz2
import gzip
import lzma

import pyarrow

from bert_jax.corpora.source import Piece, Skipped
from bert_jax.records import Document

PACK = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
}  # the ending of a file -> what packs its bytes


def items(source) -> list[Document | Skipped]:
    return [item for piece in source.pieces() for item in source.read(piece)]


def documents(source) -> dict[str, tuple[str, ...]]:
    return {item.id: item.sentences for item in items(source) if isinstance(item, Document)}


def skipped(source) -> dict[str, str]:
    return {item.where: item.reason for item in items(source) if isinstance(item, Skipped)}


def kept_of(source, piece) -> list[Document]:
    return [item for item in source.read(piece) if isinstance(item, Document)]


def cut_everywhere(source, size, cuts=None) -> None:
    """Two pieces of the only file give the documents of the whole, in order, wherever they meet."""
    [whole] = source.pieces()
    expected = kept_of(source, whole)
    assert expected
    for cut in cuts or range(1, size):
        found = [kept_of(source, Piece(whole.name, *ends, size)) for ends in ((0, cut), (cut, -1))]
        assert sum(found, []) == expected, f"cut at byte {cut}"
