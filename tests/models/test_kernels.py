"""Attention kernels: equal to plain attention where they run, chosen where they can run, refused where they cannot."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

from bert_jax.errors import UserError
from bert_jax.models import attention
from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels import trial
from bert_jax.models.kernels.choice import Case, check, choose
from bert_jax.models.kernels.flash import flash
from bert_jax.models.kernels.plain import SITE, plain
from bert_jax.models.kernels.row_attention import KEPT, rows
from bert_jax.models.kernels.splash import splash
from bert_jax.models.masks import Visible
from bert_jax.models.transformer import REMAT_POLICIES
from bert_jax.training.mesh import MeshConfig, activations, make_mesh

LENGTH, HEADS, WIDTH = 384, 2, 64  # several chunks of queries and blocks of keys
INTERPRETED = functools.partial(rows, interpret=True)
FLASH = functools.partial(flash, interpret=True)
SPLASH = functools.partial(splash, interpret=True)


def arrays(batch: int, dtype: Any = jnp.float32, heads: int = HEADS, width: int = WIDTH) -> list[jax.Array]:
    """Query, key, value and the gradient of the output."""
    random = np.random.default_rng(batch + heads)
    return [jnp.asarray(random.normal(size=(batch, LENGTH, heads, width)), dtype) for _ in range(4)]


def padded(batch: int, **rules: Any) -> Visible:
    lengths = np.linspace(LENGTH, LENGTH // 2 + 1, batch).astype(int)
    return Visible(jnp.asarray(np.arange(LENGTH) < lengths[:, None], jnp.int32), **rules)


def packed(batch: int, **rules: Any) -> Visible:
    """Rows of three sequences and, but for the first row, padding."""
    place = np.arange(LENGTH)[None]
    ends = np.arange(batch)[:, None] * 7
    ids = 1 + (place >= 60 + ends).astype(int) + (place >= 190 - ends)
    ids = np.where((place >= 240) & (ends > 0), 0, ids)
    return Visible(jnp.asarray(ids > 0, jnp.int32), jnp.asarray(ids, jnp.int32), **rules)


def real(visible: Visible) -> jax.Array:
    """[B, L, 1, 1] 1 where an output has a meaning."""
    return (visible.ids()[1] > 0)[:, :, None, None].astype(jnp.float32)


def directly(visible: Visible, rate: float, rng: RowRng, kernel: Any = INTERPRETED) -> Any:
    keys = rng.site(SITE).row_keys()
    local = functools.partial(kernel, rate=rate, causal=visible.causal)
    return lambda q, k, v: local((q, k, v), visible.ids(), (keys, jnp.zeros(1, jnp.int32)))


def splashed(visible: Visible) -> Any:
    return lambda q, k, v: SPLASH((q, k, v), visible.ids(), None, causal=visible.causal)


def results(function: Any, inputs: list[jax.Array], visible: Visible) -> list[jax.Array]:
    """The output where it has a meaning, and the gradients of query, key and value."""
    *inputs, gradient = inputs
    mask = real(visible).astype(gradient.dtype)
    out, backward = jax.vjp(function, *inputs)
    return [out * mask, *backward(gradient * mask)]


def assert_close(found: list[jax.Array], expected: list[jax.Array], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


CASES = {
    "padded, causal, dropout, wide heads": (padded, {"causal": True}, 0.1, jnp.float32, 128),
    "packed": (packed, {}, 0.0, jnp.float32, WIDTH),
    "packed, dropout, bfloat16": (packed, {}, 0.1, jnp.bfloat16, WIDTH),
}


def test_rematerialisation_keeps_what_the_kernel_computed(capsys: pytest.CaptureFixture[str]) -> None:
    """With "dots" the kernel's forward does not run again, and nothing of the size of the scores is kept."""
    attend, inputs = directly(packed(2), 0.1, RowRng.create(0, 3, jnp.arange(2))), arrays(2)[:3]
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
    found = results(directly(visible, rate, rng), inputs, visible)
    assert_close(found, expected, 2e-6 if dtype == jnp.float32 else 2e-2)


