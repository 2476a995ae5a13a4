"""XLNet: who sees whom in both streams, partial prediction, memory, published counts, and the values of torch."""

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
from bert_jax.models.encoders import xlnet
from bert_jax.models.model import LM_HEAD, Model, fresh_params, shapes_of
from tests.models.golden import tree_of
from tests.models.golden_xlnet import GOLDEN, LENGTH, V, batch_of, config_of, loss_of

DOUBLE = config_of(dtype="float64")
RANKS = np.array([3, -1, 0, -1, 2, 1, -1, 4, 5, -1])  # all but the queries of rank -1 see the tokens of rank -1


@functools.cache
def params_of(config: xlnet.Config) -> Any:
    with jax.enable_x64(True):
        _, shapes = shapes_of(Model(config, (LM_HEAD,)), ("masked_positions",))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: rng.normal(0.0, 0.2, leaf.shape) + (path[-1].key == "scale"), shapes
    )


@functools.cache
def compiled(config: xlnet.Config) -> Any:
    return jax.jit(lambda batch: Model(config, (LM_HEAD,)).apply({"params": params_of(config)}, batch))


def run(config: xlnet.Config, **batch: Any) -> dict[str, np.ndarray]:
    with jax.enable_x64(True):
        given = {name: jnp.asarray(x) for name, x in batch.items()}
        return {name: np.asarray(x) for name, x in compiled(config)(given).items()}


def rows_of(ids: np.ndarray, ranks: np.ndarray = RANKS) -> dict[str, np.ndarray]:
    """Return rows whose queries are all positions."""
    everywhere = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    mask = np.ones_like(ids)
    types = np.tile(np.arange(ids.shape[1]) * 3 // ids.shape[1], (len(ids), 1))
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "query_positions": everywhere}
    return batch | {"order_ids": np.tile(ranks, (len(ids), 1)), "masked_positions": everywhere}


def test_a_vector_depends_on_what_it_sees_and_on_nothing_else() -> None:
    """Each token is replaced. Content sees ranks up to the token's, queries see lower ranks: all else is 0, exactly.

    A query never depends on its token, while the content of the token does: that is what two streams are for.
    """
    tokens = np.tile(np.random.default_rng(1).integers(0, V - 1, LENGTH), (LENGTH + 1, 1))
    tokens[np.arange(LENGTH) + 1, np.arange(LENGTH)] += 1
    found = run(DOUBLE, **rows_of(tokens))
    for name, seen in (
        ("sequence", RANKS[None] <= RANKS[:, None]),
        ("queries", RANKS[None] < RANKS[:, None]),
    ):
        change = np.abs(found[name][1:] - found[name][:1]).max(-1).T  # [vector, token]
        assert np.all(change[~seen] == 0), name
        assert np.all(change[seen] > 1e-6), name


def test_partial_prediction_is_a_part_of_all_queries() -> None:
    """Some queries have the vectors of the pass with all of them, and the content stream is the same without any."""
    batch = rows_of(np.random.default_rng(2).integers(0, V, (2, LENGTH)))
    places = np.array([[4, 0, 8], [9, 9, 2]])
    whole, some = run(DOUBLE, **batch), run(DOUBLE, **{**batch, "query_positions": places})
    taken = {name: np.take_along_axis(whole[name], places[..., None], axis=1) for name in ("queries", "mlm_logits")}
    for name, wanted in taken.items():
        np.testing.assert_allclose(some[name], wanted, atol=1e-12)
    without = run(DOUBLE, **{name: x for name, x in batch.items() if name != "query_positions"})
    assert "queries" not in without
    for other in (some, without):
        np.testing.assert_allclose(other["sequence"], whole["sequence"], atol=1e-12)
    assert without["mlm_logits"].shape == whole["mlm_logits"].shape
    assert not np.allclose(without["mlm_logits"], whole["mlm_logits"])  # of the tokens themselves


def test_two_segments_with_memory_are_one_pass() -> None:
    """In order from left to right, both streams; segments of one kind, as memory has the first."""
    config, ids = dataclasses.replace(DOUBLE, memory_length=8), np.random.default_rng(3).integers(0, V, (2, 16))
    whole = run(DOUBLE, **rows_of(ids, np.arange(16)) | {"token_type_ids": 0 * ids})
    past: dict[str, np.ndarray] = {
        name: np.zeros((2, *one.shape), one.dtype) for name, one in xlnet.Encoder.past(config).items()
    }
    for start in (0, 8):
        part = ids[:, start : start + 8]
        found = run(config, **rows_of(part, np.arange(8)) | {"token_type_ids": 0 * part} | past)
        past = {name: found[name] for name in past}
        for name in ("sequence", "queries", "mlm_logits"):
            np.testing.assert_allclose(found[name], whole[name][:, start : start + 8], atol=1e-12)


def test_the_reused_part_of_a_row_enters_the_memory() -> None:
    config = dataclasses.replace(DOUBLE, reuse_length=4)
    batch = batch_of()
    past, all_of_it = run(config, **batch), run(DOUBLE, **batch)
    np.testing.assert_array_equal(past["past_states"][:, :, :2], batch["past_states"][:, :, 4:])
    assert np.array_equal(past["past_mask"], np.concatenate([np.ones((3, 2)), batch["attention_mask"][:, :4]], axis=1))
    assert not np.allclose(past["past_states"], all_of_it["past_states"])
    words = params_of(config)["encoder"]["embeddings"]["word_embeddings"]
    np.testing.assert_allclose(past["past_states"][:, 0, 2:], words[batch["input_ids"][:, :4]], atol=1e-6)


def test_golden_values_of_torch() -> None:
    """Both streams, memory and segments in float32; every gradient of a layer, and of the two embeddings."""
    with np.load(GOLDEN) as stored:
        params, wanted = tree_of(stored, "params"), tree_of(stored, "gradients")
        loss, logits, states = (stored[name] for name in ("loss", "logits", "past_states"))
    config = config_of(dropout_rate=0.0, attention_dropout_rate=0.0)
    run = jax.jit(jax.value_and_grad(functools.partial(loss_of, config, batch=batch_of()), has_aux=True))
    (found, out), grads = run(params)
    assert float(found) == pytest.approx(float(loss), rel=2e-5)
    np.testing.assert_allclose(out["mlm_logits"], logits, atol=2e-5)
    seen = np.asarray(out["past_mask"]) > 0
    ours, theirs = (np.moveaxis(x, 1, 2)[seen] for x in (out["past_states"], states))
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    compared = jax.tree_util.tree_leaves_with_path(wanted)
    assert len(compared) > 15
    for path, theirs in compared:
        ours = leaf(grads, "/".join(str(one.key) for one in path))
        assert np.abs(ours - theirs).max() <= 2e-5 * max(1.0, np.abs(theirs).max()), path


@pytest.mark.parametrize(("size", "count"), [("base", 116_718_336), ("large", 360_268_800)])
def test_published_counts(size: str, count: int) -> None:
    """The models of Yang et al. 2019; the bias of the language model is 32,000 more."""
    config = xlnet.Config(vocab_size=32_000, **xlnet.SIZES[size], layers="scanned")
    shapes = jax.eval_shape(lambda: fresh_params(config))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes["encoder"])) == count
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes["mlm_head"])) == 32_000


def test_bad_settings_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="^config.model.reuse_length is -1; 0 or more is needed$"):
        config_of(reuse_length=-1)
    with pytest.raises(AssertionError, match="a batch with query_positions has no order_ids"):
        run(DOUBLE, **{name: x for name, x in batch_of().items() if name != "order_ids"})
