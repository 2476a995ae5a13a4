"""Reads and checks a ``vocab.txt``: the pieces of a WordPiece tokenizer, one on each line."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.storage import files, reading


def read_vocab(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the pieces of a ``vocab.txt``, one on each line; the line number is the id.

    Raises:
      UserError: the file is missing, not UTF-8 (with the byte offset) or empty, has a piece twice, or lacks a special
        token.
    """
    source = files.as_path(path)
    if not source.exists():
        raise UserError(f"no vocabulary file {path}; learn one with `bert-jax vocab` or name a published vocab.txt")
    return check_vocab(lines_of(reading.utf8_text(source, str(path), "vocabulary")), str(path))


def lines_of(text: str) -> list[str]:
    """Return the lines of a ``vocab.txt``. Only a line feed ends a line: U+2028 and the like are published pieces."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def check_vocab(pieces: Sequence[str], where: str) -> tuple[str, ...]:
    """Return ``pieces`` as a tuple. Raises ``UserError``, with ``where`` in it, if ``pieces`` is not a vocabulary."""
    if not any(pieces):
        raise UserError(f"{where} is empty; a vocabulary has one piece a line")
    missing = [token for token in SPECIAL_TOKENS if token not in pieces]
    if missing:
        raise UserError(
            f"{where} lacks the special token{'s' * (len(missing) > 1)} {' '.join(missing)}; add each as a line of its"
            " own (BERT's vocabularies use capitals), or learn a vocabulary with `bert-jax vocab`"
        )
    if len(set(pieces)) < len(pieces):
        first: dict[str, int] = {}
        for number, piece in enumerate(pieces, 1):
            if first.setdefault(piece, number) != number:
                raise UserError(f"{where} has {piece!r} on line {first[piece]} and on line {number}; keep one of them")
    return tuple(pieces)
