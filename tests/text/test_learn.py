"""Learning a vocabulary: what it holds, and that each kind is the same in every process."""

import itertools
import os
import subprocess
import sys
import tarfile
from collections import Counter

import numpy as np
import pytest
import tokenizers

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text import learn
from bert_jax.text.learn import count_words, learn_from_counts, merge
from bert_jax.text.tokenizer import load, wordpiece
from tests.toy import learn_wordpiece

LEARN_IN_A_PROCESS = """
import hashlib, random
from bert_jax.text.learn import count_words, learn_from_counts
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
words = ["".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyzéßж中", k=2 + i % 9)) for i in range(3000)]
counts = count_words(" ".join(random.Random(i).choices(words, k=50)) for i in range(400))
print(hashlib.sha256("\\n".join(learn_from_counts(counts, 1500)).encode()).hexdigest())
texts = [f"{a}{b} {b}{c} the {c}{a}" for a in "xayb" for b in "zwcé" for c in "mno日"]
print(learn_byte_bpe(texts, 340).sha256)
texts = [" ".join(random.Random(i).choices(words[:300], k=15)) for i in range(250)]
models = [learn_sentencepiece(texts, 200, kind, num_threads=2, max_sentences=m) for kind, m in
          (("unigram", 100), ("bpe", 100), ("unigram", 10_000), ("unigram", 100))]
assert models[0] == models[3] != models[2]
print(*(hashlib.sha256(model).hexdigest() for model in models))
"""


def test_the_same_in_every_process_and_silent(tmp_path):
    """The many pairs of equal counts make any dependence on hash order or threads show; sentencepiece samples too."""
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", LEARN_IN_A_PROCESS], capture_output=True, text=True, check=True, cwd=tmp_path,
            env={**os.environ, **own, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed},
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0].stdout == runs[1].stdout
    assert [len(digest) for digest in runs[0].stdout.split()] == [64] * 6
    assert [run.stderr for run in runs] == ["", ""]
    assert list(tmp_path.iterdir()) == []


def test_special_tokens_then_sorted_alphabet_then_frequent_pieces():
    texts = ["low lower lowest, newer newest, wider."] * 10
    vocab = learn_wordpiece(texts, 40)
    assert vocab[:5] == SPECIAL_TOKENS
    alphabet = [*",.deilnorstw", *(f"##{c}" for c in "deilnorstw")]  # punctuation stands alone
    assert vocab[5 : 5 + len(alphabet)] == tuple(alphabet)
    assert len(set(vocab)) == len(vocab) <= 40
    tokenizer = wordpiece(vocab)
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
    monkeypatch.setattr(learn, "ALPHABET", 4)
    vocab = learn_wordpiece(["aabb ccdd", "aabb ☃☃ ée"] * 3, 30, lowercase=False, coverage=0.5)
    assert [p for p in vocab[5:] if len(p) == 1] == ["a", "b", "c", "d"]
    assert not any("☃" in piece for piece in vocab)


def test_parts_counted_apart_are_the_same_vocabulary():
    texts = [f"Été {word}s, {word} low lower中文" for word in ("new", "wide", "long", "old") for _ in range(3)]
    parts = [count_words(texts[i::3]) for i in range(3)]
    assert merge(parts) == count_words(texts)
    assert (
        learn_from_counts(merge(parts), 60) == learn_from_counts(merge(parts[::-1]), 60) == learn_wordpiece(texts, 60)
    )
    assert merge(parts)["中"] == 12


def test_counts_do_not_depend_on_when_they_are_normalised(monkeypatch):
    texts = ["Low lower, LOW été! 中文low \U0002b820x \U0002f800 \ufa0e a\u0301b" + " w" * i for i in range(20)]
    whole = count_words(texts)
    monkeypatch.setattr(learn, "RAW_WORDS", 3)
    assert count_words(texts) == whole
    tokenizer = tokenizers.normalizers.BertNormalizer(), tokenizers.pre_tokenizers.BertPreTokenizer()
    words = (w for text in texts for w, _ in tokenizer[1].pre_tokenize_str(tokenizer[0].normalize_str(text)))
    assert whole == Counter(words)


