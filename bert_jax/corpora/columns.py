"""Columns: values beside the tokens of a corpus, one whole number a piece, made while the corpus is built.

An annotator makes a column: a file of ``bert_jax/corpora/annotators`` with a class ``Annotator``. It reads the raw
sentences, so it sees the capitals, accents and spaces that ids have lost. It never changes the ids.

A column of units says which pieces belong together, in the values that ``unit_values`` gives.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from bert_jax import catalogue
from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.program import program

if TYPE_CHECKING:
    from bert_jax.text.tokenizer import Tokenizer

PACKAGE = "corpora.annotators"
TOKENS = "tokens"  # what ``CorpusSplit.read`` calls the ids
RESERVED = (TOKENS, "piece", "word")  # the last two are units of masking that need no column
OUTSIDE, BEGINS, CONTINUES = 0, 1, 2  # a piece in no unit; the first piece of a unit; a later piece of a unit


class Annotator(Protocol):
    """Makes the values of a column. A frozen dataclass; its fields are the options of the column; it pickles."""

    dtype: ClassVar[str]  # of the values: "uint8" or "uint16"

    def identity(self) -> dict[str, Any]:
        """Return all that decides the values: options, a version of the file, versions of libraries, hashes of files.

        Raises:
          UserError: a package or a file is missing or bad. The build asks before it reads a text.
        """
        ...

    def annotate(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return an array [n] of ``dtype`` for each sentence, a value for each of its n pieces.

        Args:
          sentences: raw text, before any normalisation.
          spans: int64 [n, 2] for each sentence; a piece stands for its characters [start, stop). A character may have
            several pieces. Spaces are in none; the span of a piece that is a space is empty.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Column:
    """A column to be made: its name, the file of its annotator, and the annotator."""

    name: str
    kind: str
    annotator: Annotator

    def identity(self) -> dict[str, Any]:
        """Return what the manifest says of the column, and the fingerprint depends on."""
        return {"annotator": self.kind, **self.annotator.identity(), "dtype": self.annotator.dtype}

    def values(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the values of each sentence; see ``Annotator.annotate``."""
        made = self.annotator.annotate(sentences, spans)
        found, wanted = [(v.dtype.name, len(v)) for v in made], [(self.annotator.dtype, len(s)) for s in spans]
        if found != wanted:
            raise TypeError(
                f"the annotator {self.kind!r} must give an array of {self.annotator.dtype}, a value a piece"
            )
        return made


def check(columns: Mapping[str, Any]) -> None:
    """Raise ``UserError`` unless ``config.corpus.columns`` has good names, and an annotator for each."""
    for name, options in columns.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in RESERVED:
            raise UserError(
                f"config.corpus.columns has {name!r}; a name begins with a small letter, goes on with small letters,"
                f" digits and _, and is none of {', '.join(RESERVED)}"
            )
        if not isinstance(options, Mapping) or "annotator" not in options:
            raise UserError(
                f"config.corpus.columns.{name} is {options!r}; it needs an annotator, such as"
                f" {{'annotator': 'segmenter'}}; valid: {', '.join(names())}"
            )


def names() -> list[str]:
    """Return the names of all annotators."""
    return sorted(catalogue.parts(PACKAGE, having="Annotator"))


def find(columns: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns that ``config.corpus.columns`` describes, by name.

    Raises:
      UserError: an unknown annotator or option, a package or a file that an annotator lacks.
    """
    found = []
    for name, options in sorted(columns.items()):
        kind = options["annotator"]
        rest = {key: value for key, value in options.items() if key != "annotator"}
        made = catalogue.find(PACKAGE, kind, having="Annotator").Annotator
        found.append(Column(name, kind, build(made, rest, f"config.corpus.columns.{name}")))
        found[-1].identity()
    return tuple(found)


def spans_of(tokenizer: Tokenizer, sentence: str, ids: np.ndarray) -> np.ndarray:
    """Return int64 [n, 2], the characters [start, stop) of ``sentence`` that each of its pieces ``ids`` [n] is for."""
    encoded = tokenizer.encode(sentence)
    assert encoded.input_ids[1:-1] == tuple(ids.tolist()), f"encode and encode_batch differ on {sentence!r}"
    return np.array(encoded.offsets[1:-1], np.int64).reshape(-1, 2)


def unit_values(units: Iterable[tuple[int, int]], spans: np.ndarray) -> np.ndarray:
    """Return uint8 [n]: whether each piece is ``OUTSIDE`` of all units, ``BEGINS`` one, or ``CONTINUES`` one.

    A piece belongs to the unit in which its first character lies. So a new unit begins wherever the value is not
    ``CONTINUES``, if a piece outside counts as a unit of its own.

    Args:
      units: characters [start, stop) of each unit, ascending, without overlap.
      spans: int64 [n, 2], the characters of each piece.
    """
    bounds = np.array([*units, (np.iinfo(np.int64).max,) * 2], np.int64)  # the last one is never reached
    first = spans[:, 0]
    unit = np.searchsorted(bounds[:, 0], first, side="right") - 1  # -1: before all units
    unit = np.where((unit >= 0) & (first < bounds[unit, 1]), unit, -1)
    begins = np.diff(unit, prepend=-1) != 0
    return np.where(unit < 0, OUTSIDE, np.where(begins, BEGINS, CONTINUES)).astype(np.uint8)


def made_as_asked(columns: Iterable[Column], manifest: Mapping[str, Any]) -> bool:
    """Return whether a store has these very columns and no others."""
    there = manifest.get("columns", {})
    wanted = {column.name: column.identity() for column in columns}
    return there.keys() == wanted.keys() and all(there[name] == there[name] | facts for name, facts in wanted.items())


def lacking(folder: Any, name: str, there: Iterable[str]) -> UserError:
    """Return the error of a store that has no column ``name``, with the command that makes one."""
    has = f"it has {', '.join(sorted(there))}" if there else "it has none"
    return UserError(
        f"the corpus {folder} has no column {name!r} ({has}); build it with the column: {program()} corpus"
        f" --config=RECIPE --config.vocab.path=VOCAB --output=NEW"
        f" --config.corpus.columns=\"{{'{name}': {{'annotator': 'NAME'}}}}\", where NAME is one of {', '.join(names())}"
    )
