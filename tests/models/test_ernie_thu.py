"""ERNIE with entities: a BERT where nothing is fused, how far an entity reaches, packed rows, and published counts."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interchange.conversion import leaf
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bert, electra, ernie_thu
from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, Model, shapes_of
from tests.models.golden import GOLDEN, tree_of
from tests.models.golden_ernie_thu import batch_of as batch_of_golden
from tests.models.golden_ernie_thu import config_of, loss_of
from tests.models.helpers import TINY, as_jax, random_batch, random_params, tiny

E, SEEN = 8, 4
CONFIG = ernie_thu.Config(**{**TINY, "num_layers": 3}, num_token_layers=1, entity_size=E, num_entity_heads=2)
RNG = RowRng.create(0, 3, jnp.arange(SEEN))


def batch_of(**changes: Any) -> dict[str, Any]:
    """Padded rows with entities at a third of the tokens."""
    batch, rng = random_batch(), np.random.default_rng(5)
    ids = np.where(rng.random(batch["input_ids"].shape) < 1 / 3, 3, 0) * batch["attention_mask"]
    ids[:, 0] = 0
    vectors = rng.normal(size=(*ids.shape, E)).astype(np.float32) * (ids > 0)[..., None]
    return as_jax({**batch, "entity_ids": ids.astype(np.int32), "entity_vectors": vectors, **changes})


@functools.cache
def compiled(config: Any) -> Any:
    encoder = ernie_thu.Encoder(config) if isinstance(config, ernie_thu.Config) else bert.Encoder(config)
    return jax.jit(lambda params, batch, rng: encoder.apply({"params": params}, batch, rng, "all").hidden)  # type: ignore[union-attr]


def hidden(batch: Any, config: Any = CONFIG, params: Any = None, rng: RowRng | None = None) -> np.ndarray:
    """Return the embeddings and the outputs of all layers, [N + 1, B, L, D]."""
    params = random_params(config)["encoder"] if params is None else params
    return np.asarray(compiled(config)(as_jax(params), batch, rng))


def without_fusion(encoder: dict[str, Any]) -> dict[str, Any]:
    def zero(path: Any, leaf: Any) -> Any:
        return 0 * leaf if "entity_input" in [key.key for key in path] else leaf

    return jax.tree_util.tree_map_with_path(zero, encoder)  # type: ignore[no-any-return]


@pytest.mark.parametrize("rng", [None, RNG], ids=["", "dropout"])
def test_without_fusion_it_is_a_bert_bit_for_bit(rng: RowRng | None) -> None:
    params, plain = random_params(CONFIG)["encoder"], tiny(num_layers=3)
    taken, _ = ernie_thu.begun(params, CONFIG)
    expected = hidden(batch_of(), plain, _like(random_params(plain)["encoder"], taken), rng)
    np.testing.assert_array_equal(hidden(batch_of(), CONFIG, without_fusion(params), rng), expected)
    changed = np.abs(hidden(batch_of(), CONFIG, params, rng) - expected).max((1, 2, 3))
    assert np.all(changed[:2] == 0)  # the embeddings and the layer of tokens alone
    assert np.all(changed[2:] > 0.1)


def _like(wanted: Any, given: Any) -> Any:
    """Return the leaves of ``given`` that ``wanted`` has too."""
    return {name: _like(tree, given[name]) if isinstance(tree, dict) else given[name] for name, tree in wanted.items()}


def test_an_entity_reaches_its_token_first_and_then_the_whole_row() -> None:
    batch = batch_of()
    row, at = 1, int(np.flatnonzero(np.asarray(batch["entity_ids"])[1])[0])
    other = {**batch, "entity_vectors": batch["entity_vectors"].at[row, at].add(1.0)}
    change = np.abs(hidden(other) - hidden(batch)).max(-1)  # [N + 1, B, L]
    here = np.zeros(change.shape[1:], bool)
    here[row, at] = True
    assert np.all(change[:2] == 0)
    assert np.all((change[2] > 1e-3) == here)
    assert np.all(change[2][~here] == 0)
    real = np.asarray(batch["attention_mask"])[row] > 0
    assert np.all(change[3][row][real] > 1e-6)
    assert np.all(np.delete(change[3], row, axis=0) == 0)


def test_what_has_no_entity_is_seen_by_no_entity() -> None:
    """Vectors where no entity stands change nothing, except at [CLS], whose entity is always there."""
    batch, rng = batch_of(), np.random.default_rng(6)
    noise = jnp.asarray(rng.normal(size=batch["entity_vectors"].shape).astype(np.float32))
    absent = (batch["entity_ids"] == 0).at[:, 0].set(False)[..., None]
    other = {**batch, "entity_vectors": jnp.where(absent, noise, batch["entity_vectors"])}
    np.testing.assert_array_equal(hidden(other), hidden(batch))
    cls = {**batch, "entity_vectors": batch["entity_vectors"].at[:, 0].set(noise[:, 0])}
    assert np.abs(hidden(cls) - hidden(batch)).max() > 0.01
    nothing = {name: x for name, x in batch.items() if not name.startswith("entity")}
    zeros = {**batch, "entity_ids": 0 * batch["entity_ids"], "entity_vectors": 0 * batch["entity_vectors"]}
    np.testing.assert_array_equal(hidden(nothing), hidden(zeros))
    assert np.abs(hidden(nothing) - hidden(batch)).max() > 0.1


def test_packed_sequences_are_apart_in_both_streams() -> None:
    """Each packed sequence is computed as in a row of its own, its [CLS] included."""
    batch, sizes = batch_of(), (7, 5)
    packed = {
        name: np.concatenate([np.asarray(x)[row : row + 1, :size] for row, size in enumerate(sizes)], axis=1)
        for name, x in batch.items()
        if name in ("input_ids", "token_type_ids", "attention_mask", "entity_ids", "entity_vectors")
    }
    ids = np.repeat([1, 2], sizes)[None]
    places = np.concatenate([np.arange(size) for size in sizes])[None]
    found = hidden(as_jax({**packed, "sequence_ids": ids, "position_ids": places}))
    begin = 0
    for row, size in enumerate(sizes):
        alone = {name: jnp.asarray(x)[row : row + 1, :size] for name, x in batch.items() if name in packed}
        np.testing.assert_allclose(found[:, :, begin : begin + size], hidden(alone), atol=2e-6)
        begin += size


def test_golden_values_of_torch() -> None:
    """States of all layers, logits and loss of entities, and every gradient, with layers that are computed again."""
    with np.load(GOLDEN.with_name("golden_ernie_thu.npz")) as stored:
        params, gradients = tree_of(stored, "params"), tree_of(stored, "gradients")
        loss, logits, states = (stored[name] for name in ("loss", "logits", "hidden"))
    batch = batch_of_golden()
    run = jax.jit(jax.value_and_grad(lambda p: loss_of(config_of(remat="full"), p, batch), has_aux=True))
    (found, (hidden, scores)), slopes = run(params)
    assert float(found) == pytest.approx(float(loss), abs=2e-5)
    real = batch["attention_mask"] > 0
    np.testing.assert_allclose(np.asarray(scores)[real], logits[real], atol=1e-4)
    for one, other in zip(hidden, states, strict=True):
        np.testing.assert_allclose(np.asarray(one)[real], other[real], atol=2e-5)
    compared = jax.tree_util.tree_leaves_with_path(gradients)
    assert len(compared) > 60
    for path, expected in compared:
        difference = np.abs(leaf(slopes, "/".join(str(key.key) for key in path)) - expected).max()
        assert difference <= 2e-5 * max(1.0, np.abs(expected).max()), path


def test_published_counts() -> None:
    base = ernie_thu.Config(vocab_size=30522)
    assert base.first_with_entities == 5
    _, shapes = shapes_of(Model(base, (POOLER, LM_HEAD, NSP_HEAD)), ("masked_positions", "cls_positions"))

    def count(tree: Any) -> int:
        return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(tree))

    layers = [count(shapes["encoder"][f"layer_{i}"]) for i in range(12)]
    assert [size - layers[0] for size in layers] == [0] * 5 + [617_772] + [658_372] * 6
    assert count(shapes) == 114_751_532 - 77_100  # the head of entities: tests/objectives/test_entity_alignment.py
    weights = [
        x for x in jax.tree.leaves(shapes["encoder"]) if x.ndim > 1 and x.shape != (12, 64) and x.shape != (4, 25)
    ]
    assert base.num_parameters == sum(int(np.prod(x.shape)) for x in weights)
    pairs = 2 * 128 * (12 * 768 + 6 * 100)  # scores, and the product with values, of a position
    tables = (30522 + 512 + 2) * 768
    assert base.products(128) == 128 * (base.num_parameters - tables + pairs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": "scanned"}, "config.model.layers is 'scanned', and .* three kinds"),
        ({"num_token_layers": 3}, "num_token_layers is 3; 0 or more and below num_layers, 3, is needed"),
        ({"num_token_layers": -1}, "num_token_layers is -1; 0 or more"),
        ({"num_entity_heads": 3}, "num_entity_heads is 3; a number that divides entity_size, 8, is needed"),
        ({"num_entity_heads": 0}, "num_entity_heads is 0"),
        ({"entity_size": 0}, "entity_size is 0; at least 1"),
    ],
)
def test_bad_settings_are_one_line(fields: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **fields)


def test_it_has_the_sizes_of_the_bert_that_it_begins_as() -> None:
    other = tiny(num_layers=4, activation="gelu_tanh", max_length=24, dropout_rate=0.3)
    found = ernie_thu.fitted(CONFIG, other)
    assert (found.num_layers, found.activation, found.max_length) == (4, "gelu_tanh", 24)
    assert (found.num_token_layers, found.entity_size, found.dropout_rate) == (1, E, 0.1)
    with pytest.raises(UserError, match="num_token_layers is 1; 0 or more and below num_layers, 1, is needed"):
        ernie_thu.fitted(CONFIG, tiny(num_layers=1))
    for wrong in (electra.Config(64), dataclasses.replace(other, attention="causal")):
        with pytest.raises(UserError, match=r"begins as a BERT, and the model of --init is .*; take another --init"):
            ernie_thu.fitted(CONFIG, wrong)