def test_distinct_words_are_bounded(monkeypatch):
    monkeypatch.setattr(learn, "MAX_DISTINCT_WORDS", 100)
    monkeypatch.setattr(learn, "RAW_WORDS", 10)
    counts = count_words(f"common w{i}" for i in range(5000))
    assert len(counts) <= 100
    assert counts["common"] == 5000
    assert len(merge([counts, {f"v{i}": 2 for i in range(90)}, {f"u{i}": 2 for i in range(90)}])) <= 100


def test_the_ideographs_are_those_that_the_tokenizer_sets_apart():
    normalizer = tokenizers.normalizers.BertNormalizer(clean_text=False, strip_accents=False, lowercase=False)
    for block in (range(0x3000, 0xA000), range(0xF000, 0x10000), range(0x1F000, 0x20010), range(0x2A600, 0x2FB00)):
        apart = [normalizer.normalize_str(chr(c)) == f" {chr(c)} " for c in block]
        assert apart == [bool(learn.IDEOGRAPH.match(chr(c))) for c in block]


def test_chinese_gets_the_characters_that_cover_it():
    """2,500 characters, the first the most frequent: far more than the thousand that an alphabet has in any case."""
    texts = [chr(0x4E00 + i) * (1 + 20_000 // (i + 1)) for i in range(2500)]
    tokenizer = wordpiece(learn_wordpiece(texts, 8000))
    ids = np.concatenate(tokenizer.encode_batch(texts))
    assert np.mean(ids == tokenizer.unk_id) < 2e-4
    lines: list[str] = []
    assert set(learn_wordpiece(texts, 3000, note=lines.append)) == set(tokenizer.vocab)  # they may fill the vocabulary
    assert not lines
    assert not any(piece.startswith("##") for piece in tokenizer.vocab)


def test_characters_that_are_left_out_are_said_with_the_size_that_holds_them():
    texts = [chr(0x4E00 + i) * (1 + 20_000 // (i + 1)) for i in range(2500)] + ["龥"]
    lines: list[str] = []
    small = learn_wordpiece(texts, 2005, coverage=1.0, note=lines.append)
    assert sum(piece >= "一" for piece in small) == 2000
    words = 1 + sum(map(len, texts[:-1]))
    unknown = 1 + sum(map(len, texts[2000:-1]))
    assert lines.pop() == (
        "501 of the text's 2,501 characters have no place in the vocabulary, and the "
        f"{unknown / words:.3%} of words with such a character become [UNK]; "
        "--config.vocab.size=2506 --config.vocab.min_frequency=1 holds all that "
        "config.vocab.character_coverage=1.0 asks for"
    )
    assert "龥" in learn_wordpiece(texts, 2506, min_frequency=1, coverage=1.0, note=lines.append)
    assert not lines
    assert len(learn_wordpiece(texts, 2506, coverage=1.0, note=lines.append)) == 2505
    assert "1 of the text's 2,501 characters" in lines[0]
    assert "; --config.vocab.min_frequency=1 holds" in lines[0]


def test_real_chinese_text(shared_data):
    texts = chinese_lines(shared_data("zh_modern_prose"), 8_000)
    published = load(shared_data("vocab") / "bert-base-chinese-vocab.txt")
    learned = wordpiece(learn_wordpiece(texts, 12_000))
    for tokenizer in (published, learned):
        ids = np.concatenate(tokenizer.encode_batch(texts))
        assert np.mean(ids == tokenizer.unk_id) < 5e-3
        assert len(ids) > 0.95 * sum(map(len, texts))  # a character a token
    assert sum(len(piece) == 1 for piece in learned.vocab) > 2500


def chinese_lines(folder, count):
    with tarfile.open(folder / "zh_modern_prose.tar.xz") as archive:
        lines = (line for m in archive if m.isfile() for line in archive.extractfile(m).read().decode().splitlines())
        return list(itertools.islice((line for line in lines if line.strip()), count))


def test_too_small_a_size_and_no_text_are_errors():
    with pytest.raises(UserError, match=r"a vocabulary of 10 pieces has no room .* ask for at least 15"):
        learn_wordpiece(["abcde abcde edcba"], 10)
    with pytest.raises(UserError, match="is empty"):
        learn_wordpiece(["", "  \n"], 100)


def test_learned_pieces_shorten_text():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 6)) for _ in range(40)]
    texts = [" ".join(rng.choice(words, 30)) for _ in range(100)]
    tokenizer = wordpiece(learn_wordpiece(texts, 400))
    assert sum(map(len, tokenizer.encode_batch(texts))) == 30 * 100  # every word has become one piece
