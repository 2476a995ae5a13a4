"""Show the pieces, ids, types, mask and character offsets of a text or a pair of texts."""

from __future__ import annotations

import argparse
import dataclasses
import json

from bert_jax.cli.flags import whole
from bert_jax.errors import UserError
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.encoded import Encoded

MOST_POSITIONS = 1_000_000  # the printed table has at most so many positions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="one text, or two that make a pair")
    parser.add_argument("--vocab", required=True, help="vocab.txt, a .model of sentencepiece, or a tokenizer.json")
    parser.add_argument(
        "--cased", action="store_true", help="keep capitals and accents; a .model or .json has its own rule"
    )
    parser.add_argument("--max_length", type=whole(1, MOST_POSITIONS), help="cut and pad to this many positions")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> None:
    if len(arguments.texts) > 2:
        raise UserError(f"found {len(arguments.texts)} texts, at most two are allowed; put quotes around each")
    tokenizer = tokenizers.load(arguments.vocab, lowercase=False if arguments.cased else None)
    if arguments.cased and tokenizer.lowercase:
        raise UserError(f"{arguments.vocab} itself says that text becomes lower case; leave --cased out")
    text, pair = [*arguments.texts, None][:2]
    encoded = tokenizer.encode(text, pair, max_length=arguments.max_length)
    print(json.dumps(dataclasses.asdict(encoded), ensure_ascii=False) if arguments.json else _table(encoded))


def _table(encoded: Encoded) -> str:
    """Return text with a line for each piece and a last line with all ids, ready to copy."""
    rows = [("piece", "id", "type", "mask", "offset")]
    columns = (encoded.pieces, encoded.input_ids, encoded.token_type_ids, encoded.attention_mask, encoded.offsets)
    for piece, token_id, token_type, mask, (start, stop) in zip(*columns, strict=True):
        rows.append((piece, str(token_id), str(token_type), str(mask), f"{start}-{stop}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", "ids: " + " ".join(map(str, encoded.input_ids))])
