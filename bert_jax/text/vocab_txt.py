"""Splits and checks a ``vocab.txt``: the pieces of a WordPiece tokenizer, one on each line; its number is the id."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS


def lines_of(text: str) -> list[str]:
    """Return the lines of a ``vocab.txt``. Only a line feed ends a line: U+2028 and the like are published pieces."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def check_vocab(pieces: Sequence[str], where: str) -> None:
    """Raise ``UserError``, with ``where`` in it, if ``pieces`` is empty, repeats a piece or lacks a special token."""
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
