"""StableAdamW against a computation of its own in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.transformer import stack_layers, unstack_layers
from bert_jax.training.optimizers import stable_adamw
from bert_jax.training.optimizers.base import Rule
from tests.training.test_updates import leaves, random_like, run, tiny_params

PEAK, DECAY = 8e-4, 1e-5  # those of ModernBERT-base, whose decay is what a step at the peak takes away


def published(weights: dict[str, np.ndarray], gradients: list[dict[str, np.ndarray]]) -> tuple[dict[str, Any], float]:
    """The weights after all steps, and the largest rms: AnswerDotAI/ModernBERT, src/optimizer.py, StableAdamW."""
    weights, m, v, largest = dict(weights), {}, {}, 0.0
    for t, gradient in enumerate(gradients, start=1):
        b1, b2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (0.9, 0.98))
        for name, g in gradient.items():
            m[name] = b1 * m.get(name, 0.0) + (1 - b1) * g
            v[name] = b2 * v.get(name, 0.0) + (1 - b2) * g**2
            rms = np.sqrt(np.mean(g**2 / np.maximum(v[name], 1e-6**2)))
            eta, largest = PEAK / max(1.0, rms), max(largest, rms)
            if not name.endswith(("bias']", "scale']")):
                weights[name] = weights[name] * (1 - eta / PEAK * DECAY)
            weights[name] = weights[name] - eta * m[name] / (np.sqrt(v[name]) + 1e-6)
    return weights, largest


def spiked(params: Any) -> list[Any]:
    """Twelve gradients, the eighth 50 times as large."""
    return [jax.tree.map(lambda g, s=seed: g * (50 if s == 7 else 1), random_like(params, seed)) for seed in range(12)]


def test_twelve_updates_with_a_spike() -> None:
    assert stable_adamw.Optimizer().weight_decay == pytest.approx(DECAY / PEAK)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda w: jnp.asarray(w, jnp.float64), tiny_params())
        gradients = jax.tree.map(lambda g: jnp.asarray(g, jnp.float64), spiked(params))
        found = leaves(run(stable_adamw.Optimizer(weight_decay=DECAY / PEAK), params, gradients, PEAK))
        expected, largest = published(leaves(params), list(map(leaves, gradients)))
    assert largest > 2
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12, err_msg=name)


def test_each_layer_is_damped_by_itself_also_when_stacked() -> None:
    """One layer of the two has the spike."""
    params, rule = tiny_params(), stable_adamw.Optimizer()
    gradients = [random_like(params, seed) for seed in range(4)]
    gradients[2]["encoder"]["layer_1"] = jax.tree.map(lambda g: 50 * g, gradients[2]["encoder"]["layer_1"])
    unrolled = run(rule, params, gradients)
    stacked = unstack_layers(run(rule, stack_layers(params), [stack_layers(one) for one in gradients]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), unrolled, stacked)


def test_no_gradient_is_no_step() -> None:
    rule: Rule = stable_adamw.Optimizer(weight_decay=0.0)
    params = {"kernel": jnp.ones((3, 2))}
    found = run(rule, params, [jax.tree.map(jnp.zeros_like, params)] * 2)
    np.testing.assert_array_equal(found["kernel"], params["kernel"])
