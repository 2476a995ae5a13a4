"""Splits and checks a ``vocab.txt``: each line has a piece of a WordPiece tokenizer; the line's number is the id."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.marks import SPACE
from bert_jax.text.tokenizer_json import NO_PIECE

_NUMBERED = re.compile(r"(.*)\t(\d+)")  # piece TAB id, as PaddlePaddle writes
_COUNTED = re.compile(r"\S+ \d+")  # piece SPACE count, as fairseq writes


def lines_of(text: str, rows: int | None = None) -> list[str]:
    """Return the lines of a ``vocab.txt``, each without the white space around it, as google-research/bert reads them.

    Only a line feed ends a line, and a line of nothing but white space stays: U+2028 and ##U+2028 are published pieces.
    If each line is a piece, a tab and the number of the line, the lines are the pieces.

    Args:
      rows: how many of the lines count; blank lines at the end that go beyond are left out.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    lines = lines if lines[-1] else lines[:-1]
    while rows is not None and len(lines) > rows and not lines[-1].strip():
        lines.pop()
    numbered = [_NUMBERED.fullmatch(line) for line in lines]
    if lines and all(match and int(match[2]) == i for i, match in enumerate(numbered)):
        lines = [match[1] for match in numbered if match]
    return [line.strip() if line.strip().removeprefix("##") else line for line in lines]


def check_vocab(pieces: Sequence[str], where: str, special: Sequence[str] = SPECIAL_TOKENS) -> None:
    """Raise ``UserError``, with ``where`` in it, if ``pieces`` lack a ``special`` token or are not WordPiece's."""
    if not any(pieces):
        raise UserError(f"{where} is empty; a vocabulary has one piece a line")
    for form, made, advice in (
        (_NUMBERED, "a piece, a tab and a number that is not its line's", "sort the lines by their numbers, from 0 on"),
        (_COUNTED, "a piece and its count", "it is a dictionary of fairseq: give a tokenizer.json"),
    ):
        if form.fullmatch(pieces[0]) and form.fullmatch(pieces[-1]):
            raise UserError(f"{where} has {pieces[0]!r} on line 1, {made}; {advice}")
    missing = [token for token in special if token not in pieces]
    if missing:
        raise UserError(
            f"{where} lacks the special token{'s' * (len(missing) > 1)} {' '.join(missing)}; add each as a line of its"
            " own (BERT's vocabularies use capitals), name others in a tokenizer_config.json beside it (unk_token, "
            "...), or learn a vocabulary with `bert-jax vocab`"
        )
    if not any(piece.startswith("##") for piece in pieces):
        for mark, found in ((SPACE, str.startswith), ("@@", str.endswith)):
            if other := next((piece for piece in pieces if found(piece, mark) and piece != mark), None):
                raise UserError(
                    f"{where} has {other!r} and no piece with ##: its pieces are not WordPiece's; give the .model or "
                    "the tokenizer.json that the vocabulary belongs to"
                )


def vocab_difference(lines: Sequence[str], ids: Mapping[str, int], added: Mapping[Any, Any]) -> str | None:
    """Return how the lines of a ``vocab.txt`` differ from the pieces of the ``tokenizer.json`` beside it; None if not.

    Args:
      ids: piece -> id, without added tokens.
      added: added token -> id.
    """
    for piece, i in sorted(ids.items(), key=lambda item: item[1]):
        if piece != NO_PIECE.format(i) and (i >= len(lines) or lines[i] != piece):
            ours = f"{lines[i]!r} on line {i + 1:,}" if i < len(lines) else f"{len(lines):,} lines"
            return f"has {ours}, but tokenizer.json has {len(ids):,} pieces, {piece!r} as number {i + 1:,}"
    for i, line in enumerate(lines[len(ids) :], len(ids)):
        if line.strip() and added.get(line) != i:
            return f"has {line!r} on line {i + 1:,}, but tokenizer.json has {len(ids):,} pieces"
    return None
