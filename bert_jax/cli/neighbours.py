"""Find the nearest contexts of a word in a text file, by its contextual vector."""

from __future__ import annotations

import argparse
import json
import sys

from bert_jax.cli.features import add_input, add_model, source
from bert_jax.cli.flags import whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", nargs="+", metavar="TEXT", help='a text with the word, such as "He sat on the bank."')
    parser.add_argument("--word", required=True, help="the word to compare, such as bank")
    add_model(parser)
    add_input(parser)
    parser.add_argument("--layer", default="last", help="a layer of `features` (default: last)")
    parser.add_argument("--best", type=whole(1), default=10, help="how many neighbours (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per text")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.features.extract import Extractor
    from bert_jax.features.inputs import read_texts
    from bert_jax.features.neighbours import as_table, check_layer, find_neighbours, summary
    from bert_jax.interchange.loading import load

    check_layer(arguments.layer)
    corpus = read_texts(source(arguments))
    model = load(arguments.workdir, arguments.step)
    extractor = Extractor(model, [arguments.layer], arguments.max_length, arguments.batch_size)
    lowercase = model.tokenizer.lowercase
    found, counts = find_neighbours(extractor, arguments.word, arguments.texts, corpus, arguments.best, lowercase)
    for one in found:
        print(json.dumps(one, ensure_ascii=False) if arguments.json else as_table(one))
    print(summary(arguments.word, counts), file=sys.stderr)
