"""Attention kernels compiled for TPUs that are not there: chosen, accepted by the compiler, counted by a plan."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

from bert_jax.models.attention import attend
from bert_jax.models.dropout import RowRng
from bert_jax.models.masks import Visible
from bert_jax.models.placement import placement
from bert_jax.planning import costs, hlo, topologies
from bert_jax.training.mesh import MeshConfig, activations, batch_sharding, make_mesh

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu (pip install 'jax[tpu]')"),
]
BATCH, HEADS = 8, 4  # on all devices together
TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")


def compiled(topology: str, length: int, *, width=64, rate=0.1, dtype="bfloat16", tensor=1, **rules) -> hlo.Computation:
    """Attention and its gradients for a topology of four chips."""
    mesh = make_mesh(MeshConfig(tensor=tensor), topologies.devices(topologies.parse(topology)))

    def run(q, k, v, ids, gradient):
        rng = RowRng.create(0, 0, jnp.arange(BATCH))
        out, backward = jax.vjp(lambda q, k, v: attend((q, k, v), Visible(ids, ids, **rules), rate, rng), q, k, v)
        return out, *backward(gradient)

    with activations(mesh):
        split = NamedSharding(mesh, placement.get().spec("batch", "length", "heads", "head_dim"))
        x = jax.ShapeDtypeStruct((BATCH, length, HEADS, width), dtype, sharding=split)
        ids = jax.ShapeDtypeStruct((BATCH, length), jnp.int32, sharding=batch_sharding(mesh))
        return hlo.parse(jax.jit(run).lower(x, x, x, ids, x).compile().as_text())


def kernels(program: hlo.Computation) -> list[costs.Cost]:
    """Return the cost of each kernel of a program."""
    return [costs.cost_of(one) for one in program.instructions if "tpu_custom_call" in one.attributes]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(
    ("length", "options"),
    [
        (256, {}),
        (512, {}),
        (512, {"rate": 0.0, "causal": True}),
        (512, {"tensor": 2}),
        (1024, {"dtype": "float32"}),
        (1024, {"width": 128}),
        (2048, {}),
        (2048, {"width": 32}),
    ],
)
def test_long_rows_are_computed_by_the_kernel(topology, length, options):
    forward, backward = kernels(compiled(topology, length, **options))
    width = options.get("width", 64)
    scores = BATCH * HEADS * length * length / 4
    dtype = "f32" if options.get("dtype") == "float32" else "bf16"
    # Lanes of other heads are multiplied too, by zero, but for one product forward and one backward.
    assert getattr(forward, dtype) == forward.products == 2 * scores * (128 + width)
    assert getattr(backward, dtype) == backward.products == 2 * scores * (4 * 128 + width)
    assert 0 < forward.elementwise < backward.elementwise


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"width": 128, "causal": True},
        {"dtype": "float32", "width": 128, "causal": True},
        {"width": 32, "tensor": 2},
    ],
)
def test_rows_of_8192_without_dropout_are_computed_by_splash(topology, options):
    forward, backward = kernels(compiled(topology, 8192, rate=0.0, **options))
    scores = BATCH * HEADS * 8192 * 8192 / 4 / (2 if options.get("causal") else 1)
    dtype = "f32" if options.get("dtype") == "float32" else "bf16"
    assert getattr(forward, dtype) == forward.products == 2 * 2 * scores * 128
    assert getattr(backward, dtype) == backward.products == 2 * 5 * scores * 128
    assert 0 < forward.elementwise < backward.elementwise


def test_short_rows_are_left_to_the_compiler():
    assert kernels(compiled("v5e:2x2", 128)) == []
