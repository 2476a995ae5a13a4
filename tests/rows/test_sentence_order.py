"""Sentence order: which pairs are swapped, and that only reading tells."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.rows import chunks, random
from bert_jax.rows.arrangements import sentence_order
from tests.rows.fakes import FakeSplit, fake_split
from tests.rows.test_chunks import LEAK_SPLIT

KEY = random.key("order")


def planned(split: FakeSplit, max_length: int = 128) -> np.ndarray:
    return np.concatenate(list(sentence_order.Arrangement().plan(split, KEY, max_length, None)))


def in_order(split: FakeSplit, capacity: int) -> tuple[chunks.Chunks, np.ndarray, np.ndarray]:
    """Chunks, and their pairs without and with swapping."""
    rules = chunks.Rules(capacity + 3, 0.1, random_share=0.0)
    cut = chunks.cut_chunks(split, KEY, np.arange(split.num_documents), rules)
    swapped = chunks.make_pairs(split, KEY, cut, rules._replace(swapped_share=0.5))
    return cut, chunks.make_pairs(split, KEY, cut, rules), swapped


def test_half_of_the_pairs_are_swapped_and_hold_the_same_text() -> None:
    """Lan et al. 2020, section 3.1: two segments that follow each other, in either order."""
    split, capacity = LEAK_SPLIT, 125
    cut, straight, pairs = in_order(split, capacity)
    several = cut.stop - cut.start > 1
    swapped = pairs["is_random"]
    share, n = swapped[several].mean(), several.sum()
    assert n > 10_000
    assert abs(share - 0.5) * 2 * np.sqrt(n) < 4
    whole = several & (straight["a_length"] + straight["b_length"] < capacity)  # nothing was cut off
    for sides, which in (("ab", ~swapped), ("ba", swapped)):
        here = whole & which
        assert here.sum() > 100
        for part in ("start", "length"):
            for side, other in zip("ab", sides, strict=True):
                np.testing.assert_array_equal(pairs[f"{side}_{part}"][here], straight[f"{other}_{part}"][here])
    first = np.where(swapped, pairs["b_start"], pairs["a_start"])[several]
    second = np.where(swapped, pairs["a_start"], pairs["b_start"])[several]
    document = np.searchsorted(split.sentence_offsets[split.document_starts], np.stack([first, second]), side="right")
    assert (first < second).all()
    np.testing.assert_array_equal(*document)


def test_a_chunk_of_one_sentence_has_a_random_second_segment_and_label_1() -> None:
    pairs = planned(FakeSplit([[9]] * 400 + [[9, 9]]))
    pairs = pairs[pairs["a_start"] < 3600]  # without the last document
    assert len(pairs) == 400
    assert pairs["is_random"].all()
    assert (pairs["a_start"] // 9 != pairs["b_start"] // 9).all()
    labels = sentence_order.Arrangement().labels(pairs)
    assert (labels["sentence_order_labels"] == 1).all()
    assert (labels["sentence_order_weights"] == 1).all()


@pytest.mark.parametrize("capacity", [61, 62])
def test_truncation_does_not_tell_the_order(capacity: int) -> None:
    """Swapped before they are cut to a row: else the segment of a pair of equals that loses its last token would say
    which came first, in six of ten pairs of 64 positions."""
    cut, straight, pairs = in_order(LEAK_SPLIT, capacity)
    cut_equal = (cut.stop - cut.start > 1) & (straight["a_length"] + straight["b_length"] == capacity)
    cut_equal &= np.abs(straight["a_length"] - straight["b_length"]) <= 1
    labels, longer = pairs["is_random"][cut_equal], (pairs["a_length"] > pairs["b_length"])[cut_equal]
    n = len(labels)
    assert n > 1000
    agreement = np.mean(labels == longer)
    assert abs(agreement - 0.5) * 2 * np.sqrt(n) < 5


def test_a_plan_keys_every_pair_by_a_start_of_its_own() -> None:
    pairs = planned(fake_split())
    assert len(np.unique(pairs["a_start"])) == len(pairs)
    assert 0.45 < pairs["is_random"].mean() < 0.55
