"""Predict new examples with a fine-tuned model, one JSON object a line."""

from __future__ import annotations

import argparse
import json
import sys

from bert_jax.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts to classify, in place of --input")
    parser.add_argument("--workdir", required=True, help="folder of a fine-tuned run")
    parser.add_argument("--input", help="a file like those the model was trained on; answers may be missing")
    parser.add_argument("--output", help="the file to write (default: print); with --submission, the folder")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the task, to decide otherwise than in training, such as null_score_diff_threshold=-1.5",
    )
    parser.add_argument("--step", type=int, help="a saved step (default: the best evaluation's)")
    parser.add_argument(
        "--format", help="how --input is written, a file of bert_jax/examples (default: as in training)"
    )
    parser.add_argument("--submission", help="as this benchmark wants it, such as cola or squad")


def run(arguments: argparse.Namespace) -> None:
    if bool(arguments.texts) == bool(arguments.input):
        raise UserError("give texts, or --input=FILE: one of the two")
    if arguments.submission and not arguments.output:
        raise UserError(f"--submission={arguments.submission} writes a file; give its folder with --output=DIR")
    from bert_jax.prediction import Predictor, read_examples, texts_as_examples, write_output

    predictor = Predictor.load(arguments.workdir, arguments.step, arguments.option)
    if arguments.texts:
        examples = texts_as_examples(predictor, arguments.texts)
    else:
        examples = read_examples(
            predictor, arguments.input, arguments.format, "test", lambda line: print(line, file=sys.stderr)
        )
    _, records = predictor.predict(examples)
    if arguments.output:
        print(write_output(records, arguments.output, arguments.submission))
        return
    for record in records:
        print(json.dumps(record, ensure_ascii=False))
