"""What sentence order is for (Lan et al. 2020, section 3.1): a next sentence is told by its topic, an order is not.

Toy text: a document keeps to the tokens of one topic. In the ordered language each sentence also begins with a token
that says its place in the document.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, SOP_HEAD
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.objectives.learning import Learner, masked_lm, term
from tests.rows.fakes import FACTS, FakeSplit

TOPICS, TOKENS, SENTENCES, SENTENCE, LENGTH = 16, 12, 8, 5, 32
OBJECTIVES = {
    "sentence_pairs": (NSP_HEAD, ("nsp_logits", "next_sentence_labels", "next_sentence_weights")),
    "sentence_order": (SOP_HEAD, ("sop_logits", "sentence_order_labels", "sentence_order_weights")),
}


def text(seed: int, documents: int, ordered: bool) -> FakeSplit:
    rng = np.random.default_rng(seed)
    topics = rng.integers(TOPICS, size=documents)[:, None, None]
    tokens = 5 + SENTENCES + topics * TOKENS + rng.integers(TOKENS, size=(documents, SENTENCES, SENTENCE))
    if ordered:
        tokens[:, :, 0] = 5 + np.arange(SENTENCES)
    return FakeSplit([np.full(SENTENCES, SENTENCE)] * documents, tokens.ravel())


@functools.cache
def accuracy(arrangement: str, ordered: bool, seed: int) -> float:
    """Train masked LM and the labels of pairs, and return how often a held-out label is found."""
    head, names = OBJECTIVES[arrangement]

    def loss(outputs: Any, batch: Any) -> tuple[Any, Any]:
        masked, (labels, hits) = masked_lm(outputs, batch)[0], term(outputs, batch, *names)
        return masked + labels, hits

    learner = Learner(5 + SENTENCES + TOPICS * TOKENS, LENGTH, (POOLER, LM_HEAD, head), loss)
    config = RowsConfig(LENGTH, arrangement=arrangement)
    params = learner.learn(SequenceRows(config, text(seed, 4000, ordered), FACTS, seed=seed), seed, steps=400)
    heldout = SequenceRows(config, text(10_000 + seed, 400, ordered), FACTS, seed=seed)
    return float(learner.measure(params, learner.rows(heldout, 0, 1000))[1])


@pytest.mark.heavy
def test_the_topic_tells_a_next_sentence_and_not_an_order() -> None:
    def found(arrangement: str, ordered: bool) -> np.ndarray:
        return np.array([accuracy(arrangement, ordered, seed) for seed in range(3)])

    pairs, order, clock = found("sentence_pairs", False), found("sentence_order", False), found("sentence_order", True)
    print(f"\nnext sentence by topic {pairs}, order by topic {order}, order by a token that says it {clock}")
    assert pairs.min() > 0.9
    assert abs(order.mean() - 0.5) < 0.05
    assert clock.min() > 0.75
