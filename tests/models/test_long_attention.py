"""Attention by parts: within a window and over long rows, equal to attention from all scores, and small."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from jax.sharding import NamedSharding

from bert_jax.errors import UserError
from bert_jax.losses.distillation import _distance_of_scores
from bert_jax.models.attention import attend
from bert_jax.models.dropout import RowRng
from bert_jax.models.kernels.base import OUTPUT
from bert_jax.models.kernels.plain import chunked, dense, form_of, local, plain
from bert_jax.models.masks import Visible
from bert_jax.models.placement import placement
from bert_jax.models.transformer import REMAT_POLICIES
from bert_jax.training.mesh import MeshConfig, activations, batch_sharding, make_mesh

BATCH, LENGTH, HEADS, WIDTH = 4, 200, 2, 8  # no multiple of a block
Form = Callable[..., jax.Array]


def small_chunks(*inputs: Any) -> jax.Array:
    return chunked(*inputs, size=64)


def arrays(length: int = LENGTH, dtype: Any = jnp.float32) -> list[jax.Array]:
    """Query, key, value and the gradient of the output."""
    random = np.random.default_rng(length)
    return [jnp.asarray(random.normal(size=(BATCH, length, HEADS, WIDTH)), dtype) for _ in range(4)]


def texts(length: int = LENGTH) -> np.ndarray:
    """Ids of rows of three texts and padding."""
    place, shift = np.arange(length)[None], 9 * np.arange(BATCH)[:, None]
    ids = 1 + (place >= 50 + shift) + (place >= 120 - shift)
    return np.where(place >= length - 1 - shift, 0, ids)


def visible(kind: str, **rules: Any) -> Visible:
    ids = jnp.asarray(texts(), jnp.int32)
    return Visible((ids > 0).astype(jnp.int32), ids if kind == "packed" else None, **rules)


def results(form: Form, inputs: list[jax.Array], seen: Visible, rate: float = 0.1) -> list[np.ndarray]:
    """The output and the gradients of query, key and value; outputs without a meaning are left out of all."""
    mask = (seen.ids()[1] > 0)[:, :, None, None]

    @jax.jit
    def run(*inputs: jax.Array) -> list[jax.Array]:
        *factors, gradient = inputs
        rng = RowRng.create(3, 17, jnp.arange(BATCH) + 40)
        out, backward = jax.vjp(lambda *factors: form(factors, seen, rate, rng), *factors)
        return [out * mask, *backward(gradient * mask)]

    return [np.asarray(x, np.float64) for x in run(*inputs)]


def distances(found: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    return [np.abs(one - other).max() / np.abs(other).max() for one, other in zip(found, expected, strict=True)]


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        ("packed", {"window": 7}),
        ("packed", {"window": 70, "causal": True}),
        ("padded", {"window": 64}),
        ("padded", {"causal": True}),
    ],
)
def test_each_form_is_attention_from_all_scores(kind: str, rules: Any) -> None:
    """With dropout: one wrong bit would change an output by far more."""
    forms = [small_chunks, local] if "window" in rules else [small_chunks]
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-12)):
        with jax.enable_x64(dtype == "float64"):
            inputs, seen = arrays(dtype=dtype), visible(kind, **rules)
            expected = results(dense, inputs, seen)
            for form in forms:
                assert max(distances(results(form, inputs, seen), expected)) < tolerance


def test_a_window_is_that_of_jax() -> None:
    """Which has it inclusive to both sides."""
    query, key, value, _ = arrays()
    found = dense((query, key, value), Visible(jnp.ones((BATCH, LENGTH)), window=5), 0.0, None)
    expected = jax.nn.dot_product_attention(query, key, value, local_window_size=5)
    narrower = jax.nn.dot_product_attention(query, key, value, local_window_size=4)
    assert np.abs(found - expected).max() < 1e-6 < 1e-2 < np.abs(found - narrower).max()


def test_a_packed_row_gives_what_its_texts_give_alone() -> None:
    """Each at the beginning of a row, so that it lies in other blocks."""
    factors, ids = [np.array(x) for x in arrays()[:3]], np.zeros((BATCH, LENGTH), np.int32)
    row = ids[0] = texts()[0]
    for text in (1, 2, 3):
        size = np.sum(row == text)
        ids[text, :size] = 1
        for x in factors:
            x[text, :size] = x[0, row == text]
    seen = Visible(jnp.asarray(ids), jnp.asarray(ids), window=7)
    out = jax.jit(lambda *factors: local(factors, seen, 0.0, None))(*factors)
    for text in (1, 2, 3):
        np.testing.assert_allclose(out[0, row == text], out[text, : np.sum(row == text)], atol=1e-6)


@pytest.mark.parametrize("form", [local, small_chunks])
def test_queries_that_see_nothing_do_no_harm(form: Form) -> None:
    """Whole rows of padding too: everything is finite, and what they give changes nothing for the others."""
    *factors, gradient = arrays()
    ids = jnp.asarray(texts(), jnp.int32).at[1].set(0)
    real = np.asarray(ids) > 0

    @jax.jit
    def run(gradient: jax.Array, *factors: jax.Array) -> Any:
        out, backward = jax.vjp(lambda *factors: form(factors, Visible(ids, ids, window=7), 0.0, None), *factors)
        return out, backward(gradient)

    (out, all_of_it), (_, of_real) = run(gradient, *factors), run(gradient * real[:, :, None, None], *factors)
    assert all(np.isfinite(x).all() for x in (out, *all_of_it))
    assert np.array_equal(all_of_it[0][real], of_real[0][real])  # that of the queries
    assert not any(np.abs(x[~real]).any() for x in of_real)


def test_gradients_of_keys_are_added_up_in_float32() -> None:
    """In bfloat16 a hundred small chunks are about as exact as one product."""
    inputs, seen = arrays(dtype=jnp.bfloat16), visible("padded")
    exact = results(dense, [x.astype(jnp.float32) for x in inputs], seen, 0.0)

    def errors(form: Form) -> np.ndarray:
        found = results(form, inputs, seen, 0.0)
        return np.array([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(found, exact, strict=True)])

    assert np.all(errors(lambda *inputs: chunked(*inputs, size=2)) < 1.3 * errors(dense))


def compiled(form: Form, length: int, mesh: Any = None, **rules: Any) -> Any:
    """``form`` forward and backward, with dropout, over packed rows."""

    def run(query: Any, key: Any, value: Any, gradient: Any, ids: Any) -> Any:
        rng = RowRng.create(3, 17, jnp.arange(BATCH) + 40)
        seen = Visible(ids, ids, **rules)
        out, backward = jax.vjp(lambda *factors: form(factors, seen, 0.1, rng), query, key, value)
        return out, *backward(gradient)

    shape, by_row, split = (BATCH, length, HEADS, WIDTH), None, None
    if mesh is not None:
        by_row = batch_sharding(mesh)
        split = NamedSharding(mesh, placement.get().spec("batch", "length", "heads", "head_dim"))  # type: ignore[union-attr]
    x, ids = (
        jax.ShapeDtypeStruct(*of, sharding=to)
        for of, to in [((shape, "float32"), split), ((shape[:2], "int32"), by_row)]
    )
    return jax.jit(run).lower(x, x, x, x, ids).compile()


@pytest.mark.parametrize("rules", [{"window": 16}, {}])
def test_memory_grows_with_the_length_alone(rules: Any) -> None:
    """All scores of rows of 8,192 positions would take 256 MiB for each head and row."""
    form = local if rules else plain
    short, long = (compiled(form, length, **rules).memory_analysis().temp_size_in_bytes for length in (2048, 8192))
    assert long < 4.4 * short < BATCH * HEADS * 4 * 2048**2 * 4


def test_no_scores_of_a_whole_row_are_held() -> None:
    """It holds for every choice: a kernel that cannot run, and a window that leaves out little."""
    x, ids = jnp.zeros((1, 2048, 1, 8)), jnp.ones((1, 2048), jnp.int32)
    for kernel, window in (("auto", None), ("plain", 1024), ("rows", 64)):
        seen = Visible(ids, ids, window=window)
        traced = jax.make_jaxpr(
            jax.grad(lambda x, seen=seen, kernel=kernel: attend((x, x, x), seen, 0.1, None, kernel).sum())
        )(x)
        shapes = re.findall(r"\w+\[([\d,]+)\]", str(traced))
        assert shapes
        assert not [shape for shape in shapes if shape.split(",").count("2048") > 1]
    with pytest.raises(AssertionError, match="2048 positions at once"):
        dense((x, x, x), seen, 0.0, None)


@pytest.mark.parametrize("form", [local, small_chunks])
def test_a_mesh_divides_rows_and_heads(form: Form) -> None:
    """No device asks another for anything, and the bits of dropout are those of the whole array."""
    rules = {"window": 7}
    *factors, gradient = arrays()
    ids = jnp.asarray(texts(), jnp.int32)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with activations(mesh):
        program = compiled(form, LENGTH, mesh, **rules)
        inputs = [
            jax.device_put(x, to) for x, to in zip((*factors, gradient, ids), program.input_shardings[0], strict=True)
        ]
        found = program(*inputs)
    text = program.as_text()
    assert not re.findall(r"all-gather|all-reduce|all-to-all|collective|reduce-scatter", text)
    assert {x.sharding.shard_shape(x.shape) for x in found} == {(1, LENGTH, 1, WIDTH)}
    expected = compiled(dense, LENGTH, **rules)(*factors, gradient, ids)
    real = (texts() > 0)[:, :, None, None]
    assert max(distances([np.asarray(found[0]) * real], [np.asarray(expected[0]) * real])) < 1e-6


def test_rematerialisation_keeps_the_output_of_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    """With "dots" the forward pass does not run again for it, and no scores are kept."""

    def run(*factors: jax.Array) -> jax.Array:
        return jnp.sin(small_chunks(factors, visible("packed"), 0.0, None))

    print_saved_residuals(jax.checkpoint(run, policy=REMAT_POLICIES["dots"]), *arrays()[:3])
    kept = capsys.readouterr().out
    assert OUTPUT in kept
    assert not re.search(rf"{LENGTH},.*{LENGTH}\]", kept)


def test_the_form_follows_from_length_and_window() -> None:
    assert [form_of(length, None) for length in (128, 1023, 1024, 8192)] == ["dense", "dense", "chunked", "chunked"]
    assert [form_of(length, 64) for length in (128, 192, 256, 8192)] == ["dense", "dense", "local", "local"]
    assert [form_of(length, 512) for length in (1023, 2047, 4096)] == ["dense", "chunked", "local"]


def test_bad_values_are_one_line() -> None:
    for window in (0, -1):
        with pytest.raises(UserError, match=rf"^a window of attention is {window}; it is the number of .*None for any"):
            visible("packed", window=window)
    mask = {"attention_mask": jnp.ones((1, 2048), jnp.int32)}
    with pytest.raises(
        UserError, match="fewer than 2,048 positions; these have 2,048: set config.teacher.attention.weight"
    ):
        _distance_of_scores([], mask, causal=False)
