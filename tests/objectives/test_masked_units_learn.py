"""What masking whole units is for: a model that fills in whole words and entities, not pieces from their neighbours.

Toy text: an entity is three pieces, then come two tokens that are facts about it. Both facts decide the entity, and any
piece of it all but decides the others, so a model that is asked for single pieces need not read the facts. Asked for a
whole entity, it must.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.models.encoders import bert
from bert_jax.models.losses import cross_entropy
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from bert_jax.training.mesh import unbox
from tests.rows.fakes import FACTS, FakeSplit

ENTITIES, PIECES, VALUES = 64, 64, 8
SENTENCE, SENTENCES, BATCH, STEPS = 5, 4, 64, 800
LENGTH = 2 + SENTENCE * SENTENCES


def text(seed: int, sentences: int) -> tuple[FakeSplit, np.ndarray]:
    """The text with a column of units, and the pieces of every entity."""
    language = np.random.default_rng(99)
    entities = 5 + language.choice(PIECES**3, ENTITIES, replace=False)[:, None] // PIECES ** np.arange(3) % PIECES
    facts = 5 + PIECES + np.arange(ENTITIES)[:, None] // [1, VALUES] % VALUES + [0, VALUES]
    rng = np.random.default_rng(seed)
    which = rng.integers(ENTITIES, size=sentences)
    tokens = np.concatenate([entities[which], facts[which]], axis=1)
    split = FakeSplit([np.full(SENTENCES, SENTENCE)] * (sentences // SENTENCES), tokens.ravel())
    split.units = np.tile(np.array([1, 2, 2, 0, 0], np.uint8), sentences)  # type: ignore[attr-defined]
    return split, entities


@functools.cache
def whole_cloze(strategy: str, unit: str, seed: int) -> float:
    """Train, hide one entity of every held-out row, and return how often all of its pieces are found."""
    config = RowsConfig(
        LENGTH,
        masking=MaskingConfig(strategy=strategy, unit=unit),
        arrangement="sentences",
        arrangement_options={"blocks": "document"},
    )
    source = SequenceRows(config, text(seed, SENTENCES * 8000)[0], FACTS, seed=seed)
    size = 5 + PIECES + 2 * VALUES
    model = Model(bert.Config(size, 64, 2, 4, 128, LENGTH, dropout_rate=0.0, attention_dropout_rate=0.0), (LM_HEAD,))
    optimizer = optax.adam(optax.linear_schedule(2e-3, 0.0, STEPS))

    def batch_of(step: int) -> dict[str, np.ndarray]:
        epochs, rows = np.divmod(step * BATCH + np.arange(BATCH), source.rows_per_epoch)
        batch = source.rows(epochs, rows)
        batch["input_ids"] = np.minimum(batch["input_ids"], size - 1)  # a random piece of the language
        return batch

    def loss(params: Any, batch: Any) -> jax.Array:
        logits = model.apply({"params": params}, batch)["mlm_logits"]  # type: ignore[index]
        total, _ = cross_entropy(logits, batch["masked_labels"], batch["masked_weights"])
        return total.value / jnp.maximum(total.count, 1)

    @jax.jit
    def step(params: Any, moments: Any, batch: Any) -> Any:
        updates, moments = optimizer.update(jax.grad(loss)(params, batch), moments)
        return optax.apply_updates(params, updates), moments

    params = unbox(model.init(jax.random.key(seed), batch_of(0))["params"])
    moments = optimizer.init(params)
    for number in range(STEPS):
        params, moments = step(params, moments, batch_of(number))
    # Held out: other sentences of the same language; the second entity of each row is hidden.
    split, _ = text(10_000 + seed, SENTENCES * 200)
    ids = np.concatenate(
        [np.full((200, 1), FACTS.cls), split.tokens.reshape(200, -1), np.full((200, 1), FACTS.sep)], axis=1
    ).astype(np.int32)
    hidden = 1 + SENTENCE + np.arange(3)
    labels = ids[:, hidden].copy()
    ids[:, hidden] = FACTS.mask
    batch = {
        "input_ids": ids,
        "token_type_ids": 0 * ids,
        "attention_mask": np.ones_like(ids),
        "masked_positions": np.tile(hidden, (200, 1)).astype(np.int32),
    }
    logits = jax.jit(lambda params, batch: model.apply({"params": params}, batch)["mlm_logits"])(params, batch)
    return float((np.asarray(logits).argmax(axis=-1) == labels).all(axis=1).mean())


@pytest.mark.heavy
@pytest.mark.parametrize("strategy", ["whole_unit", "bernoulli"])
def test_masking_units_teaches_whole_entities_sooner(strategy: str) -> None:
    """Three seeds; the means differ by more than two standard errors."""
    plain = np.array([whole_cloze("token", "piece", seed) for seed in range(3)])
    units = np.array([whole_cloze(strategy, "units", seed) for seed in range(3)])
    error = np.sqrt((plain.var(ddof=1) + units.var(ddof=1)) / 3)
    print(f"\nwhole entities found: token {plain.round(3)}, {strategy} {units.round(3)}")
    assert units.mean() - plain.mean() > max(0.05, 2 * error)
