"""What masking whole units is for: a model that fills in whole words and entities, not pieces from their neighbours.

Toy text: an entity is three pieces, then come two tokens that are facts about it. Both facts decide the entity, and any
piece of it all but decides the others, so a model that is asked for single pieces need not read the facts. Asked for a
whole entity, it must.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.objectives.learning import Learner
from tests.rows.fakes import FACTS, FakeSplit

ENTITIES, PIECES, VALUES = 64, 64, 8
SENTENCE, SENTENCES, STEPS = 5, 4, 800
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
    learner = Learner(5 + PIECES + 2 * VALUES, LENGTH)
    params = learner.learn(source, seed, STEPS)
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
    return float((np.asarray(learner.apply(params, batch)["mlm_logits"]).argmax(axis=-1) == labels).all(axis=1).mean())


@pytest.mark.heavy
@pytest.mark.parametrize("strategy", ["whole_unit", "bernoulli", "spans"])
def test_masking_units_teaches_whole_entities_sooner(strategy: str) -> None:
    """Three seeds; the means differ by more than two standard errors."""
    plain = np.array([whole_cloze("token", "piece", seed) for seed in range(3)])
    unit = "piece" if strategy == "spans" else "units"  # spans know nothing of entities
    units = np.array([whole_cloze(strategy, unit, seed) for seed in range(3)])
    error = np.sqrt((plain.var(ddof=1) + units.var(ddof=1)) / 3)
    print(f"\nwhole entities found: token {plain.round(3)}, {strategy} {units.round(3)}")
    assert units.mean() - plain.mean() > max(0.02, 2 * error)
