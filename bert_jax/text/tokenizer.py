"""The interface of every tokenizer, and functions that find and read a tokenizer of any kind.

A folder (a workdir, a Hugging Face directory) has its tokenizer in one file, whose name shows the kind: ``vocab.txt``
is WordPiece, ``spiece.model`` is sentencepiece (unigram or BPE), ``tokenizer.json`` is byte-level BPE. If a folder has
several of these files, the first in this order is used. Published ``vocab.json`` and ``merges.txt`` are byte-level BPE
too, and a published ``tokenizer.json`` may be WordPiece, or sentencepiece (Unigram); a workdir keeps these as
``vocab.txt`` and ``spiece.model``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.storage import files, reading
from bert_jax.text.byte_bpe import ByteBpe
from bert_jax.text.byte_level import MERGES, kind_of
from bert_jax.text.encoded import Encoded
from bert_jax.text.sentencepiece import SentencePiece
from bert_jax.text.wordpiece import WordPiece

FILE_NAMES = (WordPiece.file_name, SentencePiece.file_name, ByteBpe.file_name)
FILE_OF_KIND = {
    "wordpiece": WordPiece.file_name,
    "byte_bpe": ByteBpe.file_name,
}  # every other kind has sentencepiece's file
FILE_OF_MODEL = {"WordPiece": WordPiece.file_name, "Unigram": SentencePiece.file_name}  # in a tokenizer.json


class Tokenizer(Protocol):
    """Interface: turns text into ids and back. Threads may share a tokenizer. It is pickled as its vocabulary."""

    file_name: str  # the name of the tokenizer's file in a folder
    vocab: tuple[str, ...]  # [V] pieces by id
    lowercase: bool  # whether text is converted to lower case
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]  # the five above
    pair_separators: int  # the number of [SEP] between the texts of a pair: 1, or 2 in RoBERTa
    joiner: str  # put before a word, and before a sentence that follows another: " " if that changes its piece, else ""

    @property
    def size(self) -> int:
        """Return V, the number of pieces."""
        ...

    @property
    def sha256(self) -> str:
        """Return the identity of the tokenizer: the hash of everything that its ids depend on."""
        ...

    @property
    def is_continuation(self) -> np.ndarray:
        """Return whether each piece continues a word, bool [V].

        All other pieces start a word. After a special token, any piece starts a word.
        """
        ...

    @property
    def surfaces(self) -> tuple[tuple[str, bool | None], ...]:
        """Return, for each piece, its text and whether it continues a word, [V].

        The entry of a special token is (BERT's name for it, None). No two pieces of a tokenizer have the same entry.
        Pieces with the same meaning have the same entry in every kind of tokenizer.
        """
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only), without special tokens around it.

        Special tokens in a text are read as plain text.
        """
        ...

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None, special_tokens_in_text: bool = False
    ) -> Encoded:
        """Return ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``, cut and padded to ``max_length`` if given.

        If ``special_tokens_in_text``, ``[MASK]`` and the other special tokens are recognised in the texts.
        """
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the readable text of ``ids``: pieces joined to words, without padding and tokens around texts."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer's file, whole or not at all."""
        ...

    def tokenizer_json(self) -> str:
        """Return a Hugging Face ``tokenizer.json`` that gives the same ids."""
        ...


def load(path: str | os.PathLike[str], lowercase: bool | None = None) -> Tokenizer:
    """Return the tokenizer of a file, or of the first file of ``FILE_NAMES`` in a folder.

    Args:
      lowercase: whether to convert text to lower case and strip accents. If None, a sentencepiece model keeps its own
        rule, as does a ``tokenizer.json``, and a ``vocab.txt`` is taken as lower-case. The argument has
        no effect on a model of sentencepiece that converts to lower case by itself, or on byte-level BPE.

    Raises:
      UserError: there is no such file, or it is not a tokenizer.
    """
    if files.as_path(path).is_dir():
        path = find(path)
    kind = _file_of(path)
    if kind == ByteBpe.file_name:
        return ByteBpe.load(path)
    if kind == SentencePiece.file_name:
        return SentencePiece.load(path, lowercase)
    return WordPiece.load(path, lowercase)


def find(folder: str | os.PathLike[str]) -> os.PathLike[str]:
    """Return the tokenizer's file in ``folder``. Raises ``UserError`` if there is none."""
    found = existing(folder)
    if found is None:
        raise UserError(f"{folder} has neither {' nor '.join(FILE_NAMES)}; put the tokenizer's file there")
    return found


def existing(folder: str | os.PathLike[str]) -> os.PathLike[str] | None:
    """Return the tokenizer's file in ``folder``; None if there is none."""
    candidates = [files.as_path(folder) / name for name in (*FILE_NAMES, MERGES)]
    return next((path for path in candidates if path.exists()), None)


def file_name(kind: str, path: str | os.PathLike[str] = "") -> str:
    """Return the file name under which a folder keeps a tokenizer.

    Args:
      kind: the kind of a learned tokenizer.
      path: if not empty, an existing tokenizer; its kind is used instead of ``kind``.
    """
    return _file_of(path) if path else FILE_OF_KIND.get(kind, SentencePiece.file_name)


def _file_of(path: str | os.PathLike[str]) -> str:
    """Return the usual file name for the kind of tokenizer at ``path``: by its name, and by what a ``.json`` holds."""
    name = os.fspath(path)
    if name.endswith(".json") and (other := FILE_OF_MODEL.get(_model_of(path))):
        return other
    if name.endswith(".json") or os.path.basename(name) == MERGES:
        return ByteBpe.file_name
    return SentencePiece.file_name if name.endswith(".model") else WordPiece.file_name


def _model_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of the model in a ``tokenizer.json``; "" if it cannot be read."""
    model = (reading.read_object(files.as_path(path)) or {}).get("model")
    return kind_of(model) if isinstance(model, dict) else ""


def check_name(output: str | os.PathLike[str], kind: str, path: str | os.PathLike[str] = "") -> None:
    """Raise ``UserError`` if a file named ``output`` would be read as another kind of tokenizer."""
    wanted = file_name(kind, path)
    if _file_of(output) != wanted:
        found = f"the vocabulary {path}" if path else f"a vocabulary of kind {kind!r}"
        raise UserError(f"{output} would be read as a vocabulary of another kind than {found}; call it {wanted}")
