"""On a CPU a bfloat16 model has bfloat16 products and float32 activations, and learns what a float32 model learns."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.model import fresh_params
from bert_jax.models.products import rounded_product
from bert_jax.training.mesh import MeshConfig, activations, make_mesh
from tests.models.helpers import pretraining, random_batch, tiny
from tests.models.test_precision import equations


def rounded(x: Any) -> np.ndarray:
    return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)


@pytest.mark.parametrize("rows", [64, 7])
@pytest.mark.parametrize("by_rows", [False, True])
def test_a_product_and_its_gradient_have_rounded_factors(rows: int, by_rows: bool) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = jax.random.normal(keys[0], (rows, 24)), jax.random.normal(keys[1], (24, 40))
    gradient = jax.random.normal(keys[2], (rows, 40))
    out, backward = jax.vjp(lambda x, y: rounded_product(x, y, jnp.bfloat16, by_rows), x, y.T if by_rows else y)
    of_x, of_y = backward(gradient)
    a, b, g = rounded(x), rounded(y), rounded(gradient)
    of_y = of_y.T if by_rows else of_y
    for found, true in ((out, a @ b), (of_x, g @ b.T), (of_y, a.T @ g)):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, true, atol=2e-5)


def test_a_bfloat16_model_on_a_cpu() -> None:
    wide, narrow = (pretraining(tiny(num_layers=1, dtype=dtype)) for dtype in ("float32", "bfloat16"))
    params, batch = fresh_params(tiny(num_layers=1)), random_batch()

    def loss(model: Any, params: Any) -> jax.Array:
        outputs = model.apply({"params": params}, batch)
        return sum(jnp.mean(jnp.square(x.astype(jnp.float32))) for x in outputs.values())

    with activations(make_mesh(MeshConfig(), jax.devices("cpu")[:1])):
        jaxpr = jax.make_jaxpr(jax.grad(lambda p: loss(narrow, p)))(params)
        found, true = (jax.jit(jax.value_and_grad(lambda p, m=m: loss(m, p)))(params) for m in (narrow, wide))
    made = [e for e in equations(jaxpr.jaxpr) for v in e.outvars if v.aval.dtype == jnp.bfloat16]
    assert {e.primitive.name for e in made} <= {"convert_element_type", "transpose", "reshape", "optimization_barrier"}
    products = [e for e in equations(jaxpr.jaxpr) if e.primitive.name == "dot_general"]
    assert sum(e.invars[0].aval.dtype == jnp.bfloat16 for e in products) > len(products) / 2
    np.testing.assert_allclose(found[0], true[0], rtol=1e-2)
    norms = [np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(g))) for g in (found[1], true[1])]
    np.testing.assert_allclose(norms[0], norms[1], rtol=3e-2)
    assert norms[0] != norms[1]
