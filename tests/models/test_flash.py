"""The attention kernel for NVIDIA GPUs: equal to plain attention, reads what is seen alone, compiles."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels import flash
from bert_jax.models.kernels.base import Case
from bert_jax.models.kernels.plain import plain
from bert_jax.models.masks import Visible
from tests.models.attention_cases import LENGTH, WIDTH, arrays, assert_close, directly, packed, padded, results

CASES = {
    "packed, dropout, bfloat16": (packed, {}, 0.1, jnp.bfloat16, WIDTH),
    "packed, window": (packed, {"window": 20}, 0.1, jnp.float32, 32),
    "padded, causal, window, rows that no block divides": (
        padded,
        {"window": 70, "causal": True},
        0.1,
        jnp.float32,
        32,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_flash_is_plain_attention(name: str) -> None:
    make, rules, rate, dtype, width = CASES[name]
    short = 300 if "divides" in name else LENGTH
    visible, inputs = jax.tree.map(lambda x: x[:, :short], (make(2, **rules), arrays(2, dtype, width=width)))
    rng = RowRng.create(3, 17, jnp.arange(2) + 40)
    expected = results(lambda q, k, v: plain((q, k, v), visible, rate, rng), inputs, visible)
    found = results(directly(flash, visible, rate, rng), inputs, visible)
    assert_close(found, expected, 2e-6 if dtype == jnp.float32 else 2e-2)


def test_flash_stays_finite_with_padding_within_a_row() -> None:
    ids = np.ones((1, LENGTH), int)
    ids[0, 100:110] = ids[0, 120:270] = 0
    visible, inputs = Visible(jnp.asarray(ids), jnp.asarray(ids)), arrays(1)
    expected = results(lambda q, k, v: plain((q, k, v), visible, 0.0, None), inputs, visible)
    assert_close(results(directly(flash, visible), inputs, visible), expected, 2e-6)


def test_flash_reads_no_block_that_is_not_seen() -> None:
    """NaN in what no query sees, of whole blocks: of another sequence, beyond the window, of the padding."""
    place = np.arange(1024)[None]
    ids = jnp.asarray(np.where(place >= 896, 0, 1 + place // 384))
    query = jnp.ones((1, 1024, 1, 32))
    for window, unseen in ((None, place >= 384), (64, place >= 192)):
        poisoned = jnp.where(jnp.asarray(unseen)[:, :, None, None], jnp.nan, query)

        @jax.jit
        def attend(query: Any, keys: Any, window: Any = window) -> tuple[jax.Array, jax.Array]:
            """Return the outputs of the first 128 queries, and their gradient into the queries."""
            attention = directly(flash, Visible(ids, ids, window=window))
            out, backward = jax.vjp(lambda query: attention(query, keys, keys)[:, :128], query)
            return out, backward(jnp.ones_like(out))[0]

        out, gradient = attend(query, poisoned)
        np.testing.assert_allclose(out, 1.0, rtol=1e-5)
        assert np.abs(gradient[:, :128]).max() < 1e-6
        assert np.isnan(attend(query, jnp.full_like(query, jnp.nan))[0]).any()


def test_flash_compiles_for_a_gpu() -> None:
    """Up to the code that is handed to the GPU's compiler, which is not here."""
    case = Case("gpu", 512, 4, 64, "bfloat16", rate=0.1, window=64)
    shapes = [jax.ShapeDtypeStruct((2, 512, 4, 64), jnp.bfloat16)] * 3
    ids, keys, head = (jax.ShapeDtypeStruct(*x) for x in (((2, 512), "int32"), ((2,), "uint32"), ((1,), "int32")))

    def loss(factors: Any, ids: Any, keys: Any, head: Any) -> jax.Array:
        return flash.attend(factors, (ids, ids), (keys, head), case).astype(jnp.float32).sum()

    allowed = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
    traced = jax.export.export(jax.jit(jax.grad(loss)), platforms=["cuda"], disabled_checks=allowed)
    card = jax.sharding.AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=card)):
        program = traced(shapes, ids, keys, head).mlir_module()
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 3
    # What ``plan`` counts: 2, 3 and 4 products; of a row of 512, 256 or 192 keys or queries are near a block.
    products = [268_435_456, 402_653_184, 402_653_184]
    operations = [33 * 2 * 4 * 512 * near for near in (256, 256, 192)]
    assert sorted(map(int, re.findall(r'kernel_flops = "(\d+)"', program))) == products
    assert sorted(map(int, re.findall(r'kernel_elementwise = "(\d+)"', program))) == sorted(operations)
