"""Sums of gradients in a fixed order are the sums of a scatter, and no gradient on a GPU is a scatter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import fixed_order, gradients
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig, make_mesh

IDS = {  # the ids of 500 tokens, in a table of 2,000 rows
    "few": lambda random: random.zipf(1.3, 500) % 2000,
    "one": lambda random: np.full(500, 7),
    "two that fill blocks": lambda random: np.repeat([3, 1999], [256, 244]),
    "all unlike": lambda random: random.permutation(2000)[:500],
    "the last row": lambda random: np.full(500, 1999),
    "outside": lambda random: np.where(np.arange(500) % 3, 2000 + np.arange(500), 5),  # of no row
}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "platform", lambda: "gpu")


@pytest.mark.parametrize("size", [2000, 1000])  # sorted, and as one product
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", IDS)
def test_rows_are_added_as_a_scatter_adds_them(name: str, dtype: str, size: int) -> None:
    random = np.random.default_rng(0)
    ids = IDS[name](random)
    ids = np.where(ids < 2000, ids % size, ids).reshape(5, 100)
    gradient = jnp.asarray(random.normal(size=(5, 100, 24)), dtype)
    expected = np.zeros((size, 24))
    for id_, row in zip(ids.reshape(-1), np.float64(gradient).reshape(-1, 24), strict=True):
        if id_ < size:
            expected[id_] += row
    found = fixed_order.rows_added(jnp.asarray(ids), gradient, size, jnp.float32)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("devices", [MeshConfig(data=8), MeshConfig(data=2, fsdp=2, tensor=2)])
@pytest.mark.parametrize("manual", [(), ("data", "fsdp", "tensor")])
def test_a_look_up_of_rows_on_several_devices(devices: MeshConfig, manual: tuple[str, ...], on_gpu: None) -> None:
    """By the partitioner, and within a step that is manual over all axes, whose caller adds up."""
    random, mesh = np.random.default_rng(1), make_mesh(devices)
    ids = jnp.asarray(random.zipf(1.3, (16, 40)) % 2000)
    table, gradient = (jnp.asarray(random.normal(size=shape), "float32") for shape in ((2000, 8), (16, 40, 8)))
    expected = jnp.zeros_like(table).at[ids].add(gradient)

    def of_table(table: Any, ids: Any, gradient: Any) -> Any:
        return jax.vjp(lambda t: gradients.look_up(t, ids, "float32"), table)[1](gradient)[0]

    def on_one(*arrays: Any) -> Any:
        return jax.lax.psum(of_table(*arrays), meshes.ROWS)

    rows = jax.P(meshes.ROWS)
    whole = jax.shard_map(on_one, mesh=mesh, in_specs=(jax.P(), rows, rows), out_specs=jax.P(), check_vma=False)
    with meshes.activations(mesh):
        found = jax.jit(whole if manual else of_table)(
            table, *meshes.to_devices({"i": ids, "g": gradient}, mesh).values()
        )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
