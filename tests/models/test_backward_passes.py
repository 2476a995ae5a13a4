"""Gradients that the package writes itself are the gradients of autodiff, on every platform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.losses.cross_entropy import cross_entropy
from bert_jax.models.gradients import gated, gather, look_up, spread
from bert_jax.models.primitives import ACTIVATIONS

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(0, 11, (3, 7))
WEIGHTS = RANDOM.integers(0, 2, (3, 7)).astype("float32")


def plainly(logits: Any) -> Any:
    at = jnp.take_along_axis(jax.nn.log_softmax(logits), IDS[..., None], axis=-1)[..., 0]
    return -jnp.sum(at * WEIGHTS)


CASES: dict[str, tuple[Any, Any, tuple[int, ...]]] = {  # the function, the same without a gradient of its own, shape
    "gather": (lambda x: gather(x, IDS), lambda x: jnp.take_along_axis(x, IDS[:, :, None], axis=1), (3, 11, 4)),
    "look_up": (lambda x: look_up(x, IDS, x.dtype), lambda x: x[IDS], (11, 4)),
    "bias": (lambda x: spread(x, (40, 4), x.dtype), lambda x: jnp.broadcast_to(x, (40, 4)), (4,)),
    "positions": (lambda x: spread(x, (40, 5, 4), x.dtype), lambda x: jnp.broadcast_to(x, (40, 5, 4)), (5, 4)),
    "gated": (
        lambda x: gated(ACTIVATIONS["gelu"], x),
        lambda x: ACTIVATIONS["gelu"](x[:, :, 0]) * x[:, :, 1],
        (3, 5, 2, 4),
    ),
    "cross entropy": (lambda x: cross_entropy(x, jnp.asarray(IDS), WEIGHTS)[0].value, plainly, (3, 7, 11)),
}


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, dtype: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch of each platform runs here, and is compared with autodiff in float32."""

    def on_platform(*arguments: Any, default: Any, **branches: Any) -> Any:
        return branches.get(platform, default)(*arguments)

    monkeypatch.setattr(jax.lax, "platform_dependent", on_platform)
    own, plain, shape = CASES[name]
    x = jnp.asarray(RANDOM.normal(size=shape), dtype)
    value, backward = jax.vjp(own, x)
    wanted, wanted_backward = jax.vjp(plain, x.astype("float32"))
    gradient = jnp.asarray(RANDOM.normal(size=value.shape), value.dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == "float32" else {"rtol": 0.02, "atol": 0.02}
    np.testing.assert_allclose(np.float32(value), wanted, **tolerance)
    (found,), (wanted,) = backward(gradient), wanted_backward(gradient.astype("float32"))
    assert found.dtype == dtype
    np.testing.assert_allclose(np.float32(found), wanted, **tolerance)


def test_a_logit_far_above_the_others_has_a_finite_gradient() -> None:
    logits = jnp.asarray([[0.0, 1e4, -1e4], [3e38, 0.0, 0.0]])
    labels = jnp.asarray([0, 0])
    gradient = jax.grad(lambda x: cross_entropy(x, labels, jnp.ones(2))[0].value)(logits)
    np.testing.assert_allclose(gradient, [[-1, 1, 0], [0, 0, 0]])
