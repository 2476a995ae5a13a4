"""Write a model with the pieces alone that some texts use: embeddings and tokenizer get smaller together."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_keys, add_task, add_workdir, whole_number
from bert_jax.program import say
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workdir(parser, "a run, or a Hugging Face directory")
    add_task(parser)
    add_keys(parser)
    add = parser.add_argument
    add("--input", required=True, action="append", metavar="FILE", help="texts as for `features`; may be repeated")
    add("--format", default="", help="lines, or a reader, such as conll (default: by the ending)")
    add("--column", default="", help="column with the text, or a list of words (default: text)")
    add("--pair_column", default="", help="column with the second text of a pair")
    add("--min_count", type=whole_number(1), default=1, help="keep pieces that the texts use so often (default: 1)")
    add("--dev", metavar="FILE", help="labelled examples as for `evaluate`, to score both models")
    add("--output", required=True, help="the new folder to write")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.features.inputs import Input, check_columns, read_texts
    from bert_jax.interchange.loading import load
    from bert_jax.resizing.smaller import exportable, trim_vocabulary, write_smaller
    from bert_jax.runs.prediction import load_tuned, read_examples, typed_keys

    a = arguments
    files.check_new(a.output)
    inputs = [Input(path, a.format, a.column, a.pair_column) for path in a.input]
    check_columns(inputs)
    tuned = a.dev or a.task is not None
    options, keys = typed_keys(a.overrides, bool(a.dev))
    model = exportable(load_tuned(a.workdir, a.step, options, a.task) if tuned else load(a.workdir, a.step))
    examples = read_examples(model, a.dev, None, "dev", say, keys) if a.dev else ()
    texts = [text for one in inputs for item in read_texts(one, say) for text in (item.text, item.pair) if text]
    smaller = trim_vocabulary(model, texts, a.min_count)
    kept = "" if a.min_count > 1 else f"; all {len(texts):,} texts are cut into the same pieces"
    print(f"{smaller.tokenizer.size:,} of {model.tokenizer.size:,} pieces stay{kept}")
    print(write_smaller({"original": model, "trimmed": smaller}, a.output, examples))
