"""Write the vectors of texts: token features of any layers, and sentence vectors."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import add_trust, whole_number
from bert_jax.errors import UserError
from bert_jax.program import say
from bert_jax.storage import reading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_any = "folder of a run, pretrained or fine-tuned, or WORKDIR@step, or a Hugging Face directory"
    parser.add_argument("--workdir", "--init", dest="workdir", metavar="DIR", required=True, help=of_any)
    parser.add_argument(
        "--step", type=whole_number(0), help="a saved step of --workdir (default: the best, else the newest)"
    )
    add_trust(parser)
    parser.add_argument("--max_length", type=int, help="most tokens of a text; the rest is cut (default: the model's)")
    parser.add_argument("--batch_size", type=int, default=32, help="texts of a batch, over all devices (default: 32)")
    parser.add_argument("--input", required=True, help="a .txt file with one text per line, or a file of labelled data")
    parser.add_argument("--format", default="", help="lines, or a reader, such as conll (default: by the ending)")
    parser.add_argument("--column", default="", help="column with the text, or a list of words (default: text)")
    parser.add_argument("--pair_column", default="", help="column with the second text of a pair")
    parser.add_argument("--id_column", default="", help="column with the ids (default: number of the line or row)")
    parser.add_argument("--options", default="{}", help='options of the reader, as JSON, such as {"header": false}')
    parser.add_argument("--bad_examples", default="error", choices=("error", "skip"), help="what to do about bad texts")
    parser.add_argument("--output", required=True, help="FILE.parquet: a row for each text")
    parser.add_argument(
        "--layers",
        default="last",
        help="embeddings, second_to_last, last, sum_last_four, concat_last_four, all; mean and cls are vectors of a "
        "text, and sentence is the vector that the model's files say, or its training (default: last)",
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16"))


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.features.extract import SENTENCE, Extractor, check_layers
    from bert_jax.features.inputs import Input, check_columns, read_texts
    from bert_jax.features.writing import check_output, write_vectors
    from bert_jax.interchange.loading import load

    given, layers = arguments, [name for name in arguments.layers.split(",") if name]
    check_layers(layers)
    check_output(given.output)
    if (options := reading.parse_object(given.options)) is None:
        raise UserError(f'--options={given.options} is no JSON object; write {{"header": false}}')
    keys = ("format", "column", "pair_column", "id_column", "bad_examples")
    source = Input(given.input, options=options, **{name: getattr(given, name) for name in keys})
    check_columns([source])
    texts = read_texts(source, say)
    model = load(given.workdir, given.step)
    if (said := model.said_vectors) and {*layers} & {*SENTENCE} - {"sentence"}:
        say(f"{given.workdir} says {said}; --layers=sentence gives such vectors, mean and cls the encoder's alone")
    if "sentence" in layers and (prompt := model.vectors.prompt()):
        say(f"each text is read with the model's prompt {prompt!r} before it")
    write_vectors(given.output, Extractor(model, layers, given.max_length, given.batch_size, given.dtype), texts, say)
