"""Learning a WordPiece vocabulary, the same one every time from the same text.

The trainer of ``tokenizers`` breaks ties by the ids of its symbols, and numbers new symbols in the order of a hash
map, which differs from process to process. Here every symbol has its id before the trainer sees a word: the sorted
alphabet, ``c`` and ``##c``, is registered as if it were special tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, UNK
from bert_jax.text.wordpiece import MAX_WORD_CHARACTERS, bert_normalizer

MAX_ALPHABET = 1000  # rarer characters become [UNK]: a few emoji or ideographs must not eat a small vocabulary
MAX_DISTINCT_WORDS = 4_000_000  # beyond this, words seen once are forgotten
MAX_TRAINING_WORDS = 50_000_000  # beyond this, all counts are divided by a whole number
CHUNK_CHARACTERS = 1 << 20


def learn_wordpiece(texts: Iterable[str], size: int, lowercase: bool = True, min_frequency: int = 2) -> tuple[str, ...]:
    """At most ``size`` pieces: special tokens, alphabet in code point order, then merged pieces, most frequent first.

    Fewer come out where the text has too few pairs seen ``min_frequency`` times. ``texts`` is read once, and memory
    is bounded by the number of distinct words.

    Raises:
      UserError: there is no text, or ``size`` has no room for the special tokens and the alphabet.
    """
    words = _normalized(_count_words(texts), lowercase)
    if not words:
        raise UserError("the text to learn a vocabulary from is empty; check the paths of the corpus")
    alphabet = _alphabet(words, min_frequency)
    reserved = [*SPECIAL_TOKENS, *alphabet]
    if size < len(reserved):
        raise UserError(
            f"a vocabulary of {size} pieces has no room for {len(SPECIAL_TOKENS)} special tokens and an alphabet of"
            f" {len(alphabet)}; ask for at least {len(reserved)}, better several times that"
        )
    known = set(alphabet)
    words = {word: count for word, count in words.items() if known.issuperset(word)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=min_frequency, special_tokens=reserved, limit_alphabet=0, show_progress=False
    )
    tokenizer.train_from_iterator(_repeated(words), trainer)
    ids = tokenizer.get_vocab()
    return tuple(sorted(ids, key=ids.__getitem__))


def _count_words(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
        if len(counts) > MAX_DISTINCT_WORDS:
            counts = Counter({word: n for word, n in counts.items() if n > 1})
    return counts


def _normalized(counts: Counter[str], lowercase: bool) -> dict[str, int]:
    """Counts of the words that the model will see: lowered, cleaned, punctuation apart. Words that the tokenizer
    gives up on for their length are left out."""
    normalizer, pre_tokenizer = bert_normalizer(lowercase), pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for chunk, count in _chunks(counts):
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(chunk)):
            if len(word) <= MAX_WORD_CHARACTERS:
                words[word] += count
    return words


def _alphabet(words: dict[str, int], min_frequency: int) -> list[str]:
    """The ``MAX_ALPHABET`` most frequent characters, ties by code point; then as ``##c`` those among them that occur in
    longer words (punctuation and ideographs stand alone). Both in code point order."""
    counts: Counter[str] = Counter()
    joined: set[str] = set()
    for word, count in words.items():
        if len(word) > 1:
            joined.update(word)
        for character in word:
            counts[character] += count
    frequent = sorted((c for c in counts if counts[c] >= min_frequency), key=lambda c: (-counts[c], c))
    kept = sorted(frequent[:MAX_ALPHABET])
    return kept + [f"##{c}" for c in kept if c in joined]


def _repeated(words: dict[str, int]) -> Iterator[str]:
    """Text in which each word stands as often as it was counted: the trainer takes no weights."""
    divisor = -(-sum(words.values()) // MAX_TRAINING_WORDS) or 1
    scaled = {word: round(count / divisor) for word, count in words.items()} if divisor > 1 else words
    for chunk, count in _chunks(scaled):
        at_once = max(1, CHUNK_CHARACTERS // len(chunk))
        for done in range(0, count, at_once):
            yield f"{chunk} " * min(at_once, count - done)


def _chunks(counts: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Words of the same count joined by spaces, with that count; a chunk has about ``CHUNK_CHARACTERS``."""
    groups: dict[int, list[str]] = {}
    for word, count in counts.items():
        groups.setdefault(count, []).append(word)
    step = CHUNK_CHARACTERS // 8
    for count, group in groups.items():
        for start in range(0, len(group), step):
            yield " ".join(group[start : start + step]), count
