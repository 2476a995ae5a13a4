"""Judge a corpus: duplicates, vocabulary, encoding, rows, overlap; exit code 1 if something is bad."""

from __future__ import annotations

import argparse
import json

from bert_jax.errors import UserError
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", required=True, help="folder that `bert-jax corpus` wrote")
    parser.add_argument(
        "--vocab",
        help="the vocab.txt, .model or tokenizer.json that made it (default: the one in that folder or beside it)",
    )
    parser.add_argument("--eval", help="an evaluation set: a glob of text files, or another corpus")
    parser.add_argument("--max_length", default="128,512", help="row lengths to plan for (default: 128,512)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--output", help="folder for report.html")
    parser.add_argument("--card", action="store_true", help="write card.md of the corpus again, with the result")
    parser.add_argument(
        "--private",
        action="store_true",
        help="print and write no text and no path of the corpus; always so if it was built --private",
    )


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.inspection.inspect import InspectionRequest, inspect
    from bert_jax.inspection.page import as_lines, check_card, update_card, write_report

    request = InspectionRequest(
        arguments.corpus, arguments.vocab, arguments.eval, _lengths(arguments.max_length), arguments.private
    )
    if arguments.card:
        check_card(arguments.corpus)
    if arguments.output:
        files.check_writable(arguments.output, folder=True)
    found = inspect(request)
    notes = [write_report(found, arguments.output)] if arguments.output else []
    notes += [update_card(found, arguments.corpus)] if arguments.card else []
    print(
        json.dumps(found.as_record(), ensure_ascii=False) if arguments.json else "\n".join([*as_lines(found), *notes])
    )
    return 1 if found.verdict == "bad" else 0


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--max_length={text} is not a list of numbers; write --max_length=128,512") from error
