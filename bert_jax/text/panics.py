"""Turns what the library ``tokenizers`` raises into a ``UserError``, and finds patterns that would make it panic."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import tokenizers

from bert_jax.errors import UserError, first_line
from bert_jax.text import roles, tokenizer_json

ADVICE = (
    "save it as a tokenizer.json of WordPiece, Unigram or byte-level BPE, a vocab.txt or a .model of sentencepiece, or "
    "learn one with `bert-jax vocab`"
)


@contextlib.contextmanager
def refuse_errors(what: str) -> Iterator[None]:
    """Turn an error or a panic of the library into a ``UserError`` that begins with ``what``.

    The class of an error is ``Exception`` itself. A panic is no ``Exception``, and its class cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}: {first_line(error)[:200]}; {ADVICE}") from error


def check_patterns(content: tokenizer_json.Content, library: tokenizers.Tokenizer, where: str) -> None:
    """Raise ``UserError`` if a pattern of the tokenizer runs away: if its time is exponential in the length of a word.

    The library gives up such a search after millions of steps, with a panic. The texts on which a pattern is tried are
    runs of its characters, and of pairs of its characters, before a character that ends the run. The pattern itself
    follows, because the library does not search a text without the characters that every match has.
    """
    steps = (roles.flat_steps(content[key], f"{key.replace('_', '')}s") for key in ("normalizer", "pre_tokenizer"))
    patterns = [step.get("pattern", {}).get("Regex", "") for step in itertools.chain(*steps)]
    for pattern in filter(None, patterns):
        units = {*"a1 .é中", *pattern, *map("".join, itertools.pairwise(pattern)), "ab", "a "}
        with refuse_errors(f"{where} has a pattern that runs away, {pattern[:60]!r}"), _no_panics_shown():
            for unit in sorted(units):
                library.encode(f"{unit * 40}!\n{pattern}", add_special_tokens=False)


@contextlib.contextmanager
def _no_panics_shown() -> Iterator[None]:
    """Close the standard error of the process for a moment: a panic is written there even if it is caught."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
