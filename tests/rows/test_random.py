import numpy as np
import pytest

from bert_jax.rows import random
from tests.rows.fakes import chi_square_z

N = 200_000


def test_bits_never_change() -> None:
    # Plans and rows of old runs depend on these values.
    assert int(random.key("corpus", 1, "plan")) == 4563844575777867503
    assert random.fold(np.uint64(7), [0, 1, 2]).tolist() == [
        7191089600892374487,
        309689372594955804,
        16616101746815609346,
    ]


def test_keys_tell_types_and_order_apart() -> None:
    assert len({int(random.key(*parts)) for parts in [("1",), (1,), (1, 2), (2, 1), ("1\x002",), (12,)]}) == 6


def test_uniform_is_uniform_over_counters_and_over_keys() -> None:
    counters = np.arange(N)
    for bits in (random.fold(random.key("a"), counters), random.fold(random.fold(random.key("a"), counters), 0)):
        values = random.uniform(bits)
        assert values.min() >= 0
        assert values.max() < 1
        histogram = np.bincount((values * 256).astype(int), minlength=256)
        assert abs(chi_square_z(histogram, np.full(256, N / 256))) < 4
        low_byte = np.bincount((bits & np.uint64(255)).astype(int), minlength=256)
        assert abs(chi_square_z(low_byte, np.full(256, N / 256))) < 4


@pytest.mark.parametrize("lag", [1, 2, 64])
def test_neighbours_and_streams_do_not_correlate(lag: int) -> None:
    base = random.key("a")
    x = random.uniform(random.fold(base, np.arange(N)))
    others = (
        random.uniform(random.fold(base, np.arange(N) + lag)),
        random.uniform(random.fold(random.fold(base, lag), np.arange(N))),
        random.uniform(random.fold(random.key("b"), np.arange(N))),
    )
    for y in others:
        assert abs(np.corrcoef(x, y)[0, 1]) * np.sqrt(N) < 4


def test_every_bit_flips_with_every_counter_bit() -> None:
    bits = random.fold(random.key("a"), np.arange(4096))
    for flip in (1, 1 << 7, 1 << 40):
        changed = np.bitwise_count(bits ^ random.fold(random.key("a"), np.arange(4096) ^ flip))
        assert abs(changed.mean() - 32) * np.sqrt(4096) / 4 < 4


def test_integers_stay_in_range_and_are_uniform() -> None:
    bits = random.fold(random.key("a"), np.arange(N))
    values = random.integers(bits, 30)
    assert abs(chi_square_z(np.bincount(values, minlength=30), np.full(30, N / 30))) < 4
    assert random.integers(np.array([2**64 - 1], np.uint64), 7).tolist() == [6]
    assert random.integers(bits, 1).max() == 0


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 97, 1000, 4097])
def test_permuted_is_a_permutation(size: int) -> None:
    image = random.permute(random.key("a", size), np.arange(size), size)
    assert sorted(image.tolist()) == list(range(size))


def test_permutations_differ_by_key_and_serve_many_keys_at_once() -> None:
    keys = random.fold(random.key("a"), np.repeat([0, 1], 1000))
    both = random.permute(keys, np.tile(np.arange(1000), 2), 1000)
    assert sorted(both[:1000].tolist()) == sorted(both[1000:].tolist()) == list(range(1000))
    assert (both[:1000] != both[1000:]).mean() > 0.99


def test_permutations_spread_every_index_evenly() -> None:
    size, trials = 20, 20_000
    keys = random.fold(random.key("a"), np.arange(trials))
    first, second = (random.permute(keys, np.full(trials, i), size) for i in (0, 1))
    assert abs(chi_square_z(np.bincount(first, minlength=size), np.full(size, trials / size))) < 4
    pairs = np.bincount(first * size + second, minlength=size * size).reshape(size, size)
    off_diagonal = pairs[~np.eye(size, dtype=bool)]
    assert np.trace(pairs) == 0
    assert abs(chi_square_z(off_diagonal, np.full(len(off_diagonal), trials / len(off_diagonal)))) < 4
