"""Pairs ``[CLS] query [SEP] text [SEP]``, and whether the text is strongly, weakly or not relevant to the query.

ERNIE 2.0's IR relevance (Sun et al. 2020, section 4.2.3), whose labels come from the log of a search engine, which is
not public. So a user names a source: documents of two sentences, a query and a text that begins with its label,
``strong:``, ``weak:`` or ``irrelevant:``. The annotator ``leading_phrases`` finds the label in the text, and rows do
not show it. Documents of more sentences make no pairs, so that other tasks may read them in the same corpus.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from bert_jax.rows.arrangements import discourse, sentence_pairs
from bert_jax.rows.interfaces import Bools, Field, Ints


@dataclasses.dataclass(frozen=True)
class Arrangement(discourse.Arrangement):
    """Makes pairs of a query and a text."""

    num_classes: int = 3  # strong, weak, irrelevant

    label = "ir_relevance"
    fields: ClassVar[dict[str, Field]] = sentence_pairs.fields_of(label)
    column: ClassVar[str] = "relevance"
    no_pairs: ClassVar[str] = (
        "no document of the text is a query and a text that begins with its label, two sentences in all, as the "
        "objective 'ir_relevance' reads; write each pair as a document of two lines, 'QUERY' and 'strong: TEXT', "
        "'weak: TEXT' or 'irrelevant: TEXT'"
    )

    def makes_pair(self, starts: Ints, second: Ints) -> Bools:
        """Return whether each sentence ``second`` [n] is the second of two of a document."""
        document = np.searchsorted(starts, second, side="right")
        return (starts[document - 1] + 1 == second) & (starts[document] == second + 1)
