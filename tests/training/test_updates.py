"""Optimizers and schedules against computations of their own, in plain numpy and float64."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.models.model import fresh_params
from bert_jax.models.transformer import stack_layers, unstack_layers
from bert_jax.training.optimizers import adagrad, adamax, adamw, lamb
from bert_jax.training.optimizers.base import Rule, decay_mask
from bert_jax.training.schedules import cosine, linear, linear_from_zero, warmup_stable_decay
from bert_jax.training.schedules.base import Warmup

TINY = bert.Config(50, hidden_size=8, num_layers=2, num_heads=2, mlp_dim=16, max_length=8)
N, W, PEAK = 100, 10, 2.0


def curve(name: str, step: int, decay: int = 30) -> float:
    if step < W:
        return PEAK * step / W
    return (
        PEAK
        * {
            "linear_from_zero": 1 - step / N,
            "linear": (N - step) / (N - W),
            "cosine": 0.5 * (1 + np.cos(np.pi * (step - W) / (N - W))),
            "warmup_stable_decay": min(1.0, (N - step) / decay),
        }[name]
    )


@pytest.mark.parametrize(
    ("name", "config"),
    {
        "linear_from_zero": linear_from_zero.Schedule(PEAK, W),
        "linear": linear.Schedule(PEAK, W),
        "cosine": cosine.Schedule(PEAK, W),
        "warmup_stable_decay": warmup_stable_decay.Schedule(PEAK, W, decay_steps=30),
    }.items(),
)
def test_schedules(name: str, config: Warmup) -> None:
    schedule = config.make(N)
    np.testing.assert_allclose([schedule(s) for s in range(N + 1)], [curve(name, s) for s in range(N + 1)], atol=1e-6)


def test_the_published_schedule_never_reaches_its_peak() -> None:
    schedule = linear_from_zero.Schedule(1e-4, 10_000).make(1_000_000)
    assert float(schedule(0)) == 0.0
    assert float(schedule(10_000)) == pytest.approx(0.99e-4)
    for too_long in (linear.Schedule(1e-4, 10), warmup_stable_decay.Schedule(1e-4, 3, decay_steps=3)):
        with pytest.raises(UserError, match="exceed the run's 5 steps"):
            too_long.make(5)


def test_a_run_made_shorter_than_two_warm_ups_says_so() -> None:
    config = linear.Schedule(1e-4, 300)
    assert config.remarks(601) == ()
    assert "rises for 300 of 600 steps" in config.remarks(600)[0]
    assert linear.Schedule(1e-4, 300, warmup_fraction=0.1).remarks(10) == ()


def leaves(tree: Any) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(p): np.asarray(x, np.float64) for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def run(config: Rule, params: Any, gradients: list[Any], rate: float = 0.01) -> Any:
    tx = config.make()

    @jax.jit
    def update(gradient: Any, state: Any, params: Any) -> Any:
        direction, state = tx.update(gradient, state, params)
        return jax.tree.map(lambda w, d: w - rate * d, params, direction), state

    state = jax.jit(tx.init)(params)
    for gradient in gradients:
        params, state = update(gradient, state, params)
    return params


@functools.cache
def tiny_params() -> Any:
    return jax.device_get(fresh_params(TINY))  # numpy stacks layers without a program


def random_like(params: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(0, 1, x.shape).astype(np.float32), params)


def by_hand(
    params: Any, gradients: list[Any], rate: float = 0.01, share: Callable[[str], float] = lambda name: 1.0
) -> dict[str, np.ndarray]:
    """google-research/bert, optimization.py. ``share``: of the rate, by the name of a parameter."""
    weights = leaves(params)
    m, v = ({k: np.zeros_like(w) for k, w in weights.items()} for _ in range(2))
    for gradient in map(leaves, gradients):
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        for k, w in weights.items():
            g = gradient[k] * min(1.0, 1.0 / norm)
            m[k], v[k] = 0.9 * m[k] + 0.1 * g, 0.999 * v[k] + 0.001 * g**2
            update = m[k] / (np.sqrt(v[k]) + 1e-6)
            if not k.endswith(("bias']", "scale']")):
                update = update + 0.01 * w
            weights[k] = w - rate * share(k) * update
    return weights


def lamb_by_hand(params: Any, gradients: list[Any], rate: float = 0.01) -> dict[str, np.ndarray]:
    """You et al. 2020, algorithm 2. Biases and gains are left out of the decay and of the layer-wise ratio, as in
    google-research/albert, lamb_optimizer.py; a norm of 0 makes the ratio 1 there."""
    x = leaves(params)
    m, v = ({name: 0.0 * value for name, value in x.items()} for _ in range(2))
    for t, gradient in enumerate(map(leaves, gradients), start=1):
        norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
        for name, g in gradient.items():
            g = g / max(norm, 1.0)  # the clipping of BERT
            m[name] = 0.9 * m[name] + (1 - 0.9) * g
            v[name] = 0.999 * v[name] + (1 - 0.999) * g**2
            r = (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.999**t)) + 1e-6)
            ratio = 1.0
            if name.split("'")[-2] not in ("bias", "output_bias", "scale"):
                r = r + 0.01 * x[name]
                norms = np.linalg.norm(x[name]), np.linalg.norm(r)
                ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
            x[name] = x[name] - rate * ratio * r
    return x


def adamax_by_hand(
    params: Any, gradients: list[Any], rate: float = 0.01, corrected: bool = True
) -> dict[str, np.ndarray]:
    """Kingma and Ba 2015, algorithm 2, with the clipping and the decay of BERT."""
    weights = leaves(params)
    m, u = ({k: np.zeros_like(w) for k, w in weights.items()} for _ in range(2))
    for t, gradient in enumerate(map(leaves, gradients), start=1):
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        for k, w in weights.items():
            g = gradient[k] / max(norm, 1.0)
            m[k], u[k] = 0.9 * m[k] + 0.1 * g, np.maximum(0.999 * u[k], np.abs(g) + 1e-6)
            update = m[k] / u[k] / (1 - 0.9**t if corrected else 1)
            if not k.endswith(("bias']", "scale']")):
                update = update + 0.01 * w
            weights[k] = w - rate * update
    return weights


def adagrad_by_hand(params: Any, gradients: list[Any], rate: float = 0.01) -> dict[str, np.ndarray]:
    """Duchi et al. 2011, with diagonal matrices and the clipping of BERT; nothing decays."""
    weights = leaves(params)
    sums = {k: np.full_like(w, 0.1) for k, w in weights.items()}
    for gradient in map(leaves, gradients):
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        for k, w in weights.items():
            g = gradient[k] / max(norm, 1.0)
            sums[k] += g**2
            weights[k] = w - rate * g / np.sqrt(sums[k])
    return weights


UPDATES: list[tuple[Rule, Any]] = [
    (adagrad.Optimizer(), adagrad_by_hand),
    (adamw.Optimizer(), by_hand),
    (lamb.Optimizer(), lamb_by_hand),
    (adamax.Optimizer(), adamax_by_hand),
    (adamax.Optimizer(bias_correction="none"), functools.partial(adamax_by_hand, corrected=False)),
]


@pytest.mark.parametrize(("config", "hand"), UPDATES)
def test_twenty_updates(config: Rule, hand: Any) -> None:
    params = tiny_params()
    gradients = [random_like(params, seed) for seed in range(20)]
    found = leaves(run(config, params, gradients))
    for name, expected in hand(params, gradients).items():
        np.testing.assert_allclose(found[name], expected, atol=2e-5, err_msg=name)


def test_lamb_moves_what_begins_at_zero_as_adamw_does() -> None:
    """A warm-up of 1,500 steps to 5e-3 under a constant gradient."""
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.asarray(rng.normal(0, 0.02, (8, 8)), jnp.float32), "bias": jnp.zeros(8)}
    gradient = jax.tree.map(lambda w: jnp.full(w.shape, 0.01), params)

    def moved(config: Rule) -> np.ndarray:
        tx = config.make()

        def update(state: Any, rate: jax.Array) -> Any:
            params, moments = state
            direction, moments = tx.update(gradient, moments, params)
            return (jax.tree.map(lambda w, d: w - rate * d, params, direction), moments), None

        rates = jnp.linspace(0.0, 5e-3, 1500)
        (trained, _), _ = jax.jit(lambda params: jax.lax.scan(update, (params, tx.init(params)), rates))(params)
        return np.asarray(-trained["bias"])

    by_adam = moved(adamw.Optimizer(bias_correction="standard"))
    assert by_adam.min() > 3.5
    np.testing.assert_allclose(moved(lamb.Optimizer()), by_adam, rtol=1e-4)


def test_each_has_its_own_bias_correction() -> None:
    assert [config.bias_correction for config in (adamw.Optimizer(), lamb.Optimizer())] == ["none", "standard"]


def test_standard_correction_is_adamw() -> None:
    params = tiny_params()
    gradients = [random_like(params, seed) for seed in range(5)]
    config = adamw.Optimizer(bias_correction="standard", clip_norm=None)
    tx = optax.adamw(0.01, eps=1e-6, weight_decay=0.01, mask=decay_mask)
    update, expected, state = jax.jit(tx.update), params, tx.init(params)
    for gradient in gradients:
        updates, state = update(gradient, state, expected)
        expected = optax.apply_updates(expected, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), run(config, params, gradients), expected)


# torch.optim.Adamax, lr 0.01, eps 1e-6: the weights after each of three updates from (1, -2) by these gradients.
# tests/parity/test_optimizers.py computes them anew.
ADAMAX_GRADIENTS = [[0.5, -4.0], [-0.25, 1.0], [2.0, 0.0]]
ADAMAX_WEIGHTS = [[0.99000002, -1.9900000025], [0.9878926537, -1.9865755262], [0.9838705155, -1.9844125314]]


def test_adamax_is_that_of_torch() -> None:
    config, params = adamax.Optimizer(weight_decay=0.0, clip_norm=None), {"kernel": jnp.asarray([1.0, -2.0])}
    gradients = [{"kernel": jnp.asarray(gradient)} for gradient in ADAMAX_GRADIENTS]
    found = [run(config, params, gradients[:n])["kernel"] for n in (1, 2, 3)]
    np.testing.assert_allclose(found, ADAMAX_WEIGHTS, rtol=1e-6)


def test_the_first_uncorrected_update_is_larger() -> None:
    params = {"kernel": jnp.zeros((4,))}
    gradient = {"kernel": jnp.full((4,), 100.0)}
    sizes = [
        float(-run(adamw.Optimizer(bias_correction=c, clip_norm=None), params, [gradient])["kernel"][0])
        for c in ("none", "standard")
    ]
    assert sizes[0] / sizes[1] == pytest.approx(0.1 / np.sqrt(0.001), rel=1e-4)


def test_lamb_scales_each_layer_by_itself_also_when_stacked() -> None:
    params = jax.tree.map(np.asarray, random_like(tiny_params(), 7))
    gradient = jax.tree.map(np.asarray, random_like(params, 8))
    unrolled = run(lamb.Optimizer(), params, [gradient])
    stacked = unstack_layers(run(lamb.Optimizer(), stack_layers(params), [stack_layers(gradient)]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), unrolled, stacked)


def test_what_decays() -> None:
    mask = {jax.tree_util.keystr(p): m for p, m in jax.tree_util.tree_leaves_with_path(decay_mask(tiny_params()))}
    assert mask["['encoder']['embeddings']['word_embeddings']"]
    assert mask["['encoder']['layer_0']['attention']['query']['kernel']"]
    assert not mask["['encoder']['layer_0']['attention']['query']['bias']"]
    assert not mask["['encoder']['embeddings']['layer_norm']['scale']"]
    assert not mask["['mlm_head']['output_bias']"]
