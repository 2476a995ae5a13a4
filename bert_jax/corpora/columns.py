"""Columns of a corpus: extra values beside the tokens, one whole number per piece, computed while the corpus is built.

An annotator computes the values of a column. Each annotator is a file of ``bert_jax/corpora/annotators`` with a class
``Annotator``. It reads the raw sentences, which still have the capitals, accents and spaces that token ids may lack.
It never changes the ids.

Many columns mark which pieces belong together as one unit (see ``unit_values``). An objective may read a column as a
feature of its rows (``PretrainingObjective.columns``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.program import program
from bert_jax.storage import files

PACKAGE = "corpora.annotators"
TOKENS = "tokens"  # the column name that stands for the token ids in ``CorpusSplit.read``
_RESERVED = (TOKENS, "piece", "word")  # "piece" and "word" are units of masking that need no column
OUTSIDE, BEGINS, CONTINUES = 0, 1, 2  # a piece in no unit; the first piece of a unit; a later piece of a unit


class Annotator(Protocol):
    """Interface of annotators, which compute the values of a column.

    An annotator is a picklable frozen dataclass; its fields are the options of the column.
    """

    dtype: ClassVar[str]  # the dtype of the values: "uint8", "uint16" or "uint32"

    def identity(self) -> dict[str, Any]:
        """Return all that the values depend on: options, code version, versions of libraries, hashes of files.

        The build calls this before it reads any text.

        Raises:
          UserError: a package or a file is missing or bad.
        """
        ...

    def annotate(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return for each sentence an array [n] of ``dtype``, with a value for each of its n pieces.

        Args:
          sentences: raw text, before any normalisation.
          spans: for each sentence int64 [n, 2], the character span [start, stop) of each piece. Several pieces may
            cover the same character. Spaces belong to no piece; the span of a piece that is a space is empty.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Column:
    """A column to compute: its name, and its annotator with the name of the annotator's file."""

    name: str
    file: str
    annotator: Annotator

    def identity(self) -> dict[str, Any]:
        """Return the column's entry in the manifest; the column's fingerprint depends on it."""
        return {"annotator": self.file, **self.annotator.identity(), "dtype": self.annotator.dtype}

    def values(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the values of each sentence; see ``Annotator.annotate``."""
        values, dtype = self.annotator.annotate(sentences, spans), self.annotator.dtype
        if [(v.dtype.name, len(v)) for v in values] != [(dtype, len(s)) for s in spans]:
            raise TypeError(f"the annotator {self.file!r} must give an array of {dtype}, a value a piece")
        return values


def check(columns: Mapping[str, Any]) -> None:
    """Raise ``UserError`` unless ``config.corpus.columns`` has allowed names, and an annotator for each."""
    for name, options in columns.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in _RESERVED:
            raise UserError(
                f"config.corpus.columns has {name!r}; a name begins with a small letter, goes on with small letters,"
                f" digits and _, and is none of {', '.join(_RESERVED)}"
            )
        files.check_name(name, "a column of config.corpus.columns")
        if not isinstance(options, Mapping) or "annotator" not in options:
            raise UserError(
                f"config.corpus.columns.{name} is {options!r}; it needs an annotator, such as"
                f" {{'annotator': 'segmenter'}}; valid: {', '.join(_names())}"
            )


def _names() -> list[str]:
    """Return the names of all annotators."""
    return sorted(catalogue.parts(PACKAGE, having="Annotator"))


def find(columns: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns that ``config.corpus.columns`` describes, sorted by name.

    Raises:
      UserError: an annotator or an option is unknown, or an annotator lacks a package or a file.
    """
    result = []
    for name, options in sorted(columns.items()):
        rest = dict(options)
        file = rest.pop("annotator")
        annotator = catalogue.find(PACKAGE, file, having="Annotator").Annotator
        result.append(Column(name, file, build(annotator, rest, f"config.corpus.columns.{name}")))
        result[-1].identity()
    return tuple(result)


def unit_values(units: Iterable[tuple[int, int]], spans: np.ndarray) -> np.ndarray:
    """Return uint8 [n]: for each piece ``OUTSIDE`` (in no unit), ``BEGINS`` (first in a unit) or ``CONTINUES`` (later).

    A piece belongs to the unit that has its first character. If each piece outside counts as a unit by itself, a new
    unit begins wherever the value is not ``CONTINUES``.

    Args:
      units: the character span [start, stop) of each unit, ascending, without overlap.
      spans: int64 [n, 2], the character span of each piece.
    """
    bounds = np.array([*units, (np.iinfo(np.int64).max,) * 2], np.int64)  # the last entry is never reached
    first = spans[:, 0]
    unit = np.searchsorted(bounds[:, 0], first, side="right") - 1  # -1: before all units
    unit = np.where((unit >= 0) & (first < bounds[unit, 1]), unit, -1)
    begins = np.diff(unit, prepend=-1) != 0
    return np.where(unit < 0, OUTSIDE, np.where(begins, BEGINS, CONTINUES)).astype(np.uint8)


def has_columns(manifest: Mapping[str, Any], columns: Iterable[Column]) -> bool:
    """Return whether the store with this ``manifest`` has exactly ``columns``, made in the same way."""
    there = manifest["columns"]
    wanted = {column.name: column.identity() for column in columns}
    return there.keys() == wanted.keys() and all(there[name] == there[name] | facts for name, facts in wanted.items())


def lacking(folder: Any, name: str, there: Iterable[str]) -> UserError:
    """Return the error for a store that lacks the column ``name``, with the command that builds the store with it."""
    has = f"it has {', '.join(sorted(there))}" if there else "it has none"
    return UserError(
        f"the corpus {folder} has no column {name!r} ({has}); build it with the column: {program()} corpus"
        f" --config=RECIPE --config.vocab.path=VOCAB --output=NEW"
        f" --config.corpus.columns=\"{{'{name}': {{'annotator': 'NAME'}}}}\", where NAME is one of"
        f" {', '.join(_names())}"
    )
