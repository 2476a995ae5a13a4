"""Attention kernels for TPUs and cuDNN: equal to plain attention, on one device and on several."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

from bert_jax.models import attention
from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels import choice, cudnn, rows, splash
from bert_jax.models.kernels.base import KEPT
from bert_jax.models.kernels.plain import plain
from bert_jax.models.masks import Visible
from bert_jax.models.transformer import REMAT_POLICIES
from bert_jax.training.mesh import MeshConfig, activations, make_mesh
from tests.models.attention_cases import (
    HEADS,
    LENGTH,
    WIDTH,
    arrays,
    assert_close,
    directly,
    packed,
    padded,
    real,
    results,
)

CASES = {
    "padded, causal, dropout, wide heads": (padded, {"causal": True}, 0.1, jnp.float32, 128),
    "packed": (packed, {}, 0.0, jnp.float32, WIDTH),
    "packed, dropout, bfloat16": (packed, {}, 0.1, jnp.bfloat16, WIDTH),
}


def test_rematerialisation_keeps_what_the_kernel_computed(capsys: pytest.CaptureFixture[str]) -> None:
    """With "dots" the kernel's forward does not run again, and nothing of the size of the scores is kept."""
    attend, inputs = directly(rows, packed(2), 0.1, RowRng.create(0, 3, jnp.arange(2))), arrays(2)[:3]
    kept = {}
    for name, policy in REMAT_POLICIES.items():
        print_saved_residuals(jax.checkpoint(attend, policy=policy), *inputs)
        kept[name] = capsys.readouterr().out
    assert all(name in kept["dots"] for name in KEPT)
    assert "named" not in kept["full"]
    assert not any(f"{LENGTH},{LENGTH}" in residuals for residuals in kept.values())


@pytest.mark.parametrize("name", CASES)
def test_rows_are_plain_attention(name: str) -> None:
    """One wrong dropout bit would change an output by far more than the tolerance of float32 allows."""
    make, rules, rate, dtype, width = CASES[name]
    visible, inputs = make(2, **rules), arrays(2, dtype, width=width)
    rng = RowRng.create(3, 17, jnp.arange(2) + 40)
    expected = results(lambda q, k, v: plain((q, k, v), visible, rate, rng), inputs, visible)
    found = results(directly(rows, visible, rate, rng), inputs, visible)
    assert_close(found, expected, 2e-6 if dtype == jnp.float32 else 2e-2)


def test_other_bits_would_be_seen() -> None:
    visible, inputs = padded(2), arrays(2)
    one, other = (plain(tuple(inputs[:3]), visible, 0.1, RowRng.create(3, step, jnp.arange(2))) for step in (17, 18))
    assert np.abs(one - other).max() > 1e-2 * np.abs(other).max()


@pytest.mark.parametrize(("causal", "dtype", "width"), [(False, jnp.float32, 64), (True, jnp.bfloat16, 32)])
def test_splash_is_plain_attention(causal: bool, dtype: Any, width: int) -> None:
    for visible in (padded(2, causal=causal), packed(2, causal=causal)):
        inputs = arrays(2, dtype, width=width)
        expected = results(lambda *qkv, visible=visible: plain(qkv, visible, 0.0, None), inputs, visible)
        assert_close(
            results(directly(splash, visible), inputs, visible), expected, 2e-6 if dtype == jnp.float32 else 2e-2
        )


def test_splash_stays_finite_in_a_row_of_padding() -> None:
    *inputs, gradient = arrays(2)

    @jax.jit
    def computed(inputs: Any) -> Any:
        out, backward = jax.vjp(directly(splash, Visible(jnp.zeros((2, LENGTH), jnp.int32))), *inputs)
        return out, *backward(gradient)

    assert all(np.isfinite(x).all() for x in computed(inputs))


