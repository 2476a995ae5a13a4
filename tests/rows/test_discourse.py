"""Pairs whose second sentence lost the phrase that begins it: which sentences make pairs, and what they show."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.arrangements import discourse, ir_relevance
from bert_jax.rows.arrangements.discourse import PIECES
from tests.rows.fakes import FACTS, FakeSplit

KEY = random.key("discourse")


def labelled(documents: list[list[int]], phrases: dict[int, tuple[int, int]], column: str = "connectives") -> FakeSplit:
    """A split in which sentence i begins with a phrase of ``phrases[i]`` (pieces, class from 0)."""
    split = FakeSplit(documents)
    values = np.zeros(split.num_tokens, np.int32)
    for sentence, (pieces, label) in phrases.items():
        values[split.sentence_offsets[sentence]] = PIECES * pieces + label + 1
    setattr(split, column, values)
    return split


def rows_of(
    split: FakeSplit, arrangement: discourse.Arrangement, length: int
) -> list[tuple[int, list[int], list[int]]]:
    """Label, A and B of each row."""
    arrangement.check(split)
    records = np.concatenate(list(arrangement.plan(split, KEY, length, None)))
    assert (np.diff(records["a_start"]) > 0).all()
    starts, lengths = (x.reshape(-1) for x in arrangement.spans(records))
    rows = arrangement.lay_out(split, records, split.read(starts, lengths), length, FACTS)
    found = []
    for i, ids in enumerate(rows.input_ids.tolist()):
        first, last = (j for j, token in enumerate(ids) if token == FACTS.sep)
        label = int(arrangement.labels(records)[f"{arrangement.label}_labels"][i])
        found.append((label, ids[1:first], ids[first + 1 : last]))
    return found


@pytest.mark.parametrize("at_once", [1, 3, 1 << 16])
def test_the_sentences_that_follow_and_begin_with_a_phrase(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first sentence of a document (5), nor one that is a phrase alone (8)."""
    monkeypatch.setattr(discourse, "_SENTENCES_AT_ONCE", at_once)
    phrases = {1: (2, 0), 3: (1, 3), 4: (3, 1), 5: (1, 2), 7: (2, 2), 8: (4, 1)}
    split = labelled([[5, 6, 4, 7, 9], [3, 8, 6, 4]], phrases)
    tokens, offsets = split.tokens.tolist(), split.sentence_offsets.tolist()
    wanted = [
        (label, tokens[offsets[i - 1] : offsets[i]], tokens[offsets[i] + pieces : offsets[i + 1]])
        for i, (pieces, label) in phrases.items()
        if i not in (5, 8)
    ]
    assert rows_of(split, discourse.Arrangement(), 32) == wanted


def test_long_pairs_are_cut_and_still_do_not_show_the_phrase() -> None:
    split = labelled([[30, 40]] * 50, {2 * i + 1: (3, i % 4) for i in range(50)})
    rows = rows_of(split, discourse.Arrangement(), 24)
    for number, (label, a, b) in enumerate(rows):
        begin = 70 * number
        assert label == number % 4
        assert len(a) + len(b) == 21
        assert set(a) <= set(split.tokens[begin : begin + 30].tolist())
        assert set(b) <= set(split.tokens[begin + 33 : begin + 70].tolist())


def test_a_query_and_a_text() -> None:
    """Documents of two sentences alone make pairs, so that the corpus may have other text too."""
    phrases = {1: (2, 0), 3: (2, 2), 5: (2, 1), 6: (2, 1)}
    split = labelled([[4, 6], [4, 7], [5, 6, 7], [8]], phrases, "relevance")
    rows = rows_of(split, ir_relevance.Arrangement(), 32)
    assert [label for label, *_ in rows] == [0, 2]
    assert [(len(a), len(b)) for _, a, b in rows] == [(4, 4), (4, 5)]


def test_what_does_not_fit_is_one_line() -> None:
    def plan(phrases: dict[int, tuple[int, int]]) -> None:
        list(discourse.Arrangement().plan(labelled([[5, 6], [5, 6]], phrases), KEY, 32, None))

    with pytest.raises(UserError, match="no sentence that follows another begins with a phrase of the column 'connect"):
        plan({2: (1, 1)})
    with pytest.raises(UserError, match="'connectives' has 6 classes or more, and the arrangement 4; set config.objec"):
        plan({1: (1, 5)})
    with pytest.raises(
        UserError, match="the column 'connectives' is not of the annotator 'leading_phrases'; build the"
    ):
        plan({1: (0, 0)})
    with pytest.raises(UserError, match="no document of the split has 2 sentences"):
        discourse.Arrangement().check(labelled([[5], [6]], {}))
    with pytest.raises(UserError, match="num_classes is 1; 2 to 255 is allowed"):
        discourse.Arrangement(1)
