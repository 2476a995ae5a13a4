"""Agreement with Google's tokenization.py, re-derived here in plain Python from its description."""

import functools
import random
import unicodedata

import pytest

from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.tokenizer import wordpiece

CJK = [
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
]


def google_words(text: str, lowercase: bool) -> list[str]:
    cleaned = []
    for c in text:
        if c in "\t\n\r" or unicodedata.category(c) == "Zs":
            cleaned.append(" ")
        elif c in "\0\ufffd" or unicodedata.category(c) in ("Cc", "Cf"):
            continue
        elif any(low <= ord(c) <= high for low, high in CJK):
            cleaned.append(f" {c} ")
        else:
            cleaned.append(c)
    words = []
    for word in "".join(cleaned).split():
        if lowercase:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        parts = [""]
        for c in word:
            parts += [c, ""] if is_punctuation(c) else []
            if not is_punctuation(c):
                parts[-1] += c
        words += [p for p in parts if p]
    return words


def is_punctuation(c: str) -> bool:
    code = ord(c)
    in_ascii = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return in_ascii or unicodedata.category(c).startswith("P")


def google_pieces(word: str, vocab: set[str], limit: int = 100) -> list[str]:
    pieces: list[str] = []
    start = 0
    while start < len(word):
        for stop in range(len(word), start, -1):
            piece = word[start:stop] if start == 0 else f"##{word[start:stop]}"
            if piece in vocab:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = stop
    return ["[UNK]"] if len(word) > limit else pieces


def settled(c: str) -> bool:
    """Whether Python and the ``tokenizers`` library agree on what ``c`` is: the library's tables are of Unicode 8, so
    characters that came, or changed their category, after Unicode 3.2 are left out. So are surrogates, private use
    and unassigned code points, which Google treated otherwise later, and the capital sigma (see ``text.wordpiece``)."""
    category = unicodedata.category(c)
    return category not in ("Cs", "Co", "Cn") and category == unicodedata.ucd_3_2_0.category(c) and c != "Σ"


@functools.cache
def random_strings(count: int, seed: int) -> list[str]:
    """Strings of common and uncommon characters of all planes."""
    rng = random.Random(seed)
    ranges = [
        *[(0x20, 0x7E)] * 6,
        *[(0xA0, 0x24F)] * 2,
        *((0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x1FFF), (0x2000, 0x206F), (0x3000, 0x30FF), (0x4E00, 0x4F00)),
        *((0xAC00, 0xACFF), (0x0, 0xFFFF), (0xFE00, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x2FA1F), (0x0, 0x1F)),
    ]
    strings = []
    for _ in range(count):
        pool = rng.choices(ranges, k=rng.randint(1, 4))
        text = (" " if rng.random() < 0.1 else chr(rng.randint(*rng.choice(pool))) for _ in range(rng.randint(0, 60)))
        strings.append("".join(filter(settled, text)))
    return strings


@pytest.mark.parametrize("count", [3_000, pytest.param(30_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("lowercase", [True, False])
def test_random_strings(lowercase, count):
    strings = [*random_strings(count, seed=7), "", " ", "a" * 100, "a" * 101, "[CLS] [MASK]"]
    strings += ["\u2028a\u2029b\x85c\x1cd", "İstanbul ǅ ŉ ﬁ"]
    words = [google_words(text, lowercase) for text in strings]
    rng = random.Random(1)
    pieces = dict.fromkeys(SPECIAL_TOKENS)
    for word in (w for line in words for w in line):  # most of what occurs, so that [UNK] hides little
        start, stop = sorted(rng.choices(range(len(word) + 1), k=2))
        for piece in (word[0], *(f"##{c}" for c in word[1:]), word[:stop], f"##{word[start:stop]}"):
            if rng.random() < 0.9 and piece not in ("", "##"):
                pieces[piece] = None
    known, tokenizer = set(pieces), wordpiece(tuple(pieces), lowercase)
    expected = [[p for w in line for p in google_pieces(w, known)] for line in words]
    ours = [[tokenizer.vocab[i] for i in line] for line in tokenizer.encode_batch(strings)]
    different = [(text, e, o) for text, e, o in zip(strings, expected, ours, strict=True) if e != o]
    assert different == []
    counted = [p for line in expected for p in line]
    assert counted.count("[UNK]") < 0.3 * len(counted)  # the comparison has power


def test_golden_cases():
    vocab = (*SPECIAL_TOKENS, "un", "##want", "##ed", "runn", "##ing", "hello", "how", "are", "you", "a", *",!?中文")
    tokenizer = wordpiece(vocab)
    cases = {
        "UNwantéd,running": "un ##want ##ed , runn ##ing",  # of Google's own tests
        "  \tHeLLo!how  \n Are yoU?  ": "hello ! how are you ?",
        "H\u00e9llo": "hello",
        "a中文a": "a 中 文 a",
        "unwantedX running": "[UNK] runn ##ing",
        "hello\u00a0how\u200bare": "hello [UNK]",
        "a\u0000\ufffd \u00ad": "a",
        "[MASK]": "[UNK] [UNK] [UNK]",
    }
    for text, expected in cases.items():
        assert " ".join(vocab[i] for i in tokenizer.encode_batch([text])[0]) == expected, text
