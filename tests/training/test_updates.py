"""Optimizers and schedules against computations of their own, in plain numpy and float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.errors import UserError
from bert_jax.models.bert import fresh_params
from bert_jax.models.config import ModelConfig
from bert_jax.models.layers import stack_layers, unstack_layers
from bert_jax.training.optimizers import OptimizerConfig, decay_mask, make_optimizer
from bert_jax.training.schedules import ScheduleConfig, make_schedule

TINY = ModelConfig(50, hidden_size=8, num_layers=2, num_heads=2, mlp_dim=16, max_length=8)
N, W, PEAK = 100, 10, 2.0


def curve(kind: str, step: int, decay: int = 30) -> float:
    if step < W:
        return PEAK * step / W
    return (
        PEAK
        * {
            "linear_from_zero": 1 - step / N,
            "linear": (N - step) / (N - W),
            "cosine": 0.5 * (1 + np.cos(np.pi * (step - W) / (N - W))),
            "warmup_stable_decay": min(1.0, (N - step) / decay),
        }[kind]
    )


@pytest.mark.parametrize("kind", ["linear_from_zero", "linear", "cosine", "warmup_stable_decay"])
def test_schedules(kind: Any) -> None:
    decay = 30 if kind == "warmup_stable_decay" else 0
    schedule = make_schedule(ScheduleConfig(kind, PEAK, W, decay), N)
    np.testing.assert_allclose([schedule(s) for s in range(N + 1)], [curve(kind, s) for s in range(N + 1)], atol=1e-6)


def test_the_published_schedule_never_reaches_its_peak() -> None:
    schedule = make_schedule(ScheduleConfig("linear_from_zero", 1e-4, 10_000), 1_000_000)
    assert float(schedule(0)) == 0.0
    assert float(schedule(10_000)) == pytest.approx(0.99e-4)
    with pytest.raises(UserError, match="exceed the run's 5 steps"):
        make_schedule(ScheduleConfig("linear", 1e-4, 10), 5)


def leaves(tree: Any) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(p): np.asarray(x, np.float64) for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def run(config: OptimizerConfig, params: Any, gradients: list[Any], rate: float = 0.01) -> Any:
    tx = make_optimizer(config)
    state = tx.init(params)
    for gradient in gradients:
        direction, state = tx.update(gradient, state, params)
        params = jax.tree.map(lambda w, d: w - rate * d, params, direction)
    return params


def random_like(params: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 1, x.shape), jnp.float32), params)


def by_hand(params: Any, gradients: list[Any], lamb: bool = False, rate: float = 0.01) -> dict[str, np.ndarray]:
    """google-research/bert, optimization.py; the trust ratio of You et al. 2020, algorithm 2."""
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
            if lamb and (ratio := np.linalg.norm(w) / max(np.linalg.norm(update), 1e-30)):
                update = update * ratio
            weights[k] = w - rate * update
    return weights


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_twenty_updates(kind: Any) -> None:
    params = fresh_params(TINY)
    gradients = [random_like(params, seed) for seed in range(20)]
    found = leaves(run(OptimizerConfig(kind), params, gradients))
    for name, expected in by_hand(params, gradients, lamb=kind == "lamb").items():
        np.testing.assert_allclose(found[name], expected, atol=2e-5, err_msg=name)


def test_standard_correction_is_adamw() -> None:
    params = fresh_params(TINY)
    gradients = [random_like(params, seed) for seed in range(5)]
    config = OptimizerConfig(bias_correction="standard", clip_norm=None)
    tx = optax.adamw(0.01, eps=1e-6, weight_decay=0.01, mask=decay_mask)
    expected, state = params, tx.init(params)
    for gradient in gradients:
        updates, state = tx.update(gradient, state, expected)
        expected = optax.apply_updates(expected, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), run(config, params, gradients), expected)


def test_the_first_uncorrected_update_is_larger() -> None:
    params = {"kernel": jnp.zeros((4,))}
    gradient = {"kernel": jnp.full((4,), 100.0)}
    sizes = [
        float(-run(OptimizerConfig(bias_correction=c, clip_norm=None), params, [gradient])["kernel"][0])
        for c in ("none", "standard")
    ]
    assert sizes[0] / sizes[1] == pytest.approx(0.1 / np.sqrt(0.001), rel=1e-4)


def test_lamb_scales_each_layer_by_itself_also_when_stacked() -> None:
    params = jax.tree.map(np.asarray, random_like(fresh_params(TINY), 7))
    gradient = jax.tree.map(np.asarray, random_like(params, 8))
    unrolled = run(OptimizerConfig("lamb"), params, [gradient])
    stacked = unstack_layers(run(OptimizerConfig("lamb"), stack_layers(params), [stack_layers(gradient)]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), unrolled, stacked)


def test_what_decays() -> None:
    mask = {jax.tree_util.keystr(p): m for p, m in jax.tree_util.tree_leaves_with_path(decay_mask(fresh_params(TINY)))}
    assert mask["['encoder']['embeddings']['word_embeddings']"]
    assert mask["['encoder']['layer_0']['attention']['query']['kernel']"]
    assert not mask["['encoder']['layer_0']['attention']['query']['bias']"]
    assert not mask["['encoder']['embeddings']['layer_norm']['scale']"]
    assert not mask["['mlm_head']['output_bias']"]
