"""Learns a WordPiece vocabulary. The same text always gives the same vocabulary.

The trainer of ``tokenizers`` breaks ties by the ids of its symbols, and numbers new symbols in the order of a hash
map, which differs from process to process. Here every symbol has its id before the trainer sees a word: the symbols of
the sorted alphabet (``c`` and ``##c``) are registered as if they were special tokens.

Counting and learning are separate, so that the parts of a corpus can be counted anywhere: call ``count_words`` for each
part, ``merge`` in the order of the parts, then ``learn_from_counts``.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bert_jax.errors import UserError
from bert_jax.program import Note
from bert_jax.records import SPECIAL_TOKENS, UNK
from bert_jax.text.surrogates import well_formed
from bert_jax.text.tokenizer_json import MAX_WORD_CHARACTERS

ALPHABET = 1000  # number of characters that a vocabulary may always have; rarer characters become [UNK]
COVERAGE = 0.9999  # the share of the text's characters that the alphabet covers, if there is room
MAX_DISTINCT_WORDS = 4_000_000  # beyond this, the rarest words are forgotten
MAX_TRAINING_WORDS = 50_000_000  # if the counts add up to more, all are divided by the same whole number
RAW_WORDS = 1 << 19  # the number of different strings between spaces that are collected before they are normalised
_CHUNK_CHARACTERS = 1 << 20
# The characters that the normaliser sets apart: CJK ideographs, their extensions, and compatibility forms.
IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b920-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


def count_words(texts: Iterable[str], lowercase: bool | None = True, strip_accents: bool | None = None) -> Counter[str]:
    """Return how often each word occurs in ``texts``, such as one part of a corpus.

    Words are counted as the model will see them: cleaned, in lower case (if ``lowercase``), without accents (if
    ``strip_accents``; None: in lower case alone), and with each punctuation mark and each ideograph as a word. Words
    that are too long for the tokenizer are left out.

    At most ``MAX_DISTINCT_WORDS`` words are kept.
    """
    normalizer = normalizers.BertNormalizer(lowercase=bool(lowercase), strip_accents=strip_accents)
    words: Counter[str] = Counter()
    raw: Counter[str] = Counter()  # normalising each distinct string once is several times faster
    for text in texts:
        if not text.isascii():  # each ideograph is a word; in Chinese a string between spaces is mostly a sentence
            text = well_formed(text)
            raw.update(IDEOGRAPH.findall(text))
            text = IDEOGRAPH.sub(" ", text)
        raw.update(text.split())
        if len(raw) > RAW_WORDS:
            words = _bound(_add_normalized(raw, normalizer, words))
            raw = Counter()
    return _bound(_add_normalized(raw, normalizer, words))


def merge(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sum of ``counts``, the word counts of the parts of a corpus.

    The order of the parts matters only if there are more than ``MAX_DISTINCT_WORDS`` words.
    """
    words: Counter[str] = Counter()
    for part in counts:
        words.update(part)
        words = _bound(words)
    return words


def learn_from_counts(
    words: Mapping[str, int], size: int, min_frequency: int = 2, coverage: float = COVERAGE, note: Note | None = None
) -> tuple[str, ...]:
    """Return a vocabulary of at most ``size`` pieces, learned from word counts.

    It has the special tokens, then the alphabet in code point order, then merged pieces by frequency. It is smaller
    than ``size`` if too few pairs occur ``min_frequency`` times.

    Args:
      words: the counts of ``count_words``; their order does not matter.
      coverage: the share of all characters that the alphabet should cover; see ``ALPHABET``.
      note: called with a line if the alphabet covers less.

    Raises:
      UserError: there is no word, or ``size`` is too small for the special tokens and the alphabet.
    """
    if not words:
        raise UserError("the text to learn a vocabulary from is empty; check config.corpus.options")
    words = dict(sorted(words.items()))
    alphabet, lacking = _alphabet(words, min_frequency, size, coverage)
    reserved = [*SPECIAL_TOKENS, *alphabet]
    if size < len(reserved):
        raise UserError(
            f"a vocabulary of {size} pieces has no room for {len(SPECIAL_TOKENS)} special tokens and an alphabet of"
            f" {len(alphabet)}; ask for at least {len(reserved)}, better several times that"
        )
    known, total = set(alphabet), sum(words.values())
    words = {word: count for word, count in words.items() if known.issuperset(word)}
    if lacking and note:
        note(lacking.format(unknown=1 - sum(words.values()) / total))
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=min_frequency, special_tokens=reserved, limit_alphabet=0, show_progress=False
    )
    tokenizer.train_from_iterator(_repeat(words), trainer)
    ids = tokenizer.get_vocab()
    return tuple(sorted(ids, key=ids.__getitem__))


