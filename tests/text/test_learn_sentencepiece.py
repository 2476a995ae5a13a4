"""Learning sentencepiece models: bounded samples, special tokens, what cannot be learned."""

import pytest

from bert_jax.errors import UserError
from bert_jax.text.learn_sentencepiece import MAX_CHARACTERS, learn_sentencepiece, sample
from bert_jax.text.tokenizer import sentencepiece


def test_a_sample_is_bounded_and_keeps_the_order():
    sentences = [f"sentence {i}" for i in range(1000)]
    kept = sample(iter(sentences), 50)
    assert len(kept) == 50
    assert kept == sorted(kept, key=sentences.index)
    assert set(kept) == set(sample(sentences[::-1], 50))
    assert kept != sentences[:50]
    assert sample(sentences, 5000) == sentences


def test_a_long_line_is_learned_from():
    tokenizer = sentencepiece(learn_sentencepiece(["banana split " * (MAX_CHARACTERS // 12)], 30, "bpe"))
    assert "▁banana" in tokenizer.vocab


def test_special_tokens_in_the_text_are_text():
    tokenizer = sentencepiece(learn_sentencepiece(["the [MASK] of [CLS] [M A S K] of"] * 50, 60, lowercase=False))
    assert tokenizer.vocab.count("[MASK]") == 1
    [ids] = tokenizer.encode_batch(["[MASK]"])
    assert tokenizer.decode(ids) == "[MASK]"
    assert not set(ids.tolist()) & set(tokenizer.special_ids)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_too_small_a_size_and_no_text_are_errors(kind):
    with pytest.raises(UserError, match=r"a vocabulary of 8 pieces has no room .* ask for at least 1\d, better"):
        learn_sentencepiece(["abcde abcde edcba"] * 20, 8, kind)
    with pytest.raises(UserError, match="is empty"):
        learn_sentencepiece(["", "  \n"], 100, kind)
