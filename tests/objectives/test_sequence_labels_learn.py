"""What reordering and distance learn: the order of a text that has one, and nothing of it where there is none.

Toy text: a document keeps to the tokens of one topic. In the ordered language each sentence also begins with a token
that says its place in the document.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from bert_jax.models.heads import Classifier
from bert_jax.models.model import POOLER, Part
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.objectives.learning import Learner, term
from tests.objectives.test_sentence_order_learns import LENGTH, SENTENCES, TOKENS, TOPICS, text
from tests.rows.fakes import FACTS

CLASSES = {"sentence_reordering": 9, "sentence_distance": 3}


@functools.cache
def accuracy(arrangement: str, ordered: bool, seed: int) -> float:
    """Train on labels alone, and return how often a held-out label is found."""
    head = Part.of("head", Classifier, num_outputs=CLASSES[arrangement])

    def loss(outputs: Any, batch: Any) -> tuple[Any, Any]:
        return term(outputs, batch, "logits", f"{arrangement}_labels", f"{arrangement}_weights")

    learner = Learner(5 + SENTENCES + TOPICS * TOKENS, LENGTH, (POOLER, head), loss)
    config = RowsConfig(LENGTH, arrangement=arrangement)
    params = learner.learn(SequenceRows(config, text(seed, 4000, ordered), FACTS, seed=seed), seed, steps=600)
    heldout = SequenceRows(config, text(10_000 + seed, 400, ordered), FACTS, seed=seed)
    return float(learner.measure(params, learner.rows(heldout, 0, 1000))[1])


@pytest.mark.heavy
def test_an_order_is_learned_where_there_is_one() -> None:
    """Without an order, reordering knows the number of pieces (token types show it), so that a third is right; and
    distance the topic, which does not tell neighbours from other sentences of the document."""

    def found(arrangement: str, ordered: bool) -> np.ndarray:
        return np.array([accuracy(arrangement, ordered, seed) for seed in range(3)])

    tables = {(name, ordered): found(name, ordered) for name in CLASSES for ordered in (True, False)}
    print("\n", tables)
    assert tables["sentence_reordering", True].min() > 0.8
    assert abs(tables["sentence_reordering", False].mean() - 1 / 3) < 0.05
    assert tables["sentence_distance", True].min() > 0.8
    assert 0.5 < tables["sentence_distance", False].mean() < 0.72
