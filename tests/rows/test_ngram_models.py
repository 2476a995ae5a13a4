"""Baselines on toy languages whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.rows.ngram_models import HIDDEN, Cloze, TrigramCloze, cloze_of_rows, cross_entropies

RNG = np.random.default_rng(0)


def shown(tokens: np.ndarray) -> Cloze:
    return Cloze(tokens[:-2], tokens[2:], tokens[1:-1])


def test_unigram_is_the_counts_plus_one() -> None:
    tokens = np.array([0, 0, 0, 1, 1, 2])
    expected = -np.mean(np.log(np.array([4, 4, 1]) / 10))
    found = cross_entropies(Cloze(*np.array([[HIDDEN] * 3, [HIDDEN] * 3, [0, 0, 3]])), tokens, 4)
    assert found["unigram_cross_entropy"] == pytest.approx(expected)


def test_text_without_order_costs_its_entropy() -> None:
    probabilities = np.array([0.5, 0.25, 0.125, 0.125])
    entropy = -(probabilities * np.log(probabilities)).sum()
    tokens, held_out = RNG.choice(4, 300_000, p=probabilities), RNG.choice(4, 50_000, p=probabilities)
    found = cross_entropies(shown(held_out), tokens, 4)
    assert found == pytest.approx(
        dict.fromkeys(("unigram_cross_entropy", "trigram_cloze_cross_entropy"), entropy), abs=0.02
    )


def xor_language(length: int) -> np.ndarray:
    """Triples of tokens: the first and the third are random, the second is their sum modulo 8."""
    left, right = RNG.integers(0, 8, (2, length))
    return np.stack([left, 8 + (left + right) % 8, 16 + right], axis=1).reshape(-1)


def test_a_token_fixed_by_both_neighbours_is_known_and_by_one_is_not() -> None:
    model = TrigramCloze(xor_language(60_000), 24)
    text = xor_language(5_000)
    left, label, right = text[0::3], text[1::3], text[2::3]
    assert model.cross_entropy(Cloze(left, right, label)) < 0.15
    hidden = np.full_like(left, HIDDEN)
    for one_sided in (Cloze(left, hidden, label), Cloze(hidden, right, label)):
        assert np.log(8) - 0.05 < model.cross_entropy(one_sided) < np.log(24)
    alone = model.cross_entropy(Cloze(hidden, hidden, label))
    assert alone == pytest.approx(np.log(24), abs=0.1)


def test_every_context_has_probabilities_that_sum_to_one() -> None:
    size = 24
    model = TrigramCloze(xor_language(2_000), size)
    contexts = [(a, b) for a in (HIDDEN, 0, 9, 20) for b in (HIDDEN, 0, 9, 20)]  # seen, unseen, one hidden, both
    for left, right in contexts:
        labels = np.arange(size)
        probability = model.probability(Cloze(np.full(size, left), np.full(size, right), labels))
        assert probability.min() > 0
        assert probability.sum() == pytest.approx(1.0, abs=1e-12)


def test_neighbours_that_are_masked_or_special_are_hidden() -> None:
    rows = {
        "input_ids": np.array([[2, 10, 4, 12, 13, 77, 15, 3, 0, 0]]),  # 11 became [MASK], 14 a random piece
        "masked_positions": np.array([[2, 4, 5, 0]]),
        "masked_labels": np.array([[11, 13, 14, 0]]),
        "masked_weights": np.array([[1.0, 1.0, 1.0, 0.0]]),
    }
    cloze = cloze_of_rows(rows, special_ids=(0, 2, 3))
    assert cloze.left.tolist() == [10, 12, HIDDEN]
    assert cloze.right.tolist() == [12, HIDDEN, 15]
    assert cloze.label.tolist() == [11, 13, 14]
