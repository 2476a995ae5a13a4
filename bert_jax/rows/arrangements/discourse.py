"""Pairs ``[CLS] A [SEP] B [SEP]`` of a sentence and the next one, without the connective that begins the next one.

ERNIE 2.0's discourse relation (Sun et al. 2020, section 4.2.3), whose labels are connectives, as Sileo et al. 2019 find
them. A column of the corpus, which the annotator ``leading_phrases`` computes, says which sentences begin with a
connective, what its class is, and how many pieces to leave out. No other sentences make pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.corpora.annotators.leading_phrases import PIECES
from bert_jax.errors import UserError
from bert_jax.rows import chunks, random
from bert_jax.rows.arrangements import sentence_pairs
from bert_jax.rows.interfaces import Bools, Field, Ints, Limits, Records, Split, check_documents

_SENTENCES_AT_ONCE = 1 << 16


@dataclasses.dataclass(frozen=True)
class Arrangement(sentence_pairs.Pairs):
    """Makes pairs of neighbours. Its fields are the options of ``config.objective.arrangement_options``."""

    num_classes: int = 4  # the classes of the annotator's phrases

    version = 1
    record = sentence_pairs.LABELLED
    label = "discourse"
    fields: ClassVar[dict[str, Field]] = sentence_pairs.fields_of(label)
    column: ClassVar[str] = "connectives"  # the column of the corpus with the classes
    no_pairs: ClassVar[str] = (
        "no sentence that follows another begins with a phrase of the column 'connectives'; take more text, or another "
        "list of phrases for the annotator of config.corpus.columns"
    )

    def __post_init__(self) -> None:
        where = "config.objective.arrangement_options"
        check_fields(self, where, "2 to 255 is allowed", "num_classes", sound=lambda number: 2 <= number <= 255)

    def check(self, split: Split) -> None:
        check_documents(split)
        chunks.check_sentences(split)
        none = np.zeros(0, np.int64)
        split.read(none, none, self.column)  # raises if there is no such column

    def plan(self, split: Split, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        del limits
        offsets, starts = np.asarray(split.sentence_offsets), np.asarray(split.document_starts)
        found = False
        for first in range(0, len(offsets) - 1, _SENTENCES_AT_ONCE):
            here = offsets[first : first + _SENTENCES_AT_ONCE + 1]
            values = split.read(here[:1], here[-1:] - here[0], self.column)[here[:-1] - here[0]]
            pieces, number = np.divmod(values, PIECES)
            self._check(pieces, number)
            second = first + np.flatnonzero((number > 0) & (np.diff(here) > pieces))
            second = second[self.makes_pair(starts, second)]
            found |= len(second) > 0
            left_out, labels = pieces[second - first], number[second - first] - 1
            records = np.empty(len(second), self.record)
            records["label"] = labels
            a, b = offsets[second - 1], offsets[second] + left_out
            sides = (a, offsets[second] - a), (b, offsets[second + 1] - b)
            chunks.truncate(records, *sides, max_length - self.special_tokens, random.fold(key, second))
            yield records
        if not found:
            raise UserError(self.no_pairs)

    def makes_pair(self, starts: Ints, second: Ints) -> Bools:
        """Return whether each sentence ``second`` [n] makes a pair with the one before it: both are of one document."""
        return starts[np.searchsorted(starts, second)] != second

    def _check(self, pieces: Ints, number: Ints) -> None:
        """Raise ``UserError`` unless the column has classes that this arrangement has."""
        if ((number > 0) & (pieces == 0)).any():
            raise UserError(
                f"the column {self.column!r} is not of the annotator 'leading_phrases'; build the corpus with "
                f"--config.corpus.columns=\"{{'{self.column}': {{'annotator': 'leading_phrases'}}}}\""
            )
        if (most := int(number.max(initial=0))) > self.num_classes:
            raise UserError(
                f"the column {self.column!r} has {most} classes or more, and the arrangement {self.num_classes}; set "
                "config.objective.arrangement_options.num_classes"
            )
