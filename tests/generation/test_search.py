"""Searches beside brute force, on a model that is a table of 4 tokens; and what sampling draws."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.generation.toys import V, run, table

NEW, END = 4, 3


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def all_texts(logits: np.ndarray, prompt: list[int], penalty: float, ngram: int) -> list[tuple[float, list[int]]]:
    """Every text of at most 4 tokens that ends or is full, with its score, the best first."""
    steps, found = log_probabilities(logits.astype(np.float64)), {}
    for ids in itertools.product(range(V), repeat=NEW):
        text = list(ids[: ids.index(END) + 1] if END in ids else ids)
        whole = prompt + text
        grams = [tuple(whole[i : i + ngram]) for i in range(len(whole) - ngram + 1)] if ngram else []
        late = [gram for i, gram in enumerate(grams) if i + ngram > len(prompt) and gram in grams[:i]]
        if not late:
            score = sum(steps[a, b] for a, b in zip([prompt[-1], *text], text, strict=False))
            found[tuple(text)] = score / len(text) ** penalty
    return sorted(((score, list(text)) for text, score in found.items()), reverse=True)


@pytest.mark.parametrize(
    ("penalty", "ngram"),
    [(2.0, 2), (-0.5, 0), *(pytest.param(*one, marks=pytest.mark.heavy) for one in ((0.0, 0), (2.0, 0), (-0.5, 2)))],
)
def test_enough_beams_are_brute_force(penalty: float, ngram: int) -> None:
    """64 beams lose no text of 4 tokens: the five best of all texts are found, in order, for 20 tables."""
    settings: dict[str, Any] = {"method": "beam", "beams": 64, "max_new_tokens": NEW, "num_results": 5}
    prompts = [[1], [2, 0, 1]]
    for seed in range(20):
        logits = table(seed)
        found = run(logits, prompts, (END,), **settings, length_penalty=penalty, no_repeat_ngram=ngram)
        for row, prompt in enumerate(prompts):
            wanted = all_texts(logits, prompt, penalty, ngram)
            scores = {tuple(text + [0] * (NEW - len(text))): (score, text) for score, text in wanted}
            ours = [scores[tuple(ids)] for ids in found.ids[row].tolist()]  # texts of the same pairs are equally good
            np.testing.assert_allclose([score for score, _ in ours], [score for score, _ in wanted[:5]], atol=1e-5)
            assert len({tuple(text) for _, text in ours}) == 5
            assert found.lengths[row].tolist() == [len(text) - (text[-1] == END) for _, text in ours]


def test_greedy_takes_the_likeliest_and_stops_at_the_end() -> None:
    """Rows end at unlike steps and are padded; a row that does not end has all its tokens."""
    logits = np.zeros((V, V), np.float32)
    logits[[0, 1, 2, 3], [2, END, 1, 0]] = 1
    found = run(logits, [[0], [3, 1], [2]], (END,), max_new_tokens=3)
    assert found.ids[:, 0].tolist() == [[2, 1, END], [END, 0, 0], [1, END, 0]]
    assert found.lengths[:, 0].tolist() == [2, 0, 1]
    logits[0, 0] = 2
    assert run(logits, [[0], [1]], (END,), max_new_tokens=3).lengths[:, 0].tolist() == [3, 0]


def test_no_pair_occurs_twice() -> None:
    """The pairs of the prompt count, in prompts of unlike lengths; with pairs of 1, no token occurs twice."""
    logits = np.zeros((V, V), np.float32)
    logits[:, 0] = 1
    found = run(logits, [[0, 0], [1, 2, 0], [3]], max_new_tokens=3, no_repeat_ngram=2)
    assert found.ids[:, 0].tolist() == [[1, 0, 2], [0, 1, 0], [0, 0, 1]]
    ended = run(logits, [[0, 0], [1]], (1,), pad=2, max_new_tokens=3, no_repeat_ngram=2)
    assert ended.ids[:, 0].tolist() == [[1, 2, 2], [0, 0, 1]]
    assert run(logits, [[0], [2, 0]], max_new_tokens=2, no_repeat_ngram=1).ids[:, 0].tolist() == [[1, 2], [1, 3]]


LOGITS = np.log(np.array([[0.4, 0.3, 0.2, 0.1]] * V, np.float32))
SHARES = {
    "all": ({}, [0.4, 0.3, 0.2, 0.1]),
    "temperature": ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
    "top_k": ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
    "top_p": ({"top_p": 0.75}, [4 / 9, 3 / 9, 2 / 9, 0]),
    "top_p of the likeliest": ({"top_p": 0.1}, [1, 0, 0, 0]),
    "top_k, then top_p": ({"top_k": 3, "top_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),
}
FAR = {0: 0.0, 1: 10.83, 2: 13.82, 3: 16.27}  # chi-square that 1 of 1,000 draws exceeds, by degrees of freedom


# Of top_k and top_p, the quick test draws by both.
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.heavy) if one in ("top_k", "top_p", "all") else one for one in SHARES],
)
def test_what_sampling_draws(name: str) -> None:
    """3,000 texts of two tokens: both follow the probabilities (chi-square), and do not follow each other."""
    settings, shares = SHARES[name]
    ids = run(LOGITS, [[1]] * 1000, method="sample", max_new_tokens=2, num_results=3, seed=7, **settings).ids
    pairs = np.bincount(ids.reshape(-1, 2) @ [V, 1], minlength=V * V).reshape(V, V)
    allowed = np.array(shares) > 0
    assert not pairs[~allowed].any()
    assert not pairs[:, ~allowed].any()
    for counts in (pairs.sum(1), pairs.sum(0)):
        wanted = counts.sum() * np.array(shares)
        squares = (counts - wanted)[allowed] ** 2 / wanted[allowed]
        assert squares.sum() <= FAR[allowed.sum() - 1]
    apart = np.outer(shares, shares)[np.ix_(allowed, allowed)] * pairs.sum()
    assert ((pairs[np.ix_(allowed, allowed)] - apart) ** 2 / apart).sum() <= 3 * FAR[3]  # at most 15 degrees


def test_a_seed_draws_the_same_texts_in_any_batch() -> None:
    drawn: dict[str, Any] = {"method": "sample", "max_new_tokens": 8, "num_results": 2}
    prompts = [[1], [2, 0], [3, 1, 1]]
    whole = run(table(0), prompts, **drawn, seed=5).ids
    again = run(table(0), prompts, **drawn, seed=5).ids
    alone = run(table(0), prompts[2:0:-1], **drawn, seed=5, numbers=[2, 1]).ids
    assert np.array_equal(whole, again)
    assert np.array_equal(alone, whole[:0:-1])
    other = run(table(0), prompts, **drawn, seed=6).ids
    assert (other != whole).any()
    assert (whole[:, 0] != whole[:, 1]).any()
