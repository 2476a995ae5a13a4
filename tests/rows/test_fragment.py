"""Where a fragment is put, how long it is, and what it does at special tokens and at words of several pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.strategies import fragment
from tests.rows.fakes import FACTS, z
from tests.rows.test_masking import mask
from tests.rows.test_strategies import chosen, text

ROWS, LENGTH = 20_000, 22  # 20 tokens of text, of which 10 are hidden: it may begin at 11 places


def begins(**options: Any) -> np.ndarray:
    candidates, starts = text(ROWS, LENGTH)
    found = chosen("fragment", candidates, starts, 10, options=options).positions
    first = found.argmax(axis=1)
    inside = np.arange(LENGTH)[None] - first[:, None]
    np.testing.assert_array_equal(found, (inside >= 0) & (inside < 10))  # one fragment of 10 positions
    return first


def test_a_fifth_begins_the_text_a_fifth_ends_it_and_the_rest_is_anywhere() -> None:
    first, anywhere = begins(), 0.6 / 11
    assert abs(z((first == 1).sum(), ROWS, 0.2 + anywhere)) < 4
    assert abs(z((first == 11).sum(), ROWS, 0.2 + anywhere)) < 4
    for place in range(2, 11):
        assert abs(z((first == place).sum(), ROWS, anywhere)) < 4
    assert abs(z((first == 1).sum(), ROWS, 1 / 11)) > 50  # the power check: it is not drawn evenly
    assert set(begins(at_start=0.0, at_end=0.0)) == set(range(1, 12))
    assert (begins(at_start=1.0, at_end=0.0) == 1).all()
    assert (begins(at_start=0.0, at_end=1.0) == 11).all()


def test_a_special_token_is_passed_over_and_words_stay_whole() -> None:
    candidates, starts = text(500, 40, special=(20,))
    found = chosen("fragment", candidates, starts, 19).positions
    assert (found.sum(axis=1) == 19).all()
    assert not found[:, [0, 20, 39]].any()
    assert found[:, 19].mean() > 0.5 < found[:, 21].mean()
    candidates, starts = text(500, 40, (1, 2, 3))
    found = chosen("fragment", candidates, starts, 19).positions
    assert 15 <= found.sum(axis=1).min() < found.sum(axis=1).max() == 19
    ends = found[:, :-1] & ~found[:, 1:] & candidates[:, 1:]
    assert starts[:, 1:][ends].all()
    assert starts[np.arange(500), found.argmax(axis=1)].all()


def test_hidden_tokens_are_the_predicted_tokens() -> None:
    """Of these 80 % become [MASK], 10 % a random piece, 10 % stay; no other token changes.

    The published code of supervised translation hides positions one further on than it predicts.
    """
    config = build(MaskingConfig, {"strategy": "fragment", "rate": 0.5}, "config.objective.masking")
    found, (ids, candidates, lengths) = mask(2_000, config)
    hidden = np.zeros(ids.shape, bool)
    row, slot = np.nonzero(found["masked_weights"])
    hidden[row, found["masked_positions"][row, slot]] = True
    np.testing.assert_array_equal(hidden.sum(axis=1), np.minimum(np.rint(0.5 * lengths), candidates.sum(axis=1)))
    assert not hidden[~candidates].any()
    np.testing.assert_array_equal(found["input_ids"][~hidden], ids[~hidden])
    count = hidden.sum()
    seen, labels = found["input_ids"][hidden], ids[hidden]
    np.testing.assert_array_equal(found["masked_labels"][row, slot], labels)
    masks, kept = (seen == FACTS.mask).sum(), (seen == labels).sum()
    by_chance = 0.1 / FACTS.vocab_size
    assert abs(z(masks, count, 0.8 + by_chance)) < 4
    assert abs(z(kept, count, 0.1 + by_chance)) < 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at_start": 1.2}, "config.objective.masking.options.at_start is 1.2; 0 to 1 is allowed"),
        ({"at_start": 0.7, "at_end": 0.7}, "at_start is 0.7 and at_end 0.7; their sum may be at most 1"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(fragment.Config, options, "config.objective.masking.options")
