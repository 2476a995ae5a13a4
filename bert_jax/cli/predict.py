"""Predict new examples with a fine-tuned model, one JSON object per line."""

from __future__ import annotations

import argparse
import json

from bert_jax.cli.flags import add_model
from bert_jax.errors import UserError
from bert_jax.program import say
from bert_jax.reporting.progress import progress_notes
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts to predict, in place of --input; two for each pair, or a question and its context",
    )
    add_model(parser)
    parser.add_argument(
        "--input",
        help="a file like the files that the model was trained on, answers may be missing; with --format=raw_text a "
        "text a line, whose number is the id of its record",
    )
    parser.add_argument("--output", help="the file to write (default: print)")


def run(arguments: argparse.Namespace) -> None:
    if bool(arguments.texts) == bool(arguments.input):
        raise UserError("give either texts or --input=FILE")
    if arguments.texts and arguments.format:
        raise UserError(f"--format={arguments.format} says how --input is written; leave it out with typed texts")
    if arguments.output:
        files.check_writable(arguments.output)
    from bert_jax.runs import prediction
    from bert_jax.runs.prediction import in_rows, read_examples, texts_as_examples, typed_keys, write_predictions

    options, keys = typed_keys(arguments.overrides, bool(arguments.input))
    model = prediction.load_tuned(arguments.workdir, arguments.step, dict(arguments.option) | options, arguments.task)
    if arguments.texts:
        examples = texts_as_examples(model, in_rows(model, arguments.texts))
    else:
        examples = read_examples(model, arguments.input, arguments.format, "test", say, keys)
    records = prediction.predict(model, examples, note=say, progress=progress_notes(say)).records
    if arguments.output:
        write_predictions(arguments.output, records)
        print(arguments.output)
        return
    for record in records:
        print(json.dumps(record, ensure_ascii=False))