def test_rematerialisation_keeps_what_splash_computed(capsys: pytest.CaptureFixture[str]) -> None:
    """The output and the logarithms of the denominators, with "dots"."""
    attend, inputs = directly(splash, packed(2)), arrays(2)[:3]
    kept = {}
    for name, policy in REMAT_POLICIES.items():
        print_saved_residuals(jax.checkpoint(attend, policy=policy), *inputs)
        kept[name] = capsys.readouterr().out
    computed = [f"f32[2,{HEADS},{LENGTH}{size}] output of " for size in ("", f",{WIDTH}")]
    assert all(text in kept["dots"] for text in computed)
    assert not any(text in kept["full"] for text in computed)
    assert f"{LENGTH},{LENGTH}" not in kept["dots"]


@pytest.mark.parametrize("causal", [False, True])
def test_what_cudnn_is_asked_for_is_plain_attention(causal: bool, monkeypatch: Any) -> None:
    """jax computes the same call without cuDNN, which only a GPU has."""
    asked = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *qkv, implementation, **options: asked(*qkv, **options))
    visible, inputs = padded(2, causal=causal), tuple(arrays(2)[:3])
    found = directly(cudnn, visible)(*inputs)
    expected = plain(inputs, visible, 0.0, None)
    assert_close([found * real(visible)], [expected * real(visible)], 2e-6)


@pytest.mark.parametrize(
    ("name", "manual"),
    [("rows", ()), ("rows", ("data",)), ("rows", ("data", "fsdp", "tensor")), ("flash", ()), ("splash", ())],
)
def test_under_a_mesh_the_bits_are_those_of_the_whole_array(name: str, manual: Any, monkeypatch: Any) -> None:
    """Rows over data, heads over tensor: within jit, and within a step that is manual over some axes or over all."""
    visible, inputs, mesh = packed(2), arrays(2, heads=4), make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])
    rows_of_batch = jnp.arange(2, dtype=jnp.uint32)
    called, kernel = [], choice.find(name)

    def interpreted(factors: Any, *rest: Any, **options: Any) -> jax.Array:
        called.append(factors[0].shape)
        return computed(factors, *rest, **options)

    computed = kernel.attend
    monkeypatch.setattr(kernel, "attend", interpreted)
    monkeypatch.setattr(choice, "choose", lambda wanted, case: {"auto": name}[wanted])
    rate = 0.0 if name == "splash" else 0.1

    def attend(q: Any, k: Any, v: Any, ids: Any, rows: Any) -> jax.Array:
        return attention.attend((q, k, v), Visible(ids, ids), rate, RowRng.create(3, 17, rows))

    with activations(mesh):
        whole = attend
        if manual:
            by_row = jax.P("data")
            split = jax.P("data", None, "tensor" if "tensor" in manual else None)
            specs = (split, split, split, by_row, by_row)
            whole = jax.shard_map(
                attend, mesh=mesh, axis_names=set(manual), in_specs=specs, out_specs=split, check_vma=False
            )
        run = jax.jit(lambda *qkv: whole(*qkv, visible.sequence_ids, rows_of_batch))
        found = [run(*inputs[:3]) * real(visible)] if manual else results(run, inputs, visible)
    assert set(called) == {(1, LENGTH, 2, WIDTH)}
    rng = RowRng.create(3, 17, rows_of_batch)
    expected = results(lambda q, k, v: plain((q, k, v), visible, rate, rng), inputs, visible)
    assert_close(found, expected[: len(found)], 2e-6)


def test_what_a_mesh_does_not_divide_is_plain(monkeypatch: Any) -> None:
    monkeypatch.setattr(choice, "choose", lambda wanted, case: pytest.fail(f"{wanted}: {case}"))
    inputs = tuple(arrays(1)[:3])
    expected = plain(inputs, padded(1), 0.0, None)
    assert np.array_equal(attention.attend(inputs, padded(1), 0.1, None), expected)  # no mesh is placed
    with activations(make_mesh(MeshConfig(data=2), jax.devices()[:2])):
        assert np.array_equal(attention.attend(inputs, padded(1), 0.1, None), expected)
