"""What computes attention: chosen where it can run, refused where it cannot, plain where it does not compile."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bert_jax.errors import UserError
from bert_jax.models import attention
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bert
from bert_jax.models.kernels import choice, flash, trial
from bert_jax.models.kernels.base import Case
from bert_jax.models.kernels.choice import check, choose
from bert_jax.models.kernels.plain import plain
from bert_jax.parts import catalogue
from bert_jax.training.mesh import MeshConfig, activations, make_mesh
from tests.models.attention_cases import WIDTH, arrays, assert_close, packed, results

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


def test_a_users_own_kernel_runs_where_it_is_named(monkeypatch: Any) -> None:
    text = """
import jax.numpy as jnp
WORTHWHILE = 1

def obstacle(case):
    return "has no window" if case.window else None

def attend(factors, ids, dropout_keys, case):
    return jnp.full_like(factors[2], case.length)
"""
    own = catalogue.OwnCode("/my/kernel.py", text.encode())
    for name in ("_trusted", "_names"):
        monkeypatch.setattr(catalogue, name, {})
    with pytest.raises(UserError, match="code of a user's own, kernel.py@"):
        bert.Config(64, attention_kernel=own.name)
    catalogue.trust(own)
    assert bert.Config(64, attention_kernel=own.name).attention_kernel == own.name
    assert "kernel" not in "".join(choice.names())
    assert choose("auto", dataclasses.replace(GPU, platform="cpu")) == "plain"
    with pytest.raises(UserError, match="attention_kernel is /my/kernel.py, which has no window; here 'plain' and"):
        check(own.name, [dataclasses.replace(GPU, window=64)])
    factors, visible = tuple(arrays(1)[:3]), packed(1)
    with activations(make_mesh(MeshConfig(), jax.devices()[:1])):
        assert (attention.attend(factors, visible, 0.0, None, own.name) == factors[0].shape[1]).all()
        narrow = visible.within(64)
        assert (attention.attend(factors, narrow, 0.0, None, own.name) == plain(factors, narrow, 0.0, None)).all()


def test_a_kernel_that_does_not_compile_on_a_gpu_is_plain(monkeypatch: Any, capsys: Any) -> None:
    """One line says so, for each size of heads; the trial does not see the trace and the mesh around it."""
    visible, inputs, mesh = packed(2), arrays(2), make_mesh(MeshConfig(), jax.devices()[:1])
    tried = []

    def broken(factors: Any, ids: Any, dropout_keys: Any, case: Any) -> jax.Array:
        tried.append(factors[0].shape)
        assert not jax.sharding.get_abstract_mesh().manual_axes
        raise RuntimeError("Triton support is only enabled for Ampere GPUs\nand more")

    monkeypatch.setattr(flash, "attend", broken)
    monkeypatch.setattr(choice, "choose", lambda wanted, case: wanted)
    monkeypatch.setattr(attention, "platform", lambda: "gpu")
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
    assert trial.compiles("flash", case, SimpleNamespace(attend=lambda *_: pytest.fail("no GPU is here")))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(trial, "_tried", {})
    traced = []

    def attend(factors: Any, ids: Any, dropout_keys: Any, case: Case) -> jax.Array:
        traced.append(factors[0].dtype)
        return factors[0] * factors[1] + factors[2]

    kernel = SimpleNamespace(attend=attend)
    assert trial.compiles("flash", case, kernel)
    assert trial.compiles("flash", dataclasses.replace(case, length=128, window=64, rate=0.0), kernel)
    assert traced == ["bfloat16"]
    assert not capsys.readouterr().err
