"""Learning a vocabulary: what it holds, and that it is the same in every process."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text import learn
from bert_jax.text.learn import learn_wordpiece
from bert_jax.text.wordpiece import WordPiece

LEARN_IN_A_PROCESS = """
import hashlib, random
from bert_jax.text.learn import learn_wordpiece
words = ["".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyzéßж中", k=2 + i % 9)) for i in range(3000)]
texts = [" ".join(random.Random(i).choices(words, k=50)) for i in range(400)]
print(hashlib.sha256("\\n".join(learn_wordpiece(texts, 1500)).encode()).hexdigest())
"""


def test_the_same_in_every_process():
    """The many pairs of equal counts make any dependence on hash order or threads show."""
    digests = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        run = subprocess.run(
            [sys.executable, "-c", LEARN_IN_A_PROCESS], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(run.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == hashlib.sha256().digest_size * 2


def test_special_tokens_then_sorted_alphabet_then_frequent_pieces():
    texts = ["low lower lowest, newer newest, wider."] * 10
    vocab = learn_wordpiece(texts, 40)
    assert vocab[:5] == SPECIAL_TOKENS
    alphabet = [*",.deilnorstw", *(f"##{c}" for c in "deilnorstw")]  # punctuation stands alone
    assert vocab[5 : 5 + len(alphabet)] == tuple(alphabet)
    assert len(set(vocab)) == len(vocab) <= 40
    tokenizer = WordPiece(vocab)
    assert len(tokenizer.encode_batch(["low"])[0]) == 1
    assert tokenizer.unk_id not in tokenizer.encode_batch(["slower widest"])[0]


def test_counts_and_not_order_decide():
    texts = ["abc abd abe", "xyz " * 50, "abc"]
    assert learn_wordpiece(texts, 40) == learn_wordpiece(texts[::-1], 40)
    assert "xyz" in learn_wordpiece(texts, 40)


def test_lowercase_strips_accents_and_cased_does_not():
    texts = ["Été ÉTÉ été"] * 5
    assert "ete" in learn_wordpiece(texts, 50)
    assert "Été" in learn_wordpiece(texts, 50, lowercase=False)


def test_words_keep_their_weight_when_counts_are_divided(monkeypatch):
    """Dividing all counts by a whole number leaves the order of the merges as it was."""
    texts = ["aaa " * 60 + "bbb " * 30 + "ccc " * 10] * 40
    whole = learn_wordpiece(texts, 30)
    monkeypatch.setattr(learn, "MAX_TRAINING_WORDS", 1000)
    assert learn_wordpiece(texts, 30) == whole


def test_rare_characters_do_not_eat_the_vocabulary(monkeypatch):
    monkeypatch.setattr(learn, "MAX_ALPHABET", 4)
    vocab = learn_wordpiece(["aabb ccdd", "aabb ☃☃ ée"] * 3, 30, lowercase=False)
    assert [p for p in vocab[5:] if len(p) == 1] == ["a", "b", "c", "d"]
    assert not any("☃" in piece for piece in vocab)


def test_too_small_a_size_and_no_text_are_errors():
    with pytest.raises(UserError, match=r"a vocabulary of 10 pieces has no room .* ask for at least 15"):
        learn_wordpiece(["abcde abcde edcba"], 10)
    with pytest.raises(UserError, match="is empty"):
        learn_wordpiece(["", "  \n"], 100)


def test_learned_pieces_shorten_text():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 6)) for _ in range(40)]
    texts = [" ".join(rng.choice(words, 30)) for _ in range(100)]
    tokenizer = WordPiece(learn_wordpiece(texts, 400))
    assert sum(map(len, tokenizer.encode_batch(texts))) == 30 * 100  # every word has become one piece
