"""WordPiece: text to ids and back, exactly as the published BERT tokenizers do it.

This is a thin wrapper over the ``tokenizers`` library. It adds a cache of whole words, which makes encoding a corpus
several times faster. The library deviates from Google's ``tokenization.py`` in two ways: at the end of a word, it
converts a capital sigma to a medial sigma (not a final sigma), and it knows only the punctuation and accents of
Unicode 8.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import os
import re
from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.records import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from bert_jax.storage import files, reading
from bert_jax.text import wordpiece_json
from bert_jax.text.encoded import Encoded, Part, lay_out
from bert_jax.text.surrogates import retried, well_formed
from bert_jax.text.word_cache import WordCache
from bert_jax.text.words import unspaced

MAX_WORD_CHARACTERS = 100  # a longer word becomes [UNK], as in the release of 2018-10 and all later libraries
PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")  # ASCII punctuation; because of the group, ``split`` keeps the marks


def read_vocab(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the pieces of a ``vocab.txt``, one on each line; the line number is the id.

    Raises:
      UserError: the file is missing, not UTF-8 (with the byte offset) or empty, has a piece twice, or lacks a special
        token.
    """
    source = files.as_path(path)
    if not source.exists():
        raise UserError(f"no vocabulary file {path}; learn one with `bert-jax vocab` or name a published vocab.txt")
    try:
        text = reading.read_bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 at byte offset {error.start}; save the vocabulary as UTF-8") from error
    return check_vocab(lines_of(text), str(path))


