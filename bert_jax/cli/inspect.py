"""Judge a corpus: duplicates, vocabulary, encoding, rows; exit code 1 if something is bad."""

from __future__ import annotations

import argparse
import dataclasses
import json

from bert_jax.cli.flags import add_config, whole_numbers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", required=True, help="folder that `bert-jax corpus` wrote, also of a mixture")
    add_config(parser, required=False)
    parser.add_argument(
        "--vocab",
        help="the vocab.txt, .model or tokenizer.json that made it (default: the file in that folder or beside it)",
    )
    parser.add_argument(
        "--init", metavar="MODEL", help="a model or vocabulary, to compare how many tokens it makes of the corpus"
    )
    parser.add_argument(
        "--max_length",
        type=whole_numbers,
        help="row lengths to plan for (default: as in --config, else as in the run that the corpus belongs to, else "
        "128,512)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--private",
        action="store_true",
        help="print no text and no path of the corpus; always so if it was built --private",
    )


def run(arguments: argparse.Namespace) -> int:
    from bert_jax.inspection.check import worst
    from bert_jax.inspection.inspect import as_lines, inspect, request_for
    from bert_jax.interchange.tokenizer_files import tokenizer_of

    request = request_for(arguments.corpus, arguments.config.to_dict() if arguments.config is not None else None)
    lengths = arguments.max_length or request.max_lengths
    phases = {name: length for name, length in request.phases.items() if length in lengths}
    request = dataclasses.replace(
        request,
        vocab=arguments.vocab,
        init=tokenizer_of(arguments.init) if arguments.init else None,
        max_lengths=lengths,
        phases=phases,
        private=arguments.private,
    )
    found = inspect(request)
    lines: list[str] = []
    for name, part in found.items():
        lines += [f"part {name}:"] if name else []
        lines += as_lines(part)
    verdict = worst([part.verdict for part in found.values()])
    if not arguments.json:
        print("\n".join(lines))
    elif list(found) == [""]:
        print(json.dumps(found[""].as_record(), ensure_ascii=False))
    else:
        parts = {name: part.as_record() for name, part in found.items()}
        print(json.dumps({"verdict": verdict, "parts": parts}, ensure_ascii=False))
    return 1 if verdict == "bad" else 0
