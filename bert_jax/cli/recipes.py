"""List the recipes, a line each; with a name: its phases, its keys and the sizes of its encoder."""

from __future__ import annotations

import argparse
import ast
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax.cli.flags import add_trust
from bert_jax.configuration import complete
from bert_jax.parts import catalogue
from bert_jax.program import program, quoted
from bert_jax.recipes import recipes, trees


def add_arguments(parser: argparse.ArgumentParser) -> None:
    given = "a recipe's name, or a file, perhaps with :argument (default: list all)"
    parser.add_argument("recipe", nargs="?", metavar="NAME", help=given)
    add_trust(parser)


def run(arguments: argparse.Namespace) -> None:
    known, name = recipes.names(), arguments.recipe
    if name is None:
        print("\n".join(_listed(known)))
        return
    named = [one for one in known if name.partition(":")[0] in (one, one.rpartition("/")[2])]
    blocks = []
    for whole in [one + "".join(name.partition(":")[1:]) for one in named] or [name]:
        about = f": {_first_line(known[whole.partition(':')[0]])}" if named else ""
        blocks.append("\n".join([f"{whole}{about}", *_described(whole, arguments.trust_code)]))
    print("\n\n".join(blocks))


def _first_line(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _listed(known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the names of all recipes with the first lines of their docstrings, then the sizes of all encoders."""
    from bert_jax.models.model import encoder_file

    width = max(map(len, known)) + 2
    yield from (f"{name:<{width}}{_first_line(file)}" for name, file in known.items())
    yield "\nencoders (config.model.encoder) and their sizes (config.model.size)"
    for encoder in catalogue.parts("models.encoders", having="Encoder"):
        yield _filled(f"{encoder}: {', '.join(encoder_file(encoder).SIZES)}")
    yield f"\nphases, keys and sizes of a recipe: {program()} recipes quickstart"


def _described(name: str, trust_code: bool) -> Iterator[str]:
    tree = recipes.load(name, trust_code=trust_code).to_dict()
    whole = complete(tree, recipes.defaults_for(tree))
    yield "\nphases (config.phases.NAME)"
    for phase, values in (whole.get("phases") or {}).items():
        yield _filled(f"{phase}: {', '.join(f'{key}={value!r}' for key, value in values.items())}")
    yield from _sizes(tree.get("model") or {})
    own, every = trees.leaves({key: value for key, value in tree.items() if value != {}}), trees.leaves(whole)
    yield "\nkeys of the recipe, each typed as --config.KEY=VALUE"
    yield from map(_typed, own.items())
    yield "\nkeys that the recipe leaves to their defaults; configs/README.md says what each is"
    yield from map(_typed, ((key, value) for key, value in every.items() if key not in own))


def _typed(item: tuple[str, Any]) -> str:
    key, value = item
    return f"  {quoted(f'{key}={value if isinstance(value, str) else repr(value)}')}"


def _sizes(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines with the sizes of the encoder that ``config.model`` names, and the size that it names."""
    from bert_jax.models.model import BERT, encoder_file
    from bert_jax.recipes.architecture import Architecture

    encoder, pieces, found = model.get("encoder", BERT), 30_522, []
    for size in encoder_file(encoder).SIZES:
        config = Architecture.of({"encoder": encoder, "size": size}, pieces).config
        million = (config.num_parameters - pieces * config.embedding_size) / 1e6
        found.append(f"{size} ({config.num_layers} x {config.hidden_size}, {million:.1f} M)")
    other = "the recipe says the shape itself" if "num_layers" in model else "the recipe names none, as --init has one"
    chosen = f"the recipe has {model['size']}" if "size" in model else other
    yield f"\nsizes of the encoder {encoder} (config.model.size; {chosen}):"
    yield "  layers x width, and parameters without the word embeddings"
    yield _filled(", ".join(found))


def _filled(text: str) -> str:
    lines = textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    return "\n".join(lines)
