"""Write on from prompts with a model that writes, such as GPT-2: greedily, by sampling or by beam search."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from bert_jax.cli.flags import add_workdir, finite_number, whole_number
from bert_jax.errors import UserError
from bert_jax.program import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", nargs="*", metavar="PROMPT", help='texts to go on with, such as "The king"')
    add_workdir(parser, "a run or of an import, or a Hugging Face directory")
    parser.add_argument(
        "--input", help="a file with a prompt a line, in place of typed prompts; blank lines are counted"
    )
    settings = {
        "max_new_tokens": (whole_number(1), "the most tokens that follow a prompt (default: 40)"),
        "temperature": (finite_number, "sample: divides the logits; below 1 favours likely tokens (default: 1)"),
        "top_k": (whole_number(0), "sample: draw from so many most likely tokens (default: 0, from all)"),
        "top_p": (finite_number, "sample: draw from the fewest tokens whose probabilities reach this sum (default: 1)"),
        "seed": (whole_number(0), "sample: the same seed draws the same texts (default: 0)"),
        "beams": (whole_number(1), "beam: texts that are kept at each step (default: 4)"),
        "length_penalty": (finite_number, "beam: above 0 prefers long texts, below 0 short texts (default: 1)"),
        "no_repeat_ngram": (whole_number(0), "so many tokens in a row do not occur twice (default: 0, they may)"),
        "num_results": (whole_number(1), "texts for each prompt, by sample or beam (default: 1)"),
    }
    methods = ("greedy", "sample", "beam")
    parser.add_argument("--method", choices=methods, help="how a token is chosen (default: greedy, the likeliest)")
    for name, (kind, text) in settings.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument("--batch_size", type=whole_number(1), help="prompts that are computed together (default: 16)")
    parser.add_argument(
        "--json",
        action="store_true",
        help='print {"text", "ids"} a line, for each text that follows a prompt; with --input also "id", the number of '
        "the prompt's line, and a text of null for a blank line",
    )


def run(arguments: argparse.Namespace) -> None:
    if bool(arguments.texts) == bool(arguments.input):
        raise UserError("give either prompts or --input=FILE")
    from bert_jax.examples.reading import text_lines
    from bert_jax.features.generate import BATCH_SIZE, generate, stepper_of_trained
    from bert_jax.features.inputs import Input, read_texts
    from bert_jax.generation.settings import Settings
    from bert_jax.interchange.loading import load

    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Settings)}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    given_lines = read_texts(Input(arguments.input, "lines")) if arguments.input else []
    prompts = arguments.texts or [item.text for item in given_lines]
    model = load(arguments.workdir, arguments.step)
    found = generate(model, prompts, settings, arguments.batch_size or BATCH_SIZE)
    if not arguments.json:
        goes_on = stepper_of_trained(model).goes_on
        for place, one in enumerate(found):
            print((prompts[place // settings.num_results] if goes_on else "") + one.text)
    records = [dataclasses.asdict(one) for one in found]
    if arguments.input:
        ids = [item.id for item in given_lines for _ in range(settings.num_results)]
        records = _by_line(records, ids, [str(number) for number, _ in text_lines(arguments.input)])
    for record in records if arguments.json else ():
        print(json.dumps(record, ensure_ascii=False))


def _by_line(records: list[dict[str, Any]], ids: list[str], lines: list[str]) -> list[dict[str, Any]]:
    """Return the records in the order of the lines of a file, with the number of the line as "id"; say what is blank.

    A blank line has a record whose text is null.
    """
    if blank := len({*lines} - {*ids}):
        say(f"{blank:,} of {len(lines):,} lines are blank; their text is null")
    of_line: dict[str, list[dict[str, Any]]] = {line: [] for line in lines}
    for line, record in zip(ids, records, strict=True):
        of_line[line].append({"id": line, **record})
    return [one for line, found in of_line.items() for one in found or [{"id": line, "text": None, "ids": None}]]