def lines_of(text: str) -> list[str]:
    """Return the lines of a ``vocab.txt``. Only a line feed ends a line: U+2028 and the like are published pieces."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def check_vocab(pieces: Sequence[str], where: str) -> tuple[str, ...]:
    """Return ``pieces`` as a tuple. Raises ``UserError``, with ``where`` in it, if ``pieces`` is not a vocabulary."""
    if not any(pieces):
        raise UserError(f"{where} is empty; a vocabulary has one piece a line")
    missing = [token for token in SPECIAL_TOKENS if token not in pieces]
    if missing:
        raise UserError(
            f"{where} lacks the special token{'s' * (len(missing) > 1)} {' '.join(missing)}; add each as a line of its"
            " own (BERT's vocabularies use capitals), or learn a vocabulary with `bert-jax vocab`"
        )
    if len(set(pieces)) < len(pieces):
        first: dict[str, int] = {}
        for number, piece in enumerate(pieces, 1):
            if first.setdefault(piece, number) != number:
                raise UserError(f"{where} has {piece!r} on line {first[piece]} and on line {number}; keep one of them")
    return tuple(pieces)


class WordPiece:
    """A WordPiece tokenizer. Threads may share it. It is pickled as its vocabulary."""

    file_name = "vocab.txt"
    pair_separators = 1
    joiner = ""

    def __init__(self, vocab: Sequence[str], lowercase: bool = True) -> None:
        self.vocab = check_vocab(vocab, "the vocabulary")
        self.lowercase = lowercase
        self._ids = {piece: i for i, piece in enumerate(self.vocab)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (self._ids[t] for t in SPECIAL_TOKENS)
        self.special_ids: tuple[int, ...] = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)
        # Special tokens are not registered here: "[MASK]" in a corpus is three plain words, as in Google's original.
        self._tokenizer = tokenizers.Tokenizer(
            models.WordPiece(
                vocab=self._ids,
                unk_token=UNK,
                max_input_chars_per_word=MAX_WORD_CHARACTERS,
                continuing_subword_prefix="##",
            )
        )
        self._tokenizer.normalizer = bert_normalizer(lowercase)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
        self._words = WordCache(operator.methodcaller("split", " "), self._add_words)

    @classmethod
    def load(cls, path: str | os.PathLike[str], lowercase: bool | None = None) -> WordPiece:
        """Return the tokenizer of a ``vocab.txt``, published or learned, or of a Hugging Face ``tokenizer.json``.

        Args:
          lowercase: whether text is converted to lower case. If None, a ``tokenizer.json`` says it, and a ``vocab.txt``
            is taken as lower-case.
        """
        if os.fspath(path).endswith(".json"):
            vocab, lowercase = wordpiece_json.read(path, lowercase)
            return cls(check_vocab(vocab, str(path)), lowercase)
        return cls(read_vocab(path), lowercase is not False)

    def __reduce__(self) -> tuple[type[WordPiece], tuple[tuple[str, ...], bool]]:
        return WordPiece, (self.vocab, self.lowercase)

    @property
    def size(self) -> int:
        """Return V, the number of pieces."""
        return len(self.vocab)

    @functools.cached_property
    def sha256(self) -> str:
        """Return the identity of the tokenizer: the hash of everything that its ids depend on."""
        return hashlib.sha256("\n".join([f"lowercase={self.lowercase}", *self.vocab]).encode()).hexdigest()

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """Return whether each piece continues a word, bool [V]."""
        return np.array([piece.startswith("##") and len(piece) > 2 for piece in self.vocab])

    @functools.cached_property
    def surfaces(self) -> tuple[tuple[str, bool | None], ...]:
        """Return, for each piece, its text and whether it continues a word, [V]; see ``Tokenizer``."""
        continuations = self.is_continuation.tolist()
        return tuple(
            (piece, None) if i in self.special_ids else (piece[2:] if goes_on else piece, goes_on)
            for i, (piece, goes_on) in enumerate(zip(self.vocab, continuations, strict=True))
        )

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only), without special tokens around it.

        Special tokens in a text are read as plain text. A space always ends a word, so a text's ids are the
        concatenated ids of its space-separated words. The library encodes only words that are not in the cache.
        """
        return retried(self._words.encode, texts)

    def _add_words(self, new: set[str], cache: dict[str, bytes]) -> None:
        # Punctuation is split off first, so that "word," and "word." both need only the ids of "word".
        parts = {word: PUNCTUATION.split(word) for word in new}
        unknown = list(set(itertools.chain.from_iterable(parts.values())).difference(cache))
        for word, encoding in zip(unknown, self._tokenizer.encode_batch_fast(unknown), strict=True):
            cache[word] = np.array(encoding.ids, np.int32).tobytes()
        for word, pieces in parts.items():
            cache[word] = b"".join(map(cache.__getitem__, pieces))

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None, special_tokens_in_text: bool = False
    ) -> Encoded:
        """Return ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``, cut and padded to ``max_length`` if given.

        While the input is too long, the longer of the two texts (the second on a tie) loses its last piece. If
        ``special_tokens_in_text``, ``[MASK]`` and the other special tokens are recognised in the texts.
        """
        tokenizer = self._with_special_tokens if special_tokens_in_text else self._tokenizer
        texts = [well_formed(t) for t in ([text] if pair is None else [text, pair])]
        encodings = [tokenizer.encode(t, add_special_tokens=False) for t in texts]
        parts = [Part(e.ids, e.offsets, [self._starts_word(i) for i in e.ids]) for e in encodings]
        return lay_out(parts, self.vocab, self.cls_id, self.sep_id, self.pad_id, max_length)

    def _starts_word(self, token: int) -> bool:
        unknown_word = token == self.unk_id
        return unknown_word or not (self.is_continuation[token] or token in self.special_ids)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the readable text of ``ids``: pieces joined to words, without ``[PAD]``, ``[CLS]`` and ``[SEP]``."""
        silent = {self.pad_id, self.cls_id, self.sep_id}
        return unspaced(self._tokenizer.decoder.decode([self.vocab[i] for i in ids if i not in silent]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``vocab.txt``, whole or not at all."""
        files.write_text(path, "".join(f"{piece}\n" for piece in self.vocab))

    def tokenizer_json(self) -> str:
        """Return a Hugging Face ``tokenizer.json`` that gives the same ids, with special tokens and their template."""
        return self._with_special_tokens.to_str(pretty=True)

    @functools.cached_property
    def _with_special_tokens(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.add_special_tokens([PAD, UNK, CLS, SEP, MASK])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(CLS, self.cls_id), (SEP, self.sep_id)],
        )
        return tokenizer


def bert_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """Return BERT's normaliser: it drops control characters and puts spaces around CJK ideographs.

    If ``lowercase``, it also converts text to lower case and strips accents.
    """
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