FLASH_CASES = {
    "packed, dropout, bfloat16": CASES["packed, dropout, bfloat16"],
    "packed, window": (packed, {"window": 20}, 0.1, jnp.float32, 32),
    "padded, causal, window, rows that no block divides": (
        padded,
        {"window": 70, "causal": True},
        0.1,
        jnp.float32,
        32,
    ),
}


@pytest.mark.parametrize("name", FLASH_CASES)
def test_flash_is_plain_attention(name: str) -> None:
    make, rules, rate, dtype, width = FLASH_CASES[name]
    short = 300 if "divides" in name else LENGTH
    visible, inputs = jax.tree.map(lambda x: x[:, :short], (make(2, **rules), arrays(2, dtype, width=width)))
    rng, kernel = RowRng.create(3, 17, jnp.arange(2) + 40), functools.partial(FLASH, window=visible.window)
    expected = results(lambda q, k, v: plain((q, k, v), visible, rate, rng), inputs, visible)
    found = results(directly(visible, rate, rng, kernel), inputs, visible)
    assert_close(found, expected, 2e-6 if dtype == jnp.float32 else 2e-2)


@pytest.mark.parametrize(("causal", "dtype", "width"), [(False, jnp.float32, 64), (True, jnp.bfloat16, 32)])
def test_splash_is_plain_attention(causal: bool, dtype: Any, width: int) -> None:
    for visible in (padded(2, causal=causal), packed(2, causal=causal)):
        inputs = arrays(2, dtype, width=width)
        expected = results(lambda *qkv, visible=visible: plain(qkv, visible, 0.0, None), inputs, visible)
        assert_close(results(splashed(visible), inputs, visible), expected, 2e-6 if dtype == jnp.float32 else 2e-2)


def test_splash_stays_finite_in_a_row_of_padding() -> None:
    *inputs, gradient = arrays(2)
    out, backward = jax.vjp(splashed(Visible(jnp.zeros((2, LENGTH), jnp.int32))), *inputs)
    assert all(jnp.isfinite(x).all() for x in (out, *backward(gradient)))


def test_rematerialisation_keeps_what_splash_computed(capsys: pytest.CaptureFixture[str]) -> None:
    """The output and the logarithms of the denominators, with "dots"."""
    attend, inputs = splashed(packed(2)), arrays(2)[:3]
    kept = {}
    for name, policy in REMAT_POLICIES.items():
        print_saved_residuals(jax.checkpoint(attend, policy=policy), *inputs)
        kept[name] = capsys.readouterr().out
    computed = [f"f32[2,{HEADS},{LENGTH}{size}] output of " for size in ("", f",{WIDTH}")]
    assert all(text in kept["dots"] for text in computed)
    assert not any(text in kept["full"] for text in computed)
    assert f"{LENGTH},{LENGTH}" not in kept["dots"]


def test_flash_stays_finite_with_padding_within_a_row() -> None:
    ids = np.ones((1, LENGTH), int)
    ids[0, 100:110] = ids[0, 120:270] = 0
    visible, inputs = Visible(jnp.asarray(ids), jnp.asarray(ids)), arrays(1)
    rng = RowRng.create(0, 0, jnp.arange(1))
    expected = results(lambda q, k, v: plain((q, k, v), visible, 0.0, rng), inputs, visible)
    assert_close(results(directly(visible, 0.0, rng, FLASH), inputs, visible), expected, 2e-6)


