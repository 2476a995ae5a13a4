"""Score a fine-tuned model on new examples whose answers are known."""

from __future__ import annotations

import argparse
import json

from bert_jax.cli.flags import add_model
from bert_jax.program import say
from bert_jax.reporting.progress import progress_notes
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--input", required=True, help="a file like the files that the model was trained on")
    parser.add_argument("--output", help="also write the predictions here, one JSON object per line")
    parser.add_argument("--json", action="store_true", help="print the scores as one JSON object")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.reporting.measures import with_error
    from bert_jax.runs.prediction import load_tuned, predict, read_examples, typed_keys, write_predictions

    if arguments.output:
        files.check_writable(arguments.output)

    options, keys = typed_keys(arguments.overrides)
    model = load_tuned(arguments.workdir, arguments.step, dict(arguments.option) | options, arguments.task)
    examples = read_examples(model, arguments.input, arguments.format, "dev", say, keys)
    metrics, records, errors = predict(model, examples, note=say, progress=progress_notes(say))
    if arguments.output:
        write_predictions(arguments.output, records)
    if arguments.json:
        print(json.dumps(metrics))
        return
    print(f"{len(examples):,} examples, step {model.step:,}")
    for name, value in metrics.items():
        print(f"  {name:<24}{with_error(name, f'{value:.4f}', errors, 4)}")
