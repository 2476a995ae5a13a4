"""Learning sentencepiece models: the same in every process, nothing printed, bounded."""

import os
import subprocess
import sys

import pytest

from bert_jax.errors import UserError
from bert_jax.text.learn_sentencepiece import MAX_CHARACTERS, learn_sentencepiece, sample
from bert_jax.text.tokenizer import sentencepiece

LEARN_IN_A_PROCESS = """
import hashlib, random
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
words = ["".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyzéßж中", k=2 + i % 9)) for i in range(400)]
texts = [" ".join(random.Random(i).choices(words, k=20)) for i in range(600)]
models = [learn_sentencepiece(texts, 300, kind, num_threads=2, max_sentences=m) for kind, m in
          (("unigram", 200), ("bpe", 200), ("unigram", 10_000), ("unigram", 200))]
assert models[0] == models[3] != models[2]
print(*(hashlib.sha256(model).hexdigest() for model in models))
"""


def test_the_same_in_every_process_and_silent(tmp_path):
    """Also where a sample is taken."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", LEARN_IN_A_PROCESS],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TMPDIR": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout) > 4 * 64
    assert [run.stderr for run in runs] == ["", ""]
    assert list(tmp_path.iterdir()) == []


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
