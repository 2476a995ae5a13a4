"""Three distances of a pair: labels on documents by loops, thirds, and surfaces that do not tell the label."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import chunks, random
from bert_jax.rows.arrangements.sentence_distance import Arrangement
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.rows.fakes import FACTS, FakeSplit, fake_split, z
from tests.rows.test_chunks import LEAK_SPLIT, leak_z, surface


def planned(split: FakeSplit, max_length: int, key: int = 0) -> np.ndarray:
    return np.concatenate(list(Arrangement().plan(split, random.key("distance", key), max_length, None)))


def sentences_of(split: FakeSplit, start: int, length: int) -> range:
    offsets = split.sentence_offsets
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    return range(first, int(np.searchsorted(offsets, start + length, side="left")))


@pytest.mark.parametrize("max_length", [203, 24])
def test_labels_say_the_distance(max_length: int) -> None:
    """Rows of 203 cut nothing of these texts; rows of 24 cut most pairs."""
    split = fake_split(60, sentences=(1, 9), mean=8, seed=1)
    document = np.searchsorted(split.document_starts, np.arange(split.num_sentences), side="right")
    seen = np.zeros(3, int)
    for key in range(20):
        for pair in planned(split, max_length, key):
            a, b = (sentences_of(split, pair[f"{side}_start"], pair[f"{side}_length"]) for side in "ab")
            assert len(set(document[list(a)])) == len(set(document[list(b)])) == 1
            same, seen[pair["label"]] = document[a[0]] == document[b[0]], seen[pair["label"]] + 1
            if pair["label"] == 2:
                assert not same
            elif pair["label"] == 1:
                assert same
                assert b[0] > a[-1] + 1 or b[-1] < a[0] - 1
            else:
                assert same
                assert a[-1] < b[0]
                assert b[0] == a[-1] + 1 or max_length == 24  # what is cut off may lie between them
    assert seen.min() > 100


def test_a_third_of_the_pairs_each_where_documents_allow() -> None:
    rules = Arrangement().rules(128, None)
    cut = chunks.cut_chunks(LEAK_SPLIT, random.key("distance", 0), np.arange(LEAK_SPLIT.num_documents), rules)
    pairs = planned(LEAK_SPLIT, 128)
    labels = pairs["label"][cut.stop - cut.start > 1]  # a chunk of one sentence has no neighbour
    assert len(labels) > 20_000
    for label in range(3):
        assert abs(z((labels == label).sum(), len(labels), 1 / 3)) < 4
    two = planned(FakeSplit([[9, 9]] * 300), 64)  # no sentence is away from another
    assert set(two["label"].tolist()) == {0, 2}


@functools.cache
def long_chunks(max_length: int) -> np.ndarray:
    cut = chunks.cut_chunks(
        LEAK_SPLIT,
        random.key("distance", 0),
        np.arange(LEAK_SPLIT.num_documents),
        Arrangement().rules(max_length, None),
    )
    return planned(LEAK_SPLIT, max_length)[cut.stop - cut.start > 1]


@pytest.mark.parametrize("classes", [(0, 1), (0, 2), (1, 2)])
def test_surface_does_not_tell_the_distance(classes: tuple[int, int]) -> None:
    pairs = long_chunks(64)
    pairs = pairs[np.isin(pairs["label"], classes)]
    assert len(pairs) > 10_000
    for name, feature in surface(LEAK_SPLIT, pairs, 61).items():
        assert leak_z(feature, pairs["label"] == classes[1]) < 4, name


def test_the_surface_test_sees_a_leak() -> None:
    pairs = long_chunks(64).copy()
    pairs = pairs[pairs["label"] < 2]
    pairs["b_length"] -= (pairs["label"] == 1) & (pairs["b_length"] > 3) & (pairs["a_start"] % 5 == 1)
    assert leak_z(surface(LEAK_SPLIT, pairs, 61)["total"], pairs["label"] == 1) > 4


def test_pairs_of_bert_are_as_before() -> None:
    """A share of 0 from the same document changes no draw."""
    key = random.key("same")
    plain, zero = (
        chunks.make(LEAK_SPLIT, key, chunks.Rules(64, 0.1, **more)) for more in ({}, {"same_document_share": 0.0})
    )
    for one, other in zip(plain, zero, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_have_the_label_of_the_plan(tmp_path: Path) -> None:
    split = fake_split(200, sentences=(3, 20), mean=9)
    for packing in ("none", "packed"):
        config = RowsConfig(64, arrangement="sentence_distance", packing=packing)  # type: ignore[arg-type]
        source = SequenceRows(config, split, FACTS, seed=0, directory=tmp_path)
        indices = np.arange(source.rows_per_epoch)
        rows = source.rows(np.zeros_like(indices), indices)
        labels, counts = rows["sentence_distance_labels"], rows["sentence_distance_weights"] > 0
        dealt = source._deal(np.zeros_like(indices), indices, 0)[0]
        assert labels[counts].tolist() == dealt["label"].tolist()
        assert (rows["input_ids"][np.nonzero(counts)[0], rows["cls_positions"][counts]] == FACTS.cls).all()


def test_a_split_without_neighbours_is_refused() -> None:
    with pytest.raises(UserError, match="no document of the split has 2 sentences"):
        Arrangement().check(FakeSplit([[9]] * 5))
    with pytest.raises(UserError, match="unknown key config.objective.arrangement_options.random_share"):
        RowsConfig(64, arrangement="sentence_distance", arrangement_options={"random_share": 0.5})
