"""What a tokenizer is here, and how one is found and read, whichever its kind.

A folder (a workdir, a Hugging Face directory) has its tokenizer in one file, and the name says the kind: ``vocab.txt``
is WordPiece, ``spiece.model`` is sentencepiece, unigram or BPE, ``tokenizer.json`` is byte-level BPE. In a folder that
has several of them the first in this order counts. Published ``vocab.json`` and ``merges.txt`` are byte-level BPE too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.storage import files
from bert_jax.text.byte_bpe import ByteBpe
from bert_jax.text.byte_level import MERGES
from bert_jax.text.encoded import Encoded
from bert_jax.text.sentencepiece import SentencePiece
from bert_jax.text.wordpiece import WordPiece

FILE_NAMES = (WordPiece.file_name, SentencePiece.file_name, ByteBpe.file_name)
FILE_OF_KIND = {"wordpiece": WordPiece.file_name, "byte_bpe": ByteBpe.file_name}  # every other kind: sentencepiece's


class Tokenizer(Protocol):
    """Text to ids and back. Safe to share between threads; pickles as its vocabulary."""

    file_name: str  # what its file is called in a folder
    vocab: tuple[str, ...]  # [V] pieces by id
    lowercase: bool  # capitals are lowered
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]  # the five above
    pair_separators: int  # [SEP] between the texts of a pair: 1, or 2 in RoBERTa

    @property
    def size(self) -> int:
        """V, the number of pieces."""
        ...

    @property
    def sha256(self) -> str:
        """Identity of the tokenizer: what its ids depend on, hashed."""
        ...

    @property
    def is_continuation(self) -> np.ndarray:
        """bool [V]: the piece goes on with a word. A word starts where this is False, and after a special token."""
        ...

    @property
    def surfaces(self) -> tuple[tuple[str, bool | None], ...]:
        """[V] the text that a piece stands for, and whether it goes on with a word; of special tokens BERT's name, and
        None. No two pieces share one, and pieces that mean the same have equal ones in tokenizers of every kind."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32 (read-only), without special tokens; special tokens in a text are plain text."""
        ...

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None, special_tokens_in_text: bool = False
    ) -> Encoded:
        """``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``, cut and padded to ``max_length`` if that is given.

        ``special_tokens_in_text`` recognises ``[MASK]`` and the others where they stand in a text.
        """
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Readable text: pieces joined to words; padding and the tokens around texts left out."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write its file, whole or not at all."""
        ...

    def tokenizer_json(self) -> str:
        """A Hugging Face ``tokenizer.json`` that gives the same ids."""
        ...


def load(path: str | os.PathLike[str], lowercase: bool | None = None) -> Tokenizer:
    """The tokenizer of a file, or of the one file of ``FILE_NAMES`` in a folder.

    Args:
      lowercase: lower capitals (and strip accents)? None: as a sentencepiece model does by itself; a ``vocab.txt``
        does not say, and is taken as lower-case. A model that lowers by itself does so whatever is asked, and a
        ``tokenizer.json`` does as it says.

    Raises:
      UserError: no such file, or one that makes no tokenizer.
    """
    if files.as_path(path).is_dir():
        path = find(path)
    kind = _file_of(path)
    if kind == ByteBpe.file_name:
        return ByteBpe.load(path)
    if kind == SentencePiece.file_name:
        return SentencePiece.load(path, lowercase)
    return WordPiece.load(path, lowercase is not False)


def find(folder: str | os.PathLike[str]) -> os.PathLike[str]:
    """The tokenizer's file in ``folder``. Raises ``UserError`` where there is none."""
    found = existing(folder)
    if found is None:
        raise UserError(f"{folder} has neither {' nor '.join(FILE_NAMES)}; put the tokenizer's file there")
    return found


def existing(folder: str | os.PathLike[str]) -> os.PathLike[str] | None:
    """The tokenizer's file in ``folder``, or None."""
    candidates = [files.as_path(folder) / name for name in (*FILE_NAMES, MERGES)]
    return next((path for path in candidates if path.exists()), None)


def file_name(kind: str, path: str | os.PathLike[str] = "") -> str:
    """What a folder calls the file of a tokenizer: a copy of ``path``, or a learned one of ``kind``, where that is
    empty."""
    return _file_of(path) if path else FILE_OF_KIND.get(kind, SentencePiece.file_name)


def _file_of(path: str | os.PathLike[str]) -> str:
    """Return what a folder calls the file of the kind that the name of ``path`` says; any other name is a vocab.txt."""
    name = os.fspath(path)
    if name.endswith(".json") or os.path.basename(name) == MERGES:
        return ByteBpe.file_name
    return SentencePiece.file_name if name.endswith(".model") else WordPiece.file_name


def check_name(output: str | os.PathLike[str], kind: str, path: str | os.PathLike[str] = "") -> None:
    """Raise ``UserError`` where the name of ``output`` would be read as a tokenizer of another kind."""
    wanted = file_name(kind, path)
    if _file_of(output) != wanted:
        found = f"the vocabulary {path}" if path else f"a vocabulary of kind {kind!r}"
        raise UserError(f"{output} would be read as a vocabulary of another kind than {found}; call it {wanted}")
