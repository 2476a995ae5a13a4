"""Transformer-XL: its memory is the text before a row, no gradient flows into it, and it reaches N rows back."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import transformer_xl
from bert_jax.models.model import LM_HEAD, Model, Part, shapes_of
from bert_jax.models.transformer import stack_layers
from tests.models import transformer_xl_reference as reference

TEXT = 24
ATTENTION = ("query", "key", "value", "position", "output")  # kernels, by the names of the reference
CONFIG = transformer_xl.Config(
    40, 16, 3, 2, 24, memory_length=TEXT, dtype="float64", dropout_rate=0.0, attention_dropout_rate=0.0
)
IDS = np.random.default_rng(0).integers(0, 40, (2, TEXT))


@functools.cache
def params_of(config: transformer_xl.Config, parts: tuple[Part, ...] = ()) -> Any:
    with jax.enable_x64(True):
        _, shapes = shapes_of(Model(config, parts), ("masked_positions",))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: rng.normal(0.0, 0.3, leaf.shape) + (path[-1].key == "scale"), shapes
    )


@functools.cache
def compiled(config: transformer_xl.Config) -> Any:
    return jax.jit(lambda params, batch: Model(config).apply({"params": params}, batch))


def rows_of(ids: Any, **others: Any) -> dict[str, jax.Array]:
    return {"input_ids": jnp.asarray(ids), "attention_mask": jnp.ones(np.shape(ids), jnp.int32), **others}


def empty(config: transformer_xl.Config, rows: int = 2) -> dict[str, jax.Array]:
    return {name: jnp.zeros((rows, *one.shape), one.dtype) for name, one in transformer_xl.Encoder.past(config).items()}


def segment_by_segment(config: transformer_xl.Config, ids: np.ndarray, length: int) -> tuple[np.ndarray, Any]:
    """Return the vectors of texts read in segments of ``length``, each with the memory of the segments before it."""
    past, found, params = empty(config, len(ids)), [], params_of(config)
    for start in range(0, ids.shape[1], length):
        out = compiled(config)(params, rows_of(ids[:, start : start + length], **past))
        past = {name: out[name] for name in past}
        found.append(np.asarray(out["sequence"]))
    return np.concatenate(found, axis=1), past


def of_reference(params: Any, config: transformer_xl.Config) -> dict[str, np.ndarray]:
    """Return our parameters under the names of the reference."""
    encoder = params["encoder"]
    layers = [encoder[f"layer_{i}"] for i in range(config.num_layers)]
    names = {name: ("attention", "distance" if name == "position" else name, "kernel") for name in ATTENTION}
    for part, ours in (("attention_norm", "attention_layer_norm"), ("mlp_norm", "mlp_layer_norm")):
        names |= {f"{part}_{name}": (ours, name) for name in ("scale", "bias")}
    for side in ("input", "output"):
        names |= {f"mlp_{side}": ("mlp", side, "kernel"), f"mlp_{side}_bias": ("mlp", side, "bias")}
    stacked = {
        name: np.stack([functools.reduce(lambda tree, at: tree[at], path, one) for one in layers])
        for name, path in names.items()
    }
    tables = {"embeddings": encoder["embeddings"]["word_embeddings"], "output_bias": params["mlm_head"]["output_bias"]}
    return stacked | tables | {"u": encoder["content_bias"], "v": encoder["distance_bias"]}


@pytest.mark.parametrize(("length", "memory", "span"), [(5, 3, "all"), (3, 7, "all"), (4, 4, "same length")])
def test_a_reference_that_knows_no_shift(length: int, memory: int, span: Any) -> None:
    """Logits and memory of three segments, from an empty memory on, and without one; float64: 1e-10."""
    config = dataclasses.replace(CONFIG, memory_length=memory, span=span)
    model = Model(config, (LM_HEAD,))
    params = params_of(config, (LM_HEAD,))
    theirs, kept = of_reference(params, config), None
    everywhere = jnp.tile(jnp.arange(length), (2, 1))
    run = jax.jit(lambda batch: model.apply({"params": params}, {**batch, "masked_positions": everywhere}))
    with jax.enable_x64(True):
        past = empty(config)
        for start in range(0, 3 * length, length):
            ids = IDS[:, start : start + length]
            found = run(rows_of(ids, **past))
            past = {name: found[name] for name in past}
            kept = kept or reference.empty_memory(theirs, 2, memory)
            wanted = reference.forward(theirs, ids, kept, span == "same length")
            kept = wanted.memory
            np.testing.assert_allclose(found["mlm_logits"], wanted.logits, atol=1e-10)
            np.testing.assert_allclose(past["past_states"], np.swapaxes(kept.states, 0, 1), atol=1e-10)
            assert np.array_equal(past["past_mask"], kept.mask)
        if span == "all":
            alone = run(rows_of(ids))["mlm_logits"]
            np.testing.assert_allclose(alone, reference.forward(theirs, ids).logits, atol=1e-10)


def test_segments_with_a_long_memory_are_one_pass() -> None:
    """float64: 1e-12, of segments of 4 and 8. With a memory of one segment, the first two agree and no others do."""
    with jax.enable_x64(True):
        whole = np.asarray(compiled(CONFIG)(params_of(CONFIG), rows_of(IDS))["sequence"])
        for length in (4, 8):
            found, past = segment_by_segment(CONFIG, IDS, length)
            np.testing.assert_allclose(found, whole, atol=1e-12)
            assert np.all(past["past_mask"] == 1)
        short = dataclasses.replace(CONFIG, memory_length=4)
        found, _ = segment_by_segment(short, IDS, 4)
    np.testing.assert_allclose(found[:, :8], whole[:, :8], atol=1e-12)
    assert np.abs(found - whole)[:, 8:].max(-1).min() > 1e-4


def test_the_memory_reaches_as_many_rows_back_as_there_are_layers() -> None:
    """3 layers, rows and memory of 4: the first token changes its row and 3 rows after it, and no later vector."""
    config = dataclasses.replace(CONFIG, memory_length=4)
    other = IDS.copy()
    other[:, 0] = other[:, 0] % 39 + 1
    with jax.enable_x64(True):
        change = np.abs(segment_by_segment(config, IDS, 4)[0] - segment_by_segment(config, other, 4)[0]).max((0, 2))
    assert np.all(change[: 4 * 4 - 1] > 0)  # the last layer's memory ends with the token before the query
    assert np.all(change[4 * 4 :] == 0)


def test_a_span_of_the_same_length() -> None:
    """Each token sees 4 positions, itself included: of one layer, a token changes four vectors."""
    config = dataclasses.replace(CONFIG, num_layers=1, memory_length=4, span="same length")
    other = IDS.copy()
    other[:, 6] = other[:, 6] % 39 + 1
    with jax.enable_x64(True):
        change = np.abs(segment_by_segment(config, IDS, 4)[0] - segment_by_segment(config, other, 4)[0]).max((0, 2))
        whole = (np.asarray(compiled(config)(params_of(config), rows_of(ids))["sequence"]) for ids in (IDS, other))
        again = np.abs(np.subtract(*whole)).max((0, 2))
    for found in (change, again):
        assert np.array_equal(np.flatnonzero(found), [6, 7, 8, 9])


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_no_gradient_flows_into_the_memory(layers: Any) -> None:
    """Neither into what is given nor out of what is kept; empty slots do not count, whatever they hold."""
    config = dataclasses.replace(CONFIG, layers=layers, remat="full", memory_length=8)
    params = params_of(CONFIG)
    params = stack_layers(params) if layers == "scanned" else params
    with jax.enable_x64(True):
        past = empty(config)
        past = {"past_states": past["past_states"] + 1.0, "past_mask": past["past_mask"].at[:, 4:].set(1)}
        batch = rows_of(IDS[:, :8])
        run = jax.jit(lambda p, states: compiled(config)(p, {**batch, **past, "past_states": states}))
        into = jax.jit(jax.grad(lambda states: jnp.sum(run(params, states)["sequence"] ** 2)))(past["past_states"])
        out_of = jax.jit(jax.grad(lambda p: jnp.sum(run(p, past["past_states"])["past_states"] ** 2)))(params)
        assert not np.any(into)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(out_of))
        found = run(params, past["past_states"])
        same = run(params, past["past_states"].at[:, :, :4].set(7.0))
        other = run(params, past["past_states"].at[:, :, 4:].set(7.0))
        assert np.array_equal(found["sequence"], same["sequence"])
        assert not np.allclose(found["sequence"], other["sequence"])
        plain = compiled(config.plain())
        unrolled = plain(params_of(CONFIG), {**batch, **past})
    for name in ("sequence", "past_states"):
        np.testing.assert_allclose(found[name], unrolled[name], atol=1e-12)


def test_dropout_of_a_row_does_not_depend_on_the_other_rows() -> None:
    """Of distances too, which all rows share."""
    config = dataclasses.replace(CONFIG, dtype="float32", dropout_rate=0.2, attention_dropout_rate=0.2)
    params = jax.tree.map(np.float32, params_of(CONFIG))
    run = jax.jit(lambda ids, rows: Model(config).apply({"params": params}, rows_of(ids), RowRng.create(0, 3, rows)))
    whole = run(IDS, jnp.arange(2))["sequence"]
    for row in range(2):
        found = run(IDS[row : row + 1], jnp.arange(row, row + 1))["sequence"]
        np.testing.assert_allclose(found, whole[row : row + 1], atol=1e-5)
    assert not np.allclose(whole, run(IDS, jnp.arange(2) + 5)["sequence"], atol=1e-2)


def test_the_published_count() -> None:
    """enwik8, 12 layers, 204 letters: 41,055,436 (mem_transformer.py)."""
    config = transformer_xl.Config(204, **transformer_xl.SIZES["enwik8"])
    _, shapes = shapes_of(Model(config, (LM_HEAD,)), ("masked_positions",))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 41_055_436
    kernels = [leaf.size for leaf in jax.tree.leaves(shapes["encoder"]) if leaf.ndim > 1 and leaf.size > 8 * 64]
    assert config.num_parameters == sum(kernels)


def test_a_config_has_memory_only_if_it_says_so() -> None:
    without = dataclasses.replace(CONFIG, memory_length=0)
    assert transformer_xl.Encoder.past(without) == {}
    shapes = {name: one.shape for name, one in transformer_xl.Encoder.past(CONFIG).items()}
    assert shapes == {"past_states": (3, TEXT, 16), "past_mask": (TEXT,)}
    with jax.enable_x64(True):
        assert set(compiled(without)(params_of(CONFIG), rows_of(IDS))) == {"sequence"}
