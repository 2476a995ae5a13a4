"""Attention as the model computes it, beside softmax(QK) written out in numpy from its parameters."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.features.attention_maps import attention_maps
from bert_jax.features.trained_model import TrainedModel
from bert_jax.models.encoders import bert
from bert_jax.models.model import fresh_params

CONFIG = bert.Config(
    vocab_size=30, hidden_size=16, num_layers=2, num_heads=4, mlp_dim=32, max_length=12, initializer_range=0.5
)
IDS = [np.array([2, 7, 9, 3, 11, 3]), np.array([2, 25, 3])]
TYPES = [np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0])]


@functools.cache
def trained(config=CONFIG):
    return TrainedModel("", jax.tree.map(np.asarray, fresh_params(config, 3)), config, None)


@pytest.fixture(scope="module")
def every():
    """The maps of all layers."""
    return attention_maps(trained(), IDS, TYPES)


def norm(x, params):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + CONFIG.layer_norm_eps)
    return x * params["scale"] + params["bias"]


def first_layer(params, ids, types):
    """softmax(Q K^T / sqrt(d)) of the first layer, [H, L, L] float64."""
    tree, layer = params["encoder"]["embeddings"], params["encoder"]["layer_0"]["attention"]
    tables = (
        tree["word_embeddings"][ids],
        tree["position_embeddings"][: len(ids)],
        tree["token_type_embeddings"][types],
    )
    x = norm(sum(np.asarray(t, np.float64) for t in tables), tree["layer_norm"])
    query, key = (np.einsum("ld,dhe->hle", x, layer[n]["kernel"]) + layer[n]["bias"][:, None] for n in ("query", "key"))
    scores = np.einsum("hqe,hke->hqk", query, key) / np.sqrt(CONFIG.head_dim)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def test_equal_to_softmax_of_query_and_key(every):
    for found, ids, types in zip(every, IDS, TYPES, strict=True):
        assert found.shape == (2, 4, len(ids), len(ids))
        np.testing.assert_allclose(found[0], first_layer(trained().params, ids, types), atol=2e-6)
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)  # nothing goes to padding
    assert np.ptp(every[0]) > 0.2  # heads that look everywhere alike would pass with any formula


def test_layers_are_chosen_by_number_from_either_end(every):
    last = attention_maps(trained(), IDS, TYPES, layers=(-1,))
    np.testing.assert_array_equal(last[1][0], every[1][1])
    with pytest.raises(UserError, match="no layer 2; the model has 2"):
        attention_maps(trained(), IDS, TYPES, layers=(2,))


def test_dropout_and_rematerialisation_of_training_change_nothing(every):
    config = dataclasses.replace(CONFIG, attention_dropout_rate=0.5, dropout_rate=0.5, remat="full")
    for found, plain in zip(attention_maps(trained(config), IDS, TYPES), every, strict=True):
        np.testing.assert_array_equal(found, plain)


def test_a_causal_model_looks_back_alone():
    config = dataclasses.replace(CONFIG, attention="causal")
    [found, _] = attention_maps(trained(config), IDS, TYPES)
    assert np.all(np.triu(found, 1) == 0)
