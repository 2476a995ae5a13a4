"""Dropout bits are Bernoulli, independent between places, and blind to layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.dropout import RowRng, dropout, mix

RATE = 0.1
SHAPE = (64, 16, 256)


def kept(
    seed: int = 0, step: int = 0, site: str = "a", rows: np.ndarray | None = None, rate: float = RATE
) -> np.ndarray:
    rows = np.arange(SHAPE[0]) if rows is None else rows
    rng = RowRng.create(seed, step, jnp.asarray(rows))
    return np.asarray(dropout(jnp.ones((len(rows), *SHAPE[1:])), rate, rng, site)) > 0


def z_of_rate(hits: np.ndarray, p: float) -> float:
    return float((hits.sum() - hits.size * p) / np.sqrt(hits.size * p * (1 - p)))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_rate(rate: float) -> None:
    assert abs(z_of_rate(~kept(rate=rate), rate)) < 4


def test_the_scale_keeps_the_mean() -> None:
    rng = RowRng.create(0, 0, jnp.arange(SHAPE[0]))
    out = np.asarray(dropout(jnp.full(SHAPE, 3.0), RATE, rng, "a"))
    assert set(np.unique(out)) == {0.0, np.float32(3.0) / np.float32(0.9)}
    assert out.mean() == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("other", [{"seed": 1}, {"step": 1}, {"site": "b"}, {"rows": np.arange(SHAPE[0]) + 1}])
def test_independent_between_seeds_steps_sites_and_rows(other: dict) -> None:
    both = ~kept() & ~kept(**other)
    assert abs(z_of_rate(both, RATE * RATE)) < 4


def test_independent_between_neighbours_within_a_row() -> None:
    dropped = ~kept()
    for lag in (1, 2, 16, 255):
        flat = dropped.reshape(SHAPE[0], -1)
        assert abs(z_of_rate(flat[:, lag:] & flat[:, :-lag], RATE * RATE)) < 4


def test_every_row_has_its_rate() -> None:
    """Sums over rows are binomial: a key that leaks into the bits of a whole row would widen them."""
    counts = (~kept()).reshape(SHAPE[0], -1).sum(axis=1)
    n = SHAPE[1] * SHAPE[2]
    chi_square = np.sum((counts - n * RATE) ** 2) / (n * RATE * (1 - RATE))
    assert abs(chi_square - SHAPE[0]) < 4 * np.sqrt(2 * SHAPE[0])


def test_bits_are_uniform() -> None:
    bits = np.asarray(RowRng.create(3, 5, jnp.arange(SHAPE[0])).bits(SHAPE))
    for shift in (0, 8, 16, 24):
        counts = np.bincount((bits >> shift).ravel() & 255, minlength=256)
        expected = bits.size / 256
        assert abs(np.sum((counts - expected) ** 2) / expected - 255) < 4 * np.sqrt(2 * 255)


def test_rows_keep_their_bits_in_any_order_and_any_part() -> None:
    whole = kept()
    order = np.random.default_rng(0).permutation(SHAPE[0])
    assert np.array_equal(kept(rows=order), whole[order])
    parts = [kept(rows=np.arange(start, start + 16)) for start in range(0, SHAPE[0], 16)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_sharded_batch_has_the_same_bits() -> None:
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    rows = jax.device_put(jnp.arange(SHAPE[0]), sharding)

    @jax.jit
    def run(x: jax.Array, rows: jax.Array) -> jax.Array:
        return dropout(x, RATE, RowRng.create(0, 0, rows), "a")

    out = run(jax.device_put(jnp.ones(SHAPE), sharding), rows)
    assert out.sharding.is_equivalent_to(sharding, 3)
    assert np.array_equal(np.asarray(out) > 0, kept())


def test_traced_and_static_sites_agree() -> None:
    rng = RowRng.create(0, 0, jnp.arange(4))
    assert rng.site(2).key == jax.jit(lambda i: rng.site(i).key)(jnp.uint32(2))


def test_no_rng_and_rate_zero_are_the_identity() -> None:
    x = jnp.ones((2, 3))
    assert dropout(x, RATE, None, "a") is x
    assert dropout(x, 0.0, RowRng.create(0, 0, jnp.arange(2)), "a") is x


def test_the_gradient_goes_through_what_was_kept() -> None:
    rng = RowRng.create(0, 0, jnp.arange(8))
    x = jnp.ones((8, 100))
    gradient = jax.grad(lambda x: jnp.sum(dropout(x, RATE, rng, "a")))(x)
    assert np.array_equal(np.asarray(gradient), np.asarray(dropout(x, RATE, rng, "a")))


def test_mix_is_a_bijection_on_a_block_and_spreads_bits() -> None:
    x = jnp.arange(1 << 16, dtype=jnp.uint32)
    assert len(np.unique(np.asarray(mix(x)))) == 1 << 16
    for bit in range(32):
        flipped = np.asarray(mix(x) ^ mix(x ^ jnp.uint32(1 << bit)))
        rates = ((flipped[:, None] >> np.arange(32, dtype=np.uint32)) & 1).mean(axis=0)
        assert np.all(np.abs(rates - 0.5) < 0.03)
