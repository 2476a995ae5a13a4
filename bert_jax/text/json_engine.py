"""The engine of every tokenizer but sentencepiece's own models: the library ``tokenizers``, on a ``tokenizer.json``.

It gives the ids that the library gives. A cache of whole words makes encoding a corpus several times faster. For BERT's
WordPiece, the library deviates from Google's ``tokenization.py`` in two ways: at the end of a word, it converts a
capital sigma to a medial sigma (not a final sigma), and it knows only the punctuation and accents of Unicode 8.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text import roles, tokenizer_json
from bert_jax.text.encoded import Cut
from bert_jax.text.marks import ALPHABET, SPACE, Bytes, Marks, Prefix, Suffix, Underline
from bert_jax.text.panics import ADVICE, check_patterns, refuse_errors
from bert_jax.text.settings import ROLES
from bert_jax.text.words import unspaced

ACCENTS = r"\p{Mn}"  # what BERT strips from decomposed text
CACHED_WORDS = 1 << 19  # about 120 MB
_TEXTS_AHEAD = 512  # the number of texts whose new words the library encodes at once
_NEVER_IN_UTF8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))
PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")  # ASCII punctuation; because of the group, ``split`` keeps the marks
_MEAN_CHARACTERS = 32  # a text whose words are longer on average has no spaces between words: they are not cached
# Normalizers that change text character by character, or change only runs of spaces.
_CHARACTER_STEPS = ("NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "Precompiled", "Strip")
# A character outside ASCII that may change, or be changed by, the space beside it.
BESIDE_SPACE = re.compile(r" [^\w\x00-\x7f]|[^\w\x00-\x7f] ")


class _WordCache:
    """Encodes texts whose ids are the concatenated ids of their words. Threads may share a cache of word -> ids."""

    def __init__(self, split: Callable[[str], list[str]], add: Callable[[set[str], dict[str, bytes]], None]) -> None:
        """
        Args:
          split: returns the words of a text.
          add: encodes each word of a set and puts it into a dictionary: word -> the bytes of its int32 ids.
        """
        self._split, self._add = split, add
        self._cache: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only)."""
        cache, split, result = self._cache, self._split, list[np.ndarray]()
        while len(result) < len(texts):
            try:
                for text in itertools.islice(texts, len(result), None):
                    result.append(np.frombuffer(b"".join(map(cache.__getitem__, split(text))), np.int32))
            except KeyError:  # rare once the cache has filled; checking all words first would be a quarter slower
                cache = self._with_words_of(texts[len(result) : len(result) + _TEXTS_AHEAD])
        return result

    def _with_words_of(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Return the cache after adding the words of ``texts``.

        A full cache becomes the old cache and replaces the previous old cache. Words that are used again are copied
        from the old cache.
        """
        if len(self._cache) > CACHED_WORDS // 2:
            self._old, self._cache = self._cache, {}
        cache, old = self._cache, self._old
        new = set(itertools.chain.from_iterable(map(self._split, texts))).difference(cache)
        known = {word: old[word] for word in new if word in old}
        cache.update(known)
        self._add(new.difference(known), cache)
        return cache


class JsonEngine:
    """The library's tokenizer of a ``tokenizer.json``. Threads may share it. It is pickled as its content."""

    def __init__(self, content: tokenizer_json.Content, where: str = "the tokenizer") -> None:
        """Make the engine of ``content``, a result of ``tokenizer_json.normal``; error messages call it ``where``.

        Raises:
          UserError: the library cannot read the tokenizer, or its pieces do not show where words begin.
        """
        self.content = content
        self.marks = _marks(content, where)
        # Special tokens in a text are plain text, as in Google's original. All other added tokens stay whole.
        hidden = _hidden(content)
        self._library = _library(content, where, hidden)
        self._library.encode_special_tokens = True
        ids = tokenizer_json.ids_of(content)
        self.vocab: tuple[str, ...] = tuple(sorted(ids, key=ids.__getitem__))
        if wrong := _misnumbered(ids, self.vocab):
            raise UserError(f"{where} does not number its {len(ids)} pieces from 0 to {len(ids) - 1}: {wrong}")
        if self._library.get_vocab() != {hidden.get(piece, piece): i for piece, i in ids.items()}:
            raise UserError(f"{where} gives an added token that is a piece another id than the piece's; correct the id")
        self.role_ids = roles.special_of(content)
        self.special_ids = tuple(self.role_ids.values())
        entries = [entry for entry in content["added_tokens"] if entry["id"] not in self.special_ids]
        self.added_ids = frozenset(entry["id"] for entry in entries)
        self.layout = roles.layout_in(content)
        with refuse_errors(f"{where} cannot be used"):
            self.lowercase = "B" not in self.normalized("B")
            self.joiner = "" if self.words("a") == self.words(" a") else " "
        check_patterns(content, self._library, where)
        self._cache = None if any(map(_crosses_words, entries)) else self._word_cache()

    def __reduce__(self) -> tuple[type[JsonEngine], tuple[tokenizer_json.Content]]:
        return JsonEngine, (self.content,)

    @functools.cached_property
    def is_bert(self) -> bool:
        """Return whether a ``vocab.txt`` says everything: the rules are BERT's, and no token is added."""
        return self.has_bert_rules and self.content == tokenizer_json.of_bert(self.vocab, self.lowercase)

    @functools.cached_property
    def has_bert_rules(self) -> bool:
        """Return whether a ``vocab.txt`` and the ``switches`` say everything: BERT's rules, and no token is added."""
        named = tuple(self.vocab[i] for i in self.special_ids) == SPECIAL_TOKENS
        return named and not self.added_ids and self.content == self.by_bert()

    def by_bert(self) -> tokenizer_json.Content | None:
        """Return the content of BERT's tokenizer with these pieces and ``switches``; None if this is no WordPiece."""
        if self.content["model"]["type"] != "WordPiece":
            return None
        names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
        case, accents, ideographs = map(self.switches.__getitem__, names)
        return tokenizer_json.of_bert(self.vocab, case, accents, ideographs)

    @functools.cached_property
    def switches(self) -> dict[str, bool]:
        """Return name -> whether the rule is on, for the rules that have names in ``tokenizer_config.json``."""
        kind, accented = self.content["model"]["type"], unicodedata.normalize("NFC", self.normalized("é"))
        steps = [*roles.flat_steps(self.content["pre_tokenizer"], "pretokenizers")]
        first = [step.get("add_prefix_space", True) for step in steps if step["type"] == "ByteLevel"]
        if kind not in ("WordPiece", "Unigram"):
            return {"add_prefix_space": first[0]} if first else {}
        if kind == "Unigram":  # a table of replacements may do the same, whatever the switches say
            does, kept = tokenizer_json.steps_of(self.content), accented == "é"
            case = {"do_lower_case": self.lowercase} if "Lowercase" in does or not self.lowercase else {}
            return case | ({"keep_accents": kept} if "StripAccents" in does or kept else {})
        split = " " in self.normalized("a中a")
        return {"do_lower_case": self.lowercase, "strip_accents": accented != "é", "tokenize_chinese_chars": split}

    @property
    def file_name(self) -> str:
        """Return the name of the tokenizer's file in a folder."""
        return "vocab.txt" if self.is_bert else tokenizer_json.FILE_NAME

    @property
    def sha256(self) -> str:
        """Return the hash of everything that the ids depend on."""
        own = [f"lowercase={self.lowercase}", *self.vocab]
        facts = own if self.is_bert else [json.dumps(self.content, sort_keys=True)]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def file(self, name: str) -> bytes:
        """Return what a file of the tokenizer holds: pieces by line if ``name`` ends in ``.txt``, else the content."""
        return ("".join(f"{piece}\n" for piece in self.vocab) if name.endswith(".txt") else self.json()).encode()

    @property
    def as_json(self) -> JsonEngine:
        """Return this engine, which is the engine of a ``tokenizer.json`` already."""
        return self

    def json(self) -> str:
        """Return the ``tokenizer.json``, with the special tokens and their template."""
        return json.dumps(self.content, ensure_ascii=False, indent=1) + "\n"

    def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only); the library encodes only words that are not in the cache."""
        if self._cache is None:
            return list(map(_int32, self._bytes_of_ids(texts)))
        cache, fits = self._cache
        if fits is None:
            return cache.encode(texts)
        fitting = list(map(fits, texts))
        words = iter(cache.encode(list(itertools.compress(texts, fitting))))
        others = self._bytes_of_ids([text for text, fit in zip(texts, fitting, strict=True) if not fit])
        return [next(words) if fit else _int32(next(others)) for fit in fitting]

    def cut(self, text: str, special_tokens: bool = False) -> Cut:
        """Return the pieces of ``text``. If ``special_tokens``, special tokens in it are recognised by either name."""
        library, others = self._with_special_tokens if special_tokens else (self._library, {})
        with refuse_errors("a text cannot be cut into pieces"):
            encoding = library.encode(text, add_special_tokens=False)
        return Cut([others.get(i, i) for i in encoding.ids], encoding.tokens, encoding.offsets)

    def text(self, pieces: Sequence[str]) -> str:
        """Return the text of ``pieces``."""
        text: str = self._library.decoder.decode(list(pieces))
        return unspaced(text) if isinstance(self.marks, Prefix) else text

    @functools.cached_property
    def _with_special_tokens(self) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """Return a tokenizer that finds special tokens in a text, and a dict: id of BERT's name -> id of the token."""
        library, ids = _library(self.content, "the tokenizer", {}), tokenizer_json.ids_of(self.content)
        entries = {entry["id"]: entry for entry in self.content["added_tokens"]}
        names: dict[int, int] = {}
        for role, name in zip(ROLES, SPECIAL_TOKENS, strict=True):
            if name not in ids and (i := self.role_ids.get(role)) is not None:
                spaces = {side: entries[i][side] for side in ("lstrip", "rstrip")}
                library.add_special_tokens([AddedToken(name, normalized=False, **spaces)])
                names[len(ids) + len(names)] = i
        return library, names

    def normalized(self, text: str) -> str:
        """Return ``text`` as it is before it is split into words."""
        return self._library.normalizer.normalize_str(text) if self._library.normalizer else text

    def words(self, text: str) -> list[str]:
        """Return the words into which a text is split before they are cut into pieces, normalised."""
        splitter, text = self._library.pre_tokenizer, self.normalized(text)
        return [word for word, _ in splitter.pre_tokenize_str(text)] if splitter else [text]

    def _bytes_of_ids(self, texts: Sequence[str]) -> Iterator[bytes]:
        with refuse_errors("a text cannot be cut into pieces"):
            encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        for encoding in encodings:
            yield np.array(encoding.ids, np.int32).tobytes()

    def _word_cache(self) -> tuple[_WordCache, Callable[[str], bool] | None] | None:
        """Return a cache of words, and a test whether a text is encoded word by word (None: every text is).

        Return None if no text is. A text is encoded word by word if its only white space is single spaces, and the
        rules look at no two words.
        """
        splitters = roles.flat_steps(self.content["pre_tokenizer"], "pretokenizers")
        types = [step["type"] for step in splitters]
        changes = roles.flat_steps(self.content["normalizer"], "normalizers")
        if types == ["BertPreTokenizer"] and all(step["type"] == "BertNormalizer" for step in changes):
            add = self._add_words if self.added_ids else self._add_bert_words
            return _WordCache(lambda text: text.split(" "), add), None
        by_character = all(step["type"] in _CHARACTER_STEPS or _spares_words(step) for step in changes)
        if not by_character or not splitters or not splitters[-1].get("use_regex", True):
            return None
        if types == ["ByteLevel"]:
            # The space before a word belongs to the word. A first word without a space is marked by a space.
            kept = all(step["type"] == "NFC" for step in changes)
            return _WordCache(_words_with_space, self._add_words_with_space), functools.partial(_splits, kept)
        always = (
            not any(entry["normalized"] for entry in self.content["added_tokens"])
            and splitters[-1].get("prepend_scheme") in ("always", "first")
            and splitters[-1].get("split", True)
        )
        if types in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]) and always:
            return _WordCache(lambda text: text.split(" "), self._add_words), _splits_between_letters
        return None

    def _add_words(self, new: set[str], cache: dict[str, bytes]) -> None:
        words = list(new)
        cache.update(zip(words, self._bytes_of_ids(words), strict=True))

    def _add_words_with_space(self, new: set[str], cache: dict[str, bytes]) -> None:
        words = [word[1:] if word.startswith(" ") else f" {word}" for word in new]
        cache.update(zip(new, self._bytes_of_ids(words), strict=True))

    def _add_bert_words(self, new: set[str], cache: dict[str, bytes]) -> None:
        # Punctuation is split off first, so that "word," and "word." both need only the ids of "word".
        split = {word: PUNCTUATION.split(word) for word in new}
        self._add_words(set(itertools.chain.from_iterable(split.values())).difference(cache), cache)
        for word, pieces in split.items():
            cache[word] = b"".join(map(cache.__getitem__, pieces))