def test_flash_reads_no_block_that_is_not_seen() -> None:
    """NaN in what no query sees, of whole blocks: of another sequence, beyond the window, of the padding."""
    place = np.arange(1024)[None]
    ids = jnp.asarray(np.where(place >= 896, 0, 1 + place // 384))
    keys = (jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.int32))
    query = jnp.ones((1, 1024, 1, 32))
    for window, unseen in ((None, place >= 384), (64, place >= 192)):
        poisoned = jnp.where(jnp.asarray(unseen)[:, :, None, None], jnp.nan, query)

        def attend(query: Any, poisoned: Any = poisoned, window: Any = window) -> jax.Array:
            return FLASH((query, poisoned, poisoned), (ids, ids), keys, rate=0.0, window=window)[:, :128]

        out, backward = jax.vjp(attend, query)
        assert jnp.allclose(out, 1.0)
        assert jnp.abs(backward(jnp.ones_like(out))[0][:, :128]).max() < 1e-6
        assert jnp.isnan(attend(query, jnp.full_like(query, jnp.nan))).any()


def test_flash_compiles_for_a_gpu() -> None:
    """Up to the code that is handed to the GPU's compiler, which is not here."""
    shapes = [jax.ShapeDtypeStruct((2, 512, 4, 64), jnp.bfloat16)] * 3
    ids, keys, head = (jax.ShapeDtypeStruct(*x) for x in (((2, 512), "int32"), ((2,), "uint32"), ((1,), "int32")))

    def loss(factors: Any, ids: Any, keys: Any, head: Any) -> jax.Array:
        return flash(factors, (ids, ids), (keys, head), rate=0.1, window=64).astype(jnp.float32).sum()

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


def test_other_bits_would_be_seen() -> None:
    visible, inputs = padded(2), arrays(2)
    one, other = (plain(tuple(inputs[:3]), visible, 0.1, RowRng.create(3, step, jnp.arange(2))) for step in (17, 18))
    assert np.abs(one - other).max() > 1e-2 * np.abs(other).max()


@pytest.mark.parametrize(
    ("name", "manual"),
    [("rows", ()), ("rows", ("data",)), ("rows", ("data", "fsdp", "tensor")), ("flash", ()), ("splash", ())],
)
def test_under_a_mesh_the_bits_are_those_of_the_whole_array(name: str, manual: Any, monkeypatch: Any) -> None:
    """Rows over data, heads over tensor: within jit, and within a step that is manual over some axes or over all."""
    visible, inputs, mesh = packed(2), arrays(2, heads=4), make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])
    rows_of_batch = jnp.arange(2, dtype=jnp.uint32)
    called = []

    def interpreted(factors: Any, *rest: Any, **options: Any) -> jax.Array:
        called.append(factors[0].shape)
        return {"rows": INTERPRETED, "flash": FLASH, "splash": SPLASH}[name](factors, *rest, **options)

    monkeypatch.setattr(attention, name, interpreted)
    monkeypatch.setattr(attention, "choose", lambda kernel, case: {"auto": name}[kernel])
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
    monkeypatch.setattr(attention, "choose", lambda kernel, case: pytest.fail(f"{kernel}: {case}"))
    inputs = tuple(arrays(1)[:3])
    expected = plain(inputs, padded(1), 0.0, None)
    assert np.array_equal(attention.attend(inputs, padded(1), 0.1, None), expected)  # no mesh is placed
    with activations(make_mesh(MeshConfig(data=2), jax.devices()[:2])):
        assert np.array_equal(attention.attend(inputs, padded(1), 0.1, None), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_what_cudnn_is_asked_for_is_plain_attention(causal: bool, monkeypatch: Any) -> None:
    """jax computes the same call without cuDNN, which only a GPU has."""
    asked = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *qkv, implementation, **options: asked(*qkv, **options))
    visible, inputs = padded(2, causal=causal), tuple(arrays(2)[:3])
    found = attention.cudnn(inputs, visible.ids(), None, causal=causal)
    expected = plain(inputs, visible, 0.0, None)
    assert_close([found * real(visible)], [expected * real(visible)], 2e-6)


LARGE = Case("tpu", length=512, num_heads=16, head_dim=64, dtype="bfloat16", rate=0.1, packed=True)
GPU = dataclasses.replace(LARGE, platform="gpu", rate=0.0, packed=False)


