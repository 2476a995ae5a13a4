"""Write a fine-tuned model without the MLP units and layers that matter least on labelled examples."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_model, whole_number
from bert_jax.program import say
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_model(parser)
    add("--input", required=True, help="labelled examples by which to judge what matters")
    add("--mlp", type=float, default=1.0, metavar="SHARE", help="the MLP units to keep (default: 1.0, all)")
    add("--layers", type=whole_number(1), metavar="N", help="the number of layers to keep (default: all)")
    add("--dev", metavar="FILE", help="labelled examples to score both models (default: --input)")
    add("--output", required=True, help="the new folder to write")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.resizing.pruning import cut_model, importance, pruned_config
    from bert_jax.resizing.smaller import exportable, write_smaller
    from bert_jax.runs.prediction import load_tuned, read_examples, typed_keys

    a = arguments
    files.check_new(a.output)
    options, keys = typed_keys(a.overrides)
    model = exportable(load_tuned(a.workdir, a.step, dict(a.option) | options, a.task))
    config = pruned_config(model, a.mlp, a.layers)
    examples, dev = (read_examples(model, path, a.format, "dev", say, keys) for path in (a.input, a.dev or a.input))
    pruned = cut_model(model, config, *importance(model, examples))
    print(f"{config.num_layers} layers of {config.mlp_dim:,} MLP units stay, by {len(examples):,} examples")
    print(write_smaller({"original": model, "pruned": pruned}, a.output, dev))