def _misnumbered(ids: Mapping[str, int], vocab: Sequence[str]) -> str | None:
    """Return the first mistake in the ids of the pieces ``vocab``, which are sorted by id; None if there is none."""
    for i, piece in enumerate(vocab):
        if ids[piece] < i:
            return f"{vocab[i - 1]!r} and {piece!r} both have the id {ids[piece]}; correct the id of one of them"
        if ids[piece] > i:
            return (
                f"no piece has the id {i}, but {piece!r} has {ids[piece]} (a token of added_tokens.json or "
                "tokenizer_config.json that is a piece already keeps the piece's id); correct the ids, or copy "
                "the whole folder again"
            )
    return None


def _int32(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.int32)


def _hidden(content: tokenizer_json.Content) -> dict[str, str]:
    """Return piece -> a name that no text has, for pieces of a Unigram model that text must not be cut into."""
    special = set(roles.special_of(content).values()) - {content["model"].get("unk_id")}
    unigram = content["model"]["type"] == "Unigram"
    return {piece: f"{piece}\uffff" for piece, i in tokenizer_json.ids_of(content).items() if unigram and i in special}


def _library(content: tokenizer_json.Content, where: str, names: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Return the library's tokenizer, without a template. Only tokens that have a role are special in it.

    Args:
      names: piece -> another name for it.
    """
    special, model = {*roles.special_of(content).values()}, content["model"]
    added = [
        {**entry, "content": names.get(entry["content"], entry["content"]), "special": entry["id"] in special}
        for entry in content["added_tokens"]
    ]
    if names:
        model = {**model, "vocab": [[names.get(piece, piece), score] for piece, score in model["vocab"]]}
    plain = content | {"post_processor": None, "added_tokens": added, "model": model}
    with refuse_errors(f"{where} is damaged, or a {content['model']['type']} tokenizer that cannot be read"):
        return tokenizers.Tokenizer.from_str(json.dumps(plain))


def _marks(content: tokenizer_json.Content, where: str) -> Marks:
    """Return how the pieces show where words begin. Raises ``UserError`` if they do not."""
    kind, steps = content["model"]["type"], tokenizer_json.steps_of(content)
    inner = roles.flat_steps(content["normalizer"], "normalizers")
    if "ByteLevel" in steps:
        vocab = content["model"]["vocab"]
        if lost := [byte for byte in range(256) if byte not in _NEVER_IN_UTF8 and ALPHABET[byte] not in vocab]:
            raise UserError(
                f"{where} has no piece for {len(lost)} of the bytes of text, such as 0x{lost[0]:02X}; characters with "
                "them would be dropped: give a vocabulary that begins with all 256 bytes"
            )
        return Bytes()
    if "Metaspace" in steps or any(step.get("content") == SPACE for step in inner):
        return Underline()
    if kind in ("WordPiece", "WordLevel"):
        return Prefix(content["model"].get("continuing_subword_prefix", "##"))
    if kind == "BPE" and "BertPreTokenizer" in steps and (suffix := content["model"].get("end_of_word_suffix")):
        return Suffix(suffix)
    raise UserError(
        f"{where} is a {kind} tokenizer whose pieces do not show where words begin (its pre_tokenizer is neither "
        f"ByteLevel nor Metaspace); {ADVICE}"
    )


def _crosses_words(entry: Mapping[str, Any]) -> bool:
    """Return whether an added token needs more than one word, or changes the word after it."""
    token = entry["content"]
    return bool(entry["rstrip"] or (" " in token and not token.startswith("  ")))


def _spares_words(step: Mapping[str, Any]) -> bool:
    """Return whether a step of a normaliser leaves single spaces as they are, and looks at no two words."""
    pattern = step.get("pattern", {})
    by_pattern = pattern.get("Regex") in (" {2,}", ACCENTS)
    return step["type"] == "Replace" and (by_pattern or " " not in pattern.get("String", " "))


def _splits(kept: bool, text: str) -> bool:
    """Return whether the only white space in ``text`` is single spaces; ``isprintable`` excludes all other white space.

    Args:
      kept: whether the normaliser keeps spaces and what stands beside them, outside ASCII too.
    """
    return (
        text.isprintable()
        and "  " not in text
        and len(text) < _MEAN_CHARACTERS * (text.count(" ") + 1)
        and (kept or text.isascii())
    )


def _splits_between_letters(text: str) -> bool:
    return _splits(True, text) and text.strip(" ") == text and (text.isascii() or not BESIDE_SPACE.search(text))


def _words_with_space(text: str) -> list[str]:
    first, *others = text.split(" ")
    return [f" {first}", *others] if first else others