def test_auto_takes_what_can_compute_it() -> None:
    def chosen(case: Case, **changes: Any) -> str:
        return choose("auto", dataclasses.replace(case, **changes))

    assert chosen(LARGE) == chosen(LARGE, rate=0.0) == chosen(LARGE, length=256) == "rows"
    assert chosen(LARGE, length=128) == chosen(LARGE, length=320) == chosen(LARGE, num_heads=3) == "plain"
    assert chosen(LARGE, length=4096) == chosen(LARGE, head_dim=48) == chosen(LARGE, dtype="float64") == "plain"
    long = dataclasses.replace(LARGE, rate=0.0, length=8192)
    assert chosen(long) == chosen(long, dtype="float32", length=2048) == chosen(long, num_heads=3) == "splash"
    assert chosen(long, length=2048) == "rows"
    assert chosen(long, rate=0.1) == chosen(long, window=64) == chosen(long, length=8000) == "plain"
    assert choose("splash", dataclasses.replace(long, length=256)) == "splash"
    assert (chosen(GPU), choose("cudnn", GPU)) == ("flash", "cudnn")
    assert chosen(GPU, rate=0.1) == chosen(GPU, packed=True) == chosen(GPU, length=8000, window=64) == "flash"
    assert (
        chosen(GPU, dtype="float32")
        == chosen(GPU, head_dim=48)
        == chosen(GPU, length=64)
        == chosen(LARGE, platform="cpu")
        == "plain"
    )
    assert choose("rows", dataclasses.replace(LARGE, length=128)) == "rows"  # asked for: also where it is not faster
    assert choose("rows", GPU) == choose("plain", LARGE) == "plain"
    assert chosen(LARGE, window=64) == choose("cudnn", dataclasses.replace(GPU, window=64)) == "plain"


