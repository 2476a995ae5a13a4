"""Show the pieces, ids, types, mask and character offsets of a text or a pair of texts."""

from __future__ import annotations

import argparse
import dataclasses
import json

from bert_jax.cli.flags import whole_number
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.case import Case
from bert_jax.text.encoded import Encoded
from bert_jax.text.tokenizer import Tokenizer

_MOST_POSITIONS = 1_000_000  # the printed table has at most so many positions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("texts", nargs="+", metavar="TEXT", help="one text, or two that make a pair")
    add("--vocab", required=True, help="vocab.txt, .model or tokenizer.json, or a folder with one")
    add("--cased", action="store_true", help="keep capitals and accents, if no file says what to do with them")
    add("--max_length", type=whole_number(1, _MOST_POSITIONS), help="cut and pad to this many positions")
    add("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.interchange.tokenizer_files import tokenizer_of

    if len(arguments.texts) > 2:
        raise UserError(f"found {len(arguments.texts)} texts, at most two are allowed; put quotes around each")
    tokenizer = tokenizer_of(arguments.vocab, Case(False if arguments.cased else None))
    if arguments.cased and tokenizer.lowercase:
        raise UserError(f"--cased: {arguments.vocab} says itself that text is converted to lower case; leave it out")
    text, pair = [*arguments.texts, None][:2]
    names = {*SPECIAL_TOKENS, *(tokenizer.vocab[i] for i in tokenizer.special_ids)}
    special = any(name in text for text in arguments.texts for name in names)
    encoded = tokenizer.encode(text, pair, arguments.max_length, special)
    print(json.dumps(dataclasses.asdict(encoded), ensure_ascii=False) if arguments.json else _table(tokenizer, encoded))


def _table(tokenizer: Tokenizer, encoded: Encoded) -> str:
    """Return text with a line for each piece and a last line with all ids, ready to copy."""
    rows = [("piece", "id", "type", "mask", "offset")]
    pieces = map(tokenizer.readable, encoded.input_ids)
    columns = (pieces, encoded.input_ids, encoded.token_type_ids, encoded.attention_mask, encoded.offsets)
    for piece, token_id, token_type, mask, (start, stop) in zip(*columns, strict=True):
        rows.append((piece, str(token_id), str(token_type), str(mask), f"{start}-{stop}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", "ids: " + " ".join(map(str, encoded.input_ids))])