def _bound(words: Counter[str]) -> Counter[str]:
    """Return ``words``, or if there are more than ``MAX_DISTINCT_WORDS``, only the most frequent words.

    In that case at most three quarters of the limit are kept, so that it is seldom reached again.
    """
    floor = 0
    if len(words) > MAX_DISTINCT_WORDS:
        while len(words) > MAX_DISTINCT_WORDS * 3 // 4:
            floor += 1
            words = Counter({word: n for word, n in words.items() if n > floor})
    return words


def _add_normalized(raw: Counter[str], normalizer: Any, words: Counter[str]) -> Counter[str]:
    """Normalise the strings of ``raw``, split them into words, add their counts to ``words``, and return ``words``."""
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for chunk, count in _chunks(raw):
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(chunk)):
            if len(word) <= MAX_WORD_CHARACTERS:
                words[word] += count
    return words


def _alphabet(words: Mapping[str, int], min_frequency: int, size: int, coverage: float) -> tuple[list[str], str]:
    """Return the alphabet, and a line about the characters that it should have and lacks, "" if there are none.

    It has the most frequent characters ``c``, then ``##c`` for each that occurs in longer words, both in code point
    order, which also breaks ties. Punctuation marks and ideographs are words by themselves, so they get no ``##c``. A
    thousand characters are enough for every alphabet; text in ideographs needs several thousand.
    """
    counts: Counter[str] = Counter()
    joined: set[str] = set()
    for word, count in words.items():
        if len(word) > 1:
            joined.update(word)
        for character in word:
            counts[character] += count
    characters = sorted(counts, key=lambda c: (-counts[c], c))
    covered = list(itertools.accumulate(counts[c] for c in characters))
    needed = bisect.bisect_left(covered, coverage * counts.total()) + 1
    pieces = list(itertools.accumulate(1 + (c in joined) for c in characters))
    fitting = bisect.bisect_right(pieces, size - len(SPECIAL_TOKENS))
    frequent = sum(count >= min_frequency for count in counts.values())
    kept = characters[: min(frequent, max(ALPHABET, min(needed, fitting)))]
    lacking = ""
    if left_out := characters[len(kept) : needed]:
        holds = len(SPECIAL_TOKENS) + pieces[needed - 1]
        flags = [f"--config.vocab.size={holds}"] if holds > size else []
        flags += ["--config.vocab.min_frequency=1"] if counts[left_out[-1]] < min_frequency else []
        lacking = (
            f"{len(left_out):,} of the text's {len(counts):,} characters have no place in the vocabulary, and the "
            f"{{unknown:.3%}} of words with such a character become [UNK]; {' '.join(flags)} holds all that "
            f"config.vocab.character_coverage={coverage} asks for"
        )
    return sorted(kept) + [f"##{c}" for c in sorted(kept) if c in joined], lacking


def _repeat(words: Mapping[str, int]) -> Iterator[str]:
    """Yield text in which each word occurs as often as it was counted; the trainer accepts text, but no counts."""
    divisor = -(-sum(words.values()) // MAX_TRAINING_WORDS) or 1
    scaled = {word: round(count / divisor) for word, count in words.items()} if divisor > 1 else words
    for chunk, count in _chunks(scaled):
        at_once = max(1, _CHUNK_CHARACTERS // len(chunk))
        for done in range(0, count, at_once):
            yield f"{chunk} " * min(at_once, count - done)


def _chunks(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield (words, count): words that have the same count, joined by spaces."""
    groups: dict[int, list[str]] = {}
    for word, count in counts.items():
        groups.setdefault(count, []).append(word)
    step = _CHUNK_CHARACTERS // 8
    for count, group in groups.items():
        for start in range(0, len(group), step):
            yield " ".join(group[start : start + step]), count