@pytest.mark.parametrize(
    ("wanted", "case", "changes", "message"),
    [
        ("rows", LARGE, {"platform": "cpu"}, "'rows', which runs on TPUs, and the devices are cpu; here 'plain' can"),
        ("rows", LARGE, {"head_dim": 48}, "needs heads of 32, 64, 128 entries, and these have 48"),
        ("rows", LARGE, {"length": 320}, "a multiple of 128 up to 2,048 in bfloat16, and they have 320 positions"),
        ("rows", LARGE, {"length": 4096}, "up to 2,048 in bfloat16, and they have 4,096 positions"),
        ("rows", LARGE, {"num_heads": 3}, "takes 2 heads of 64 entries at a time, and a device has 3"),
        ("rows", LARGE, {"dtype": "float64"}, "computes in bfloat16 or float32, and config.model.dtype is float64"),
        (
            "rows",
            GPU,
            {},
            "runs on TPUs, and the devices are gpu; here 'plain' and 'flash' and 'cudnn' can run: choose",
        ),
        (
            "rows",
            LARGE,
            {"window": 64},
            "has no window, and layers of the model see 64 positions to each side; here 'plain'",
        ),
        (
            "splash",
            LARGE,
            {},
            "has no dropout, and config.model.attention_dropout_rate is 0.1; here 'plain' and 'rows'",
        ),
        ("splash", GPU, {}, "runs on TPUs, and the devices are gpu; here 'plain' and 'flash' and 'cudnn' can run"),
        (
            "splash",
            LARGE,
            {"rate": 0.0, "length": 8000},
            "needs rows whose length is a multiple of 128, and they have 8,000 positions; here 'plain' can run",
        ),
        ("splash", LARGE, {"rate": 0.0, "head_dim": 48}, "needs heads of 32, 64, 128 entries, and these have 48"),
        ("splash", LARGE, {"rate": 0.0, "num_heads": 1.5}, "takes whole heads, and a device has 1.5"),
        (
            "splash",
            LARGE,
            {"rate": 0.0, "dtype": "float64"},
            "computes in bfloat16 or float32, and config.model.dtype is",
        ),
        ("splash", LARGE, {"rate": 0.0, "window": 64}, "has no window, and layers of the model see 64 positions to"),
        (
            "flash",
            LARGE,
            {},
            "runs on NVIDIA GPUs, and the devices are tpu; here 'plain' and 'rows' can run: choose one",
        ),
        (
            "flash",
            GPU,
            {"dtype": "float32"},
            "computes in bfloat16, and config.model.dtype is float32; here 'plain' can",
        ),
        ("flash", GPU, {"head_dim": 48}, "needs heads of 32, 64, 128 entries, and these have 48; here 'plain' and"),
        ("flash", GPU, {"num_heads": 1.5}, "takes whole heads, and a device has 1.5; here 'plain' can run"),
        ("cudnn", GPU, {"window": 64}, "has no window, and layers of the model see 64 positions to each side; here"),
        ("cudnn", LARGE, {}, "runs on NVIDIA GPUs, and the devices are tpu; here 'plain' and 'rows' can run"),
        ("cudnn", GPU, {"rate": 0.1}, "no dropout like ours, and config.model.attention_dropout_rate is 0.1"),
        ("cudnn", GPU, {"packed": True}, "needs one sequence in a row, and rows are packed (config.objective.packing)"),
        ("cudnn", GPU, {"dtype": "float32"}, "computes in bfloat16, and config.model.dtype is float32"),
        ("cudnn", GPU, {"head_dim": 20}, "a multiple of 8 up to 128, and these have 20 entries"),
        ("cudnn", GPU, {"num_heads": 1.5}, "takes whole heads, and a device has 1.5"),
    ],
)
def test_a_kernel_that_cannot_run_is_refused(wanted: Any, case: Case, changes: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        check(wanted, [dataclasses.replace(case, **changes)])
    said = str(refused.value)
    assert said.startswith(f"config.model.attention_kernel is {wanted!r}, which ")
    assert message in said
    assert "\n" not in said
    assert "'plain'" in said
    check("auto", [dataclasses.replace(case, **changes)])


def test_every_phase_is_checked() -> None:
    short, odd = (dataclasses.replace(LARGE, length=length) for length in (128, 320))
    check("rows", [short, LARGE])
    with pytest.raises(UserError, match="have 320 positions; here 'plain' can run"):
        check("rows", [short, LARGE, odd])


def test_a_kernel_that_does_not_compile_on_a_gpu_is_plain(monkeypatch: Any, capsys: Any) -> None:
    """One line says so, for each size of heads; the trial does not see the trace and the mesh around it."""
    visible, inputs, mesh = packed(2), arrays(2), make_mesh(MeshConfig(), jax.devices()[:1])
    tried = []

    def broken(factors: Any, ids: Any, dropout_keys: Any, **options: Any) -> jax.Array:
        tried.append(factors[0].shape)
        assert not jax.sharding.get_abstract_mesh().manual_axes
        raise RuntimeError("Triton support is only enabled for Ampere GPUs\nand more")

    monkeypatch.setattr(attention, "flash", broken)
    monkeypatch.setattr(attention, "choose", lambda kernel, case: "flash")
    monkeypatch.setattr(attention, "Case", lambda platform, *rest: Case("gpu", *rest))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(trial, "_tried", {})

    def attend(*qkv: Any) -> jax.Array:
        return attention.attend(qkv, visible, 0.1, RowRng.create(3, 17, jnp.arange(2)), "flash")

    with activations(mesh):
        by_row = jax.P(("data", "fsdp"))
        whole = jax.shard_map(attend, mesh=mesh, in_specs=by_row, out_specs=by_row, check_vma=False)
        found = [results(run, inputs, visible) for run in (jax.jit(whole), attend)]
    expected = results(lambda *qkv: plain(qkv, visible, 0.1, RowRng.create(3, 17, jnp.arange(2))), inputs, visible)
    for one in found:
        assert_close(one, expected, 2e-6)
    assert tried == [(1, 256, 2, WIDTH)]
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        f"warning: the attention kernel 'flash' does not compile for cpu with heads of {WIDTH} entries (Triton support "
        "is only enabled for Ampere GPUs): plain attention takes its place"
    )


def test_a_kernel_is_tried_where_it_is_to_run(monkeypatch: Any, capsys: Any) -> None:
    """Forward and backward, once; not for a GPU that is not here."""
    case = Case("gpu", length=512, num_heads=12, head_dim=64, dtype="bfloat16", rate=0.1)
    assert trial.compiles("flash", case, lambda *_: pytest.fail("no GPU is here"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(trial, "_tried", {})
    traced = []

    def kernel(factors: Any, ids: Any, dropout_keys: Any) -> jax.Array:
        traced.append(factors[0].dtype)
        return factors[0] * factors[1] + factors[2]

    assert trial.compiles("flash", case, kernel)
    assert trial.compiles("flash", dataclasses.replace(case, length=128, window=64, rate=0.0), kernel)
    assert traced == ["bfloat16"]
    assert not capsys.readouterr().err
