"""Windows against their definition in words, token by token."""

import numpy as np
import pytest

from bert_jax.tasks.windows import cut, read_passage
from bert_jax.text.tokenizer import wordpiece
from tests.tasks.questions import SPECIAL, tokenizer

CASES = [(0, 5, 3), (1, 5, 3), (5, 5, 3), (6, 5, 3), (40, 9, 4), (41, 9, 4), (57, 9, 20), (300, 37, 12), (23, 7, 1)]
CASES += [tuple(int(n) for n in np.random.default_rng(seed).integers(1, (400, 80, 60))) for seed in range(60)]


def spans_by_definition(num_tokens: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """google-research/bert, run_squad.py: how its loop reads."""
    spans, start = [], 0
    while True:
        size = min(num_tokens - start, capacity)
        spans.append((start, size))
        if start + size == num_tokens:
            return spans
        start += min(size, stride)


def best_window(spans: list[tuple[int, int]], token: int) -> int:
    """Where the token has the most context on its poorer side; a hundredth of the size breaks ties, then the order."""
    scores = [
        min(token - start, start + size - 1 - token) + 0.01 * size if start <= token < start + size else -1
        for start, size in spans
    ]
    return scores.index(max(scores))


@pytest.mark.parametrize(("num_tokens", "capacity", "stride"), CASES)
def test_windows_equal_their_definition(num_tokens, capacity, stride):
    windows = cut(num_tokens, capacity, stride)
    spans = spans_by_definition(num_tokens, capacity, stride)
    assert list(zip(windows.starts.tolist(), windows.sizes.tolist(), strict=True)) == spans
    owners = np.full(num_tokens, -1)
    for number, (start, end) in enumerate(zip(windows.best_starts, windows.best_ends, strict=True)):
        assert (owners[start:end] == -1).all()
        owners[start:end] = number
    assert owners.tolist() == [best_window(spans, token) for token in range(num_tokens)]


def test_a_token_stands_for_its_characters_of_the_given_text():
    text = "Caf\u00e9s  in\tYork."
    passage = read_passage(tokenizer(), text)
    pieces = [text[a:b] for a, b in zip(passage.starts, passage.ends, strict=True)]
    assert pieces == [*"Caf\u00e9s", *"in", *"York", "."]
    assert passage.tokens(5, 9) == (5, 6)  # "s", two spaces, "i": spaces are in no token


def test_combining_marks_stay_with_their_letter():
    text = "cafe\u0301 \u0e17\u0e35\u0e48"  # an accent of its own, and a Thai letter with vowel and tone
    passage = read_passage(wordpiece((*SPECIAL, *"cafe", "##a", "##f", "##e", "\u0e17")), text)
    spans = list(zip(passage.starts.tolist(), passage.ends.tolist(), strict=True))
    assert spans == [(0, 1), (1, 2), (2, 3), (3, 5), (6, 9)]


def test_characters_of_no_token_give_none():
    passage = read_passage(tokenizer(), "ab   cd")
    assert passage.tokens(3, 4) is None
    assert read_passage(tokenizer(), "").tokens(0, 1) is None
