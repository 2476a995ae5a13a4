"""Write a model with the pieces alone that some texts use: embeddings and tokenizer get smaller together."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_workdir, whole
from bert_jax.program import say
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workdir(parser, "a run, or a Hugging Face directory")
    parser.add_argument(
        "--input",
        required=True,
        action="append",
        metavar="FILE",
        help="texts as `features` reads them; may be repeated",
    )
    parser.add_argument("--format", default="", help="lines, or a reader, such as conll (default: by the ending)")
    parser.add_argument("--column", default="text", help="column with the text, or a list of words (default: text)")
    parser.add_argument("--pair_column", default="", help="column with the second text of a pair")
    parser.add_argument(
        "--min_count", type=whole(1), default=1, help="keep pieces that the texts use so often (default: 1)"
    )
    parser.add_argument(
        "--dev", metavar="FILE", help="labelled examples, as `evaluate` reads them, to score both models"
    )
    parser.add_argument("--output", required=True, help="the new folder to write")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.features.inputs import Input, read_texts
    from bert_jax.interchange.loading import load
    from bert_jax.runs.prediction import load_tuned, read_examples
    from bert_jax.runs.smaller import check_source, compare, trim

    a = arguments
    files.check_new(a.output)
    model = check_source((load_tuned if a.dev else load)(a.workdir, a.step))
    examples = read_examples(model, a.dev, None, "dev", say) if a.dev else ()
    items = [item for path in a.input for item in read_texts(Input(path, a.format, a.column, a.pair_column), say)]
    texts = [text for item in items for text in (item.text, item.pair) if text]
    smaller = trim(model, texts, a.min_count)
    kept = "" if a.min_count > 1 else f"; all {len(texts):,} texts are cut into the same pieces"
    print(f"{smaller.tokenizer.size:,} of {model.tokenizer.size:,} pieces stay{kept}")
    print(compare(model, smaller, a.output, examples, "trimmed"))
