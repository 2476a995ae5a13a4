"""Score a fine-tuned model on new examples whose answers are known."""

from __future__ import annotations

import argparse
import json
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of a fine-tuned run")
    parser.add_argument("--input", required=True, help="a file like those the model was trained on")
    parser.add_argument("--output", help="write the predictions here too, one JSON object a line")
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
    parser.add_argument("--json", action="store_true", help="the scores as one JSON object")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.prediction import Predictor, read_examples, write_output

    predictor = Predictor.load(arguments.workdir, arguments.step, arguments.option)
    examples = read_examples(
        predictor, arguments.input, arguments.format, "dev", lambda line: print(line, file=sys.stderr)
    )
    metrics, records = predictor.predict(examples)
    if arguments.output:
        write_output(records, arguments.output)
    if arguments.json:
        print(json.dumps(metrics))
        return
    print(f"{len(examples):,} examples, step {predictor.step:,}")
    for name, value in metrics.items():
        print(f"  {name:<24}{value:.4f}")
