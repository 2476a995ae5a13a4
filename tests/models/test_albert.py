"""ALBERT: one layer's parameters, whatever the number of layers and the way they are computed."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import albert, bert
from bert_jax.models.model import POOLER, Model
from tests.models.helpers import TINY, as_jax, loss, pretraining, random_batch, random_params, random_targets, tiny
from tests.models.test_bert import assert_close

COUNTS = {"base": 11_683_584, "large": 17_683_968, "xlarge": 58_724_864, "xxlarge": 222_595_584}
RNG = RowRng.create(0, 3, jnp.arange(4))


def small(**fields: Any) -> albert.Config:
    return albert.Config(**(TINY | {"embedding_size": 8} | fields))


def count(config: albert.Config) -> int:
    """Parameters of encoder and pooler."""
    shapes = jax.eval_shape(Model(config, (POOLER,)).init, jax.random.key(0), random_batch())
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@functools.cache
def value_and_gradient(config: albert.Config) -> tuple[Any, Any]:
    """Return value and gradient at the same parameters for every config, with dropout if the config has any."""
    batch, targets = as_jax(random_batch()), as_jax(random_targets())
    model, params = pretraining(config), as_jax(random_params(small()))
    return jax.jit(jax.value_and_grad(lambda p: loss(model, p, batch, targets, RNG)))(params)  # type: ignore[return-value]


@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_are_the_published_ones(size: str) -> None:
    fields = albert.SIZES[size]
    assert count(albert.Config(30_000, **fields, layers="scanned")) == COUNTS[size]
    assert count(albert.Config(30_000, **{**fields, "num_layers": 3})) == COUNTS[size]


def test_sizes_and_fields() -> None:
    for fields in albert.SIZES.values():
        build(albert.Config, {"vocab_size": 10, **fields}, "config.model")
    config = small()
    made = nn.unbox(jax.eval_shape(lambda: Model(config).init(jax.random.key(0), random_batch())))["params"]["encoder"]
    kernels = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(made) if path[-1].key == "kernel"]
    tables = [leaf for name, leaf in made["embeddings"].items() if name != "layer_norm"]
    assert config.num_parameters == sum(leaf.size for leaf in kernels + tables)
    with pytest.raises(UserError, match=r"^config.model.embedding_size is 0; 1 to 1,048,576 are allowed$"):
        small(embedding_size=0)


def test_sharing_saves_no_flops() -> None:
    projection = 6 * 16 * 8 * 32  # of 16 positions, forward and backward
    assert small().train_flops(16) == tiny().train_flops(16) + projection


RATES = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1}


def test_dropout_differs_from_layer_to_layer_and_not_by_how_they_are_computed() -> None:
    params, batch = as_jax(random_params(small()))["encoder"], as_jax(random_batch())

    @jax.jit
    def read(rng: RowRng) -> Any:
        models = (albert.Encoder(small(**RATES, layers=layers)) for layers in ("unrolled", "scanned"))
        return tuple(model.apply({"params": params}, batch, rng).sequence for model in models)

    unrolled, scanned = read(RNG)
    np.testing.assert_allclose(scanned, unrolled, atol=1e-5)
    other, _ = read(RNG.site("another"))
    assert float(jnp.abs(other - unrolled).max()) > 0.1


@pytest.mark.heavy
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_computed_otherwise_it_is_the_same_model(layers: str, remat: str) -> None:
    value, gradient = value_and_gradient(small(**RATES))
    other, other_gradient = value_and_gradient(small(**RATES, layers=layers, remat=remat))
    assert other == pytest.approx(float(value), rel=1e-6)
    assert_close(other_gradient, gradient, 1e-5)


def test_the_shared_gradient_is_the_sum_of_those_of_tied_layers() -> None:
    """Beside a BERT whose layers are copies of ALBERT's, as wide as its embeddings."""
    fields = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "activation": "gelu_tanh"}
    ours, theirs = albert.Encoder(small(embedding_size=32, **fields)), bert.Encoder(tiny(**fields))
    params, batch = as_jax(random_params(small(embedding_size=32)))["encoder"], as_jax(random_batch())
    params["embedding_projection"] = {"kernel": jnp.eye(32), "bias": jnp.zeros(32)}
    tied = {"embeddings": params["embeddings"], **{f"layer_{i}": params["layer"] for i in range(2)}}
    weights = np.random.default_rng(0).normal(size=(4, 16, 32)).astype(np.float32)

    @jax.jit
    def both(params: Any, tied: Any) -> Any:
        return tuple(
            jax.value_and_grad(lambda p, m=model: jnp.sum(m.apply({"params": p}, batch).sequence * weights))(tree)
            for model, tree in ((ours, params), (theirs, tied))
        )

    (value, gradient), (expected, apart) = both(params, tied)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    layers = [apart[f"layer_{i}"] for i in range(2)]
    assert_close(gradient["layer"], jax.tree.map(lambda *parts: sum(parts), *layers), 1e-5)
    assert_close(gradient["embeddings"], apart["embeddings"], 1e-5)


def test_a_packed_sequence_is_read_as_if_alone() -> None:
    rng, params = np.random.default_rng(0), as_jax(random_params(small()))["encoder"]
    types = np.array([[0, 0, 1, 1, 0, 0, 0, 1, 1, 0]], np.int32)
    ids = rng.integers(5, 64, (1, 10)).astype(np.int32)
    own = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]], np.int32)
    places = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]], np.int32)

    def apart(x: Any) -> Any:  # each in a row of its own, padded
        return jnp.stack([jnp.pad(x[0, :4], (0, 1)), x[0, 4:9]])

    @jax.jit
    def read(ids: Any) -> Any:
        row = {"input_ids": ids, "token_type_ids": types, "attention_mask": np.minimum(own, 1)}
        alone = {name: apart(x) for name, x in row.items()}
        row |= {"sequence_ids": own, "position_ids": places}
        encoder = albert.Encoder(small())
        return tuple(encoder.apply({"params": params}, batch).sequence for batch in (row, alone))  # type: ignore[union-attr]

    packed, alone = read(ids)
    np.testing.assert_allclose(packed[0, :4], alone[0, :4], atol=1e-5)
    np.testing.assert_allclose(packed[0, 4:9], alone[1], atol=1e-5)
    other, _ = read(np.where(own == 1, 70 - ids, ids))
    np.testing.assert_array_equal(other[:, 4:9], packed[:, 4:9])  # not a bit of the first one
    assert float(jnp.abs(other[:, :4] - packed[:, :4]).max()) > 1e-2


def test_hidden_states_of_every_layer() -> None:
    params, batch = as_jax(random_params(small())), as_jax(random_batch())

    @jax.jit
    def read(encoder: Any) -> Any:
        models = albert.Encoder(small()), albert.Encoder(small(num_layers=1))
        return tuple(model.apply({"params": encoder}, batch, hidden_states="all") for model in models)

    two, one = read(params["encoder"])
    assert two.hidden.shape == (3, 4, 16, 32)
    np.testing.assert_array_equal(two.hidden[-1], two.sequence)
    np.testing.assert_allclose(two.hidden[:2], one.hidden, atol=1e-6)


def test_it_is_bert_with_fields_of_its_own() -> None:
    config = albert.Config(10)
    assert (config.activation, config.dropout_rate, config.attention_dropout_rate) == ("gelu_tanh", 0.0, 0.0)
    assert albert.Encoder.reads == bert.Encoder.reads
    assert (config.encoder, config.embedding_size, bert.Config(10).embedding_size) == ("albert", 128, 768)
