"""Who sees whom in a permutation language model: the ranks, beside the published masks."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from bert_jax.objectives.permuted import order


def ranks(draws: np.ndarray, moves: np.ndarray, begins: int = 0, size: int | None = None) -> np.ndarray:
    places = np.broadcast_to(np.arange(draws.shape[1], dtype=np.int32), draws.shape)
    first = np.full((len(draws), 1), begins, np.int32)
    return np.asarray(order(draws.astype(np.int32), moves, places, first, size))


def test_all_orders_of_four_give_every_context_as_often_as_it_is_due() -> None:
    """A token's context of s of the other three comes in 1 / (4 C(3, s)) of the orders (section 2.2)."""
    orders = np.array(list(itertools.permutations(range(4))))
    found = ranks(orders, np.ones((24, 4), bool))
    np.testing.assert_array_equal(found, orders)
    for token in range(4):
        contexts = Counter(tuple(np.flatnonzero(row < row[token])) for row in found)
        others = [t for t in range(4) if t != token]
        for size in range(4):
            for context in itertools.combinations(others, size):
                assert contexts[context] == 24 / (4 * math.comb(3, size))


def test_one_order_is_left_to_right() -> None:
    growing = np.arange(6)[None]
    np.testing.assert_array_equal(ranks(growing, np.ones((1, 6), bool)), growing)
    drawn = np.random.default_rng(0).integers(0, 99, (1, 6))
    np.testing.assert_array_equal(ranks(drawn, np.ones((1, 6), bool), size=1), growing)  # blocks of one position


def published(draws: np.ndarray, selected: np.ndarray, special: np.ndarray, half: int, size: int) -> np.ndarray:
    """Whether [i] is hidden [j], as zihangdai/xlnet says of one row: ``perm_mask``, written out by loops."""
    length = len(draws)
    hidden = np.zeros((length, length), bool)
    for i, j in itertools.product(range(length), repeat=2):
        if i < half <= j:
            hidden[i, j] = True
        elif (i < half) == (j < half):
            start = half if i >= half else 0

            def index(place: int, start: int = start) -> int:
                block = (place - start) // size
                first = start + block * size
                inside = draws[first : min(first + size, half if start < half else length)]
                return block * size + int((inside < draws[place]).sum())

            own = index(i) if selected[i] or special[i] else -1
            own += 0 if selected[i] else 1
            hidden[i, j] = bool(selected[j] or special[j]) and own <= index(j)
    return hidden


@pytest.mark.parametrize(("half", "size"), [(0, 16), (8, 8), (8, 4), (5, 3)])
def test_ranks_hide_what_the_published_masks_hide(half: int, size: int) -> None:
    """The first stream opens the diagonal, the second does not; only selected positions have a second stream."""
    rng = np.random.default_rng(half + size)
    for _ in range(20):
        special = rng.random(16) < 0.15
        selected = (rng.random(16) < 0.4) & ~special
        draws = rng.permutation(100)[:16]
        found = ranks(draws[None], (selected | special)[None], half, size)[0]
        hidden = published(draws, selected, special, half, size)
        np.testing.assert_array_equal((found[None] <= found[:, None]), ~hidden | np.eye(16, dtype=bool))
        queries = found[None] < found[:, None]
        np.testing.assert_array_equal(queries[selected], ~hidden[selected])
        assert not queries.diagonal().any()  # nothing sees itself
