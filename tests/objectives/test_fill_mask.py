"""Filling masks: the model's own softmax, read back as words."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.features.fill_mask import fill_mask
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.tokenizer import wordpiece
from tests.models.helpers import pretraining, random_params, tiny

WORDS = ["the", "cat", "dog", "sees", "a", "river", "and", "some", "bread", "old", "king", "red", "house"]
TOKENIZER = wordpiece((*SPECIAL_TOKENS, *WORDS, "##s", "."))
CONFIG = tiny(vocab_size=TOKENIZER.size)
PARAMS = random_params(CONFIG)
TEXTS = ("the [MASK] sees a river.", "[MASK] old king and the [MASK] dogs [MASK]")


def softmax_of(text: str) -> np.ndarray:
    """The model applied to one text without padding, every position at once [L, V]."""
    ids = np.asarray([TOKENIZER.encode(text, special_tokens_in_text=True).input_ids], np.int32)
    everywhere = np.arange(ids.shape[1], dtype=np.int32)[None]
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1, "masked_positions": everywhere}
    logits = jax.jit(pretraining(CONFIG).apply)({"params": PARAMS}, batch)["mlm_logits"]
    return np.asarray(jax.nn.softmax(logits))[0][ids[0] == TOKENIZER.mask_id]


def test_candidates_are_the_best_of_the_softmax() -> None:
    for text, filled in zip(TEXTS, fill_mask(TrainedModel("", PARAMS, CONFIG, TOKENIZER), TEXTS, best=4), strict=True):
        assert filled.text == text
        assert len(filled.predictions) == text.count("[MASK]")
        for candidates, probabilities in zip(filled.predictions, softmax_of(text), strict=True):
            words = np.delete(np.arange(TOKENIZER.size), TOKENIZER.special_ids)
            best = words[np.argsort(-probabilities[words])][:4]
            assert [word for word, _ in candidates] == [TOKENIZER.vocab[i] for i in best]
            np.testing.assert_allclose([p for _, p in candidates], probabilities[best], rtol=1e-4)


def test_probabilities_fall_and_special_tokens_are_no_answer() -> None:
    best = len(WORDS) + 2
    for filled in fill_mask(TrainedModel("", PARAMS, CONFIG, TOKENIZER), TEXTS, best=best):
        for candidates in filled.predictions:
            probabilities = [probability for _, probability in candidates]
            assert probabilities == sorted(probabilities, reverse=True)
            assert 0 < sum(probabilities) <= 1
            assert {word for word, _ in candidates} == {*WORDS, "##s", "."}


def test_padding_of_the_embeddings_is_no_answer() -> None:
    config = tiny(vocab_size=TOKENIZER.size + 5)
    params = random_params(config)
    params["mlm_head"]["output_bias"][-5:] = 20.0  # what has no piece would win
    (filled,) = fill_mask(TrainedModel("", params, config, TOKENIZER), TEXTS[:1])
    assert {word for word, _ in filled.predictions[0]} <= set(TOKENIZER.vocab)


def test_a_text_without_a_mask_is_refused() -> None:
    with pytest.raises(UserError, match=r"no \[MASK\] in 'the cat'; write \[MASK\]"):
        fill_mask(TrainedModel("", PARAMS, CONFIG, TOKENIZER), [TEXTS[0], "the cat"])


def test_a_text_longer_than_the_positions_is_refused() -> None:
    fits = "[MASK]" + " the" * (CONFIG.max_length - 3)
    assert len(fill_mask(TrainedModel("", PARAMS, CONFIG, TOKENIZER), [fits])) == 1
    with pytest.raises(UserError, match="a text has 33 tokens, the model 32 positions; shorten it"):
        fill_mask(TrainedModel("", PARAMS, CONFIG, TOKENIZER), [fits + " the"])


def test_what_is_shown() -> None:
    (filled,) = fill_mask(TrainedModel("", PARAMS, CONFIG, TOKENIZER), TEXTS[1:], best=2)
    record = json.loads(json.dumps(dataclasses.asdict(filled)))
    assert record == {"text": TEXTS[1], "predictions": [[list(c) for c in mask] for mask in filled.predictions]}
    text, *lines = str(filled).splitlines()
    assert text == TEXTS[1]
    assert len(lines) == 3
    (word, probability), _ = filled.predictions[0]
    assert lines[0].startswith(f"  {word} {probability:.2f}, ")
