"""Shuffled paragraphs: class and permutation are one-to-one, and only reading tells the order."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.arrangements.sentence_reordering import Arrangement, orders
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.rows.fakes import FACTS, FakeSplit, chi_square_z, fake_split

LONG = fake_split(3000, sentences=(8, 40), mean=12, seed=3)


@functools.cache
def planned(max_pieces: int, max_length: int, key: int = 0) -> np.ndarray:
    blocks = Arrangement(max_pieces).plan(LONG, random.key("order", key), max_length, None)
    return np.concatenate(list(blocks))


def laid_out(split: FakeSplit, records: np.ndarray, arrangement: Arrangement, width: int) -> Any:
    starts, lengths = (x.reshape(-1) for x in arrangement.spans(records))
    return arrangement.lay_out(split, records, split.read(starts, lengths), width, FACTS)


@pytest.mark.parametrize(("max_pieces", "classes"), [(2, 3), (3, 9), (4, 33), (5, 153)])
def test_class_and_permutation_are_one_to_one(max_pieces: int, classes: int) -> None:
    every = orders(max_pieces)
    assert classes == sum(math.factorial(n) for n in range(1, max_pieces + 1)) == len(every) == len(set(every))
    assert {(len(order), tuple(sorted(order))) for order in every} == {
        (n, tuple(range(n))) for n in range(1, max_pieces + 1)
    }
    assert Arrangement(max_pieces).num_classes == classes
    assert (
        every[:9] == ((0,), (0, 1), (1, 0), (0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))[:classes]
    )


@pytest.mark.parametrize("max_pieces", [3, 4])
def test_every_row_is_the_text_in_the_order_of_its_class(max_pieces: int) -> None:
    """Read back from the row: its token types mark the pieces, and the tokens of a fake split name their places."""
    split = FakeSplit([[5, 3, 8, 2, 6, 9, 4, 30], [4, 4], [7], [3, 3, 3, 40, 3, 3]] * 3)
    arrangement = Arrangement(max_pieces)
    seen = set()
    for key in range(300):
        records = np.concatenate(list(arrangement.plan(split, random.key("x", key), 32, None)))
        rows = laid_out(split, records, arrangement, 32)
        labels = arrangement.labels(records)["sentence_reordering_labels"]
        for row, types, label, record in zip(rows.input_ids, rows.token_type_ids, labels, records, strict=True):
            length = int((row != FACTS.pad).sum())
            assert row[0] == FACTS.cls
            assert row[length - 1] == FACTS.sep
            text, kinds = row[1 : length - 1], types[1 : length - 1]
            borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(text)]
            pieces = [text[a:b] for a, b in zip(borders[:-1], borders[1:], strict=True)]
            assert types.tolist() == [0, *kinds.tolist(), kinds[-1]] + [0] * (32 - length)
            place = np.argsort([piece[0] for piece in pieces])  # the text's first piece has the smallest token
            order = np.argsort(place)
            assert orders(max_pieces)[label] == tuple(order.tolist())
            joined = np.concatenate([pieces[i] for i in place])
            begin = int(record["a_start"])
            np.testing.assert_array_equal(joined, split.tokens[begin : begin + len(text)])
            ends = begin + np.cumsum([len(pieces[i]) for i in place])
            assert np.isin([begin, *ends], split.sentence_offsets).all()
            assert not (
                (split.sentence_offsets[split.document_starts] > begin)
                & (split.sentence_offsets[split.document_starts] < ends[-1])
            ).any()
            seen.add(int(label))
    assert seen == set(range(len(orders(max_pieces))))


def test_classes_are_equally_likely_and_drawn_anew_in_each_epoch() -> None:
    records = planned(3, 128)
    assert len(records) > 5000
    ends = records["a_start"] + records["lengths"].sum(axis=1)
    sentences = np.searchsorted(LONG.sentence_offsets, ends) - np.searchsorted(
        LONG.sentence_offsets, records["a_start"]
    )
    labels = records["label"][sentences > 2]  # two sentences do not make three pieces
    assert abs(chi_square_z(np.bincount(labels, minlength=9), np.full(9, len(labels) / 9))) < 4
    again, other = planned(3, 128), planned(3, 128, key=1)
    assert records.tobytes() == again.tobytes()
    np.testing.assert_array_equal(records["a_start"], other["a_start"])  # the same paragraphs
    assert abs(np.mean(records["label"] == other["label"]) - 1 / 9) < 4 / 3 / np.sqrt(len(records))
    assert (np.diff(records["a_start"]) > 0).all()


def test_short_paragraphs_have_the_classes_of_their_sentences() -> None:
    """And a paragraph of one sentence is left out."""
    split = FakeSplit([[6, 6], [5, 5, 5], [9], [50]] * 400)
    records = np.concatenate(list(Arrangement(4).plan(split, random.key("s"), 40, None)))
    assert len(records) == 800
    two = records["lengths"].sum(axis=1) == 12
    assert set(records["label"][two].tolist()) == set(range(3))
    assert set(records["label"][~two].tolist()) == set(range(9))


# ---- Leaks ----------------------------------------------------------------------------------------------------------


def length_z(records: np.ndarray, length: int) -> float:
    """How far a table of the pieces' lengths, learned on every other row of two pieces, is above chance on the rest."""
    two = records[np.isin(records["label"], (1, 2))]
    shown = Arrangement(3).spans(two)[1]
    feature = 20 + np.clip((shown[:, 0] - shown[:, 1]) * 20 // length, -20, 20)
    labels = two["label"] == 2
    train, test = slice(0, None, 2), slice(1, None, 2)
    votes = np.bincount(feature[train], np.where(labels[train], 1, -1), minlength=41)
    hits = (votes[feature[test]] > 0) == labels[test]
    return float((hits.sum() - len(hits) / 2) / np.sqrt(len(hits) / 4))


def test_lengths_do_not_tell_the_order() -> None:
    many = np.concatenate([planned(3, 40, key) for key in range(8)])  # rows of about three sentences
    assert np.isin(many["label"], (1, 2)).sum() > 20_000
    assert length_z(many, 40) < 4


def test_the_length_test_sees_a_leak() -> None:
    """A paragraph that begins with the sentence that did not fit before it has a longer first piece."""

    def greedy(key: int) -> np.ndarray:
        split, offsets = LONG, LONG.sentence_offsets
        begins, stops = [], []
        for first, last in zip(split.document_starts[:-1], split.document_starts[1:], strict=True):
            while first < last:
                stop = int(np.clip(np.searchsorted(offsets, offsets[first] + 38, side="right") - 1, first + 1, last))
                begins.append(first), stops.append(stop)
                first = stop
        begin, stop = np.array(begins), np.array(stops)
        several = stop - begin > 1
        begin, stop = begin[several], stop[several]
        return Arrangement(3)._records(offsets, begin, stop, random.fold(random.key("leak", key), begin))

    assert length_z(np.concatenate([greedy(key) for key in range(4)]), 40) > 4


# ---- Edges ----------------------------------------------------------------------------------------------------------


def test_packed_rows_hold_the_same_sequences(tmp_path: Path) -> None:
    def found(packing: str) -> list[tuple[Any, ...]]:
        config = RowsConfig(64, arrangement="sentence_reordering", packing=packing)  # type: ignore[arg-type]
        source = SequenceRows(config, LONG, FACTS, seed=0, directory=tmp_path)
        indices = np.arange(source.rows_per_epoch)
        rows, sequences = source.rows(np.zeros_like(indices), indices), []
        of = rows.get("sequence_ids", rows["attention_mask"])
        for i, k in zip(*np.nonzero(rows["sentence_reordering_weights"]), strict=True):
            here = of[i] == k + 1
            assert rows["input_ids"][i][rows["cls_positions"][i, k]] == FACTS.cls
            label = int(rows["sentence_reordering_labels"][i, k])
            sequences.append((*rows["token_type_ids"][i][here].tolist(), label))
        return sorted(sequences)

    assert found("packed") == found("none")


def test_a_text_without_order_is_refused() -> None:
    with pytest.raises(UserError, match="no document of the split has 2 sentences"):
        Arrangement().check(FakeSplit([[9]] * 5))
    with pytest.raises(UserError, match="no two sentences of a document fit in a row of 16"):
        list(Arrangement().plan(FakeSplit([[12, 12]] * 5), random.key("x"), 16, None))
    for number in (1, 6):
        with pytest.raises(UserError, match=f"max_pieces is {number}; 2 to 5 is allowed"):
            Arrangement(number)
