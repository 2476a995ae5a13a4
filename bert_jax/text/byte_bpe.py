"""Byte-level BPE: text to ids and back with a published tokenizer (RoBERTa's, ModernBERT's) or a learned one.

Text is read as UTF-8 bytes, so no text is unknown. This is a thin wrapper over the ``tokenizers`` library and gives the
same ids. The wrapper finds special tokens by their roles, such as "mask" (their names in a corpus are read as plain
text). It also gives word starts, and spans without the space before a word.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from bert_jax.errors import UserError
from bert_jax.records import MASK, SPECIAL_TOKENS, UNK
from bert_jax.storage import files
from bert_jax.text import byte_level
from bert_jax.text.byte_level import ALPHABET, ROLES
from bert_jax.text.encoded import Encoded, Part, lay_out
from bert_jax.text.surrogates import retried, well_formed
from bert_jax.text.word_cache import WordCache

BYTE_OF = {character: byte for byte, character in enumerate(ALPHABET)}
# Normalizers that change ASCII text character by character.
NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase")
MEAN_CHARACTERS = 32  # if a text's words are longer on average, it has no spaces between words, and they are not cached
NOT_WHITE = "\x1c\x1d\x1e\x1f"  # white space for Python, but not for Unicode


class ByteBpe:
    """A byte-level BPE tokenizer. Threads may share it. It is pickled as its ``tokenizer.json``."""

    file_name = byte_level.FILE_NAME

    def __init__(self, content: str, where: str = "the tokenizer") -> None:
        """Read ``content``, the text of a ``tokenizer.json``; error messages call it ``where``.

        Raises:
          UserError: the tokenizer is of another kind, is damaged, or lacks a special token that BERT needs.
        """
        self._content = byte_level.prepared(byte_level.parsed(content, where), where)
        self._tokenizer = _engine(self._content, where)
        added = {entry["content"]: entry for entry in self._content["added_tokens"]}
        ids = self._content["model"]["vocab"] | {token: entry["id"] for token, entry in added.items()}
        self.vocab: tuple[str, ...] = tuple(sorted(ids, key=ids.__getitem__))
        if list(map(ids.__getitem__, self.vocab)) != list(range(len(ids))) or self._tokenizer.get_vocab() != ids:
            raise UserError(f"{where} does not number its {len(ids)} pieces from 0 to {len(ids) - 1}; copy it again")
        if foreign := [piece for piece in self.vocab if piece not in added and not BYTE_OF.keys() >= set(piece)]:
            raise UserError(f"{where} has the piece {foreign[0]!r}, which does not stand for bytes; copy it again")
        roles = byte_level.roles_of(self._content)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (roles[role] for role in ROLES)
        self.special_ids: tuple[int, ...] = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)
        self.pair_separators, self._pair_type = byte_level.pair_form(self._content)
        self.joiner = "" if self._puts_space else " "
        normalizer = self._tokenizer.normalizer
        self.lowercase = normalizer is not None and "B" not in normalizer.normalize_str("B")
        self._added = added
        self._words = WordCache(self._words_of, self._add_words)
        self._bytes = tuple(p.encode() if p in added else bytes(map(BYTE_OF.__getitem__, p)) for p in self.vocab)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ByteBpe:
        """Return the tokenizer of a ``tokenizer.json``, or of a ``vocab.json`` and a ``merges.txt``.

        Args:
          path: the ``tokenizer.json``, or either file of the other form.

        Raises:
          UserError: there is no such file, or it is of another kind.
        """
        return cls(json.dumps(byte_level.read(path)), str(path))

    def __reduce__(self) -> tuple[type[ByteBpe], tuple[str]]:
        return ByteBpe, (self.tokenizer_json(),)

    @property
    def size(self) -> int:
        """Return V, the number of pieces."""
        return len(self.vocab)

    @functools.cached_property
    def sha256(self) -> str:
        """Return the identity of the tokenizer: the hash of its ``tokenizer.json`` in ``byte_level``'s normal form."""
        return hashlib.sha256(json.dumps(self._content, sort_keys=True).encode()).hexdigest()

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """Return whether each piece continues a word, bool [V].

        A piece continues a word if it starts without white space and is not an added token. Punctuation belongs to the
        word that it touches. Unless the tokenizer puts a space before a text (``add_prefix_space``), the first word of
        a text has no space before it, so the first piece of that word counts as a continuation.
        """
        return np.array([not (self._opens[i] or piece in self._added) for i, piece in enumerate(self.vocab)])

    @functools.cached_property
    def _opens(self) -> tuple[bool, ...]:
        """Return whether each piece begins with white space, [V]."""
        return tuple(_is_white(data.decode(errors="replace")[:1]) for data in self._bytes)

    @functools.cached_property
    def _closes(self) -> tuple[bool, ...]:
        """Return, for each piece, whether a new word always follows it, [V].

        That holds for an added token, and for a piece that ends with white space other than a space. (A final space
        belongs to the word that follows.)
        """
        ends = [data.decode(errors="replace")[-1:] for data in self._bytes]
        return tuple(
            piece in self._added or (_is_white(end) and end != " ") for piece, end in zip(self.vocab, ends, strict=True)
        )

    @functools.cached_property
    def surfaces(self) -> tuple[tuple[str, bool | None], ...]:
        """Return, for each piece, its text and whether it continues a word, [V]; see ``Tokenizer``.

        A piece that holds only a part of a character is shown by its bytes, such as ``<0xE2>``.
        """
        names = dict(zip(self.special_ids, SPECIAL_TOKENS, strict=True))
        return tuple((names[i], None) if i in names else self._surface(i) for i in range(self.size))

    def _surface(self, token: int) -> tuple[str, bool | None]:
        if self.vocab[token] in self._added:
            return self.vocab[token], None
        data = self._bytes[token]
        stem = data.removeprefix(b" ")
        try:
            text = stem.decode()
        except UnicodeDecodeError:
            text = "".join(f"<0x{byte:02X}>" for byte in stem)
        return text, len(stem) == len(data)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only), without special tokens around it.

        Special tokens in a text are read as plain text. In most texts a single space comes before each word, so the
        text is the concatenation of its words, whose ids are cached. The library encodes only words that are not in the
        cache, and texts of any other form.
        """
        return retried(self._encoded, texts)

    def _encoded(self, texts: Sequence[str]) -> list[np.ndarray]:
        splits = [self._splits_at_spaces(text) for text in texts]
        whole = [text for text, split in zip(texts, splits, strict=True) if not split]
        found = {
            True: iter(self._words.encode([text for text, split in zip(texts, splits, strict=True) if split])),
            False: iter(map(np.frombuffer, self._bytes_of_ids(whole), itertools.repeat(np.int32))),
        }
        return [next(found[split]) for split in splits]

    def _bytes_of_ids(self, texts: Sequence[str]) -> Iterator[bytes]:
        for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False):
            yield np.array(encoding.ids, np.int32).tobytes()

    def _splits_at_spaces(self, text: str) -> bool:
        """Return whether the words of ``text`` can be encoded one by one.

        This requires that its only white space is single spaces; ``str.isprintable`` excludes all other white space.
        """
        return (
            self._words_stand_alone
            and text.isprintable()
            and "  " not in text
            and len(text) < MEAN_CHARACTERS * (text.count(" ") + 1)
            and (text.isascii() or self._content["normalizer"] in (None, {"type": "NFC"}))
        )

    @functools.cached_property
    def _words_stand_alone(self) -> bool:
        """Return whether this tokenizer splits text as GPT-2 does: each space before a word begins a new word."""
        normalizers = byte_level.flat(self._content["normalizer"], "normalizers")
        return (
            self._content["pre_tokenizer"]["type"] == "ByteLevel"
            and self._content["pre_tokenizer"].get("use_regex", True)
            and all(step["type"] in NORMALIZERS for step in normalizers)
            and not any(
                entry["rstrip"] or (" " in token and not token.startswith("  "))
                for token, entry in self._added.items()
                if not entry["special"]
            )
        )

    def _words_of(self, text: str) -> list[str]:
        """Return the words of ``text``, without the spaces before them.

        A first word that has no space before it is returned with a space in front, which marks it.
        """
        first, *others = text.split(" ")
        return [f" {first}", *others] if first else others

    def _add_words(self, new: set[str], cache: dict[str, bytes]) -> None:
        words = [word[1:] if word.startswith(" ") else f" {word}" for word in new]
        cache.update(zip(new, self._bytes_of_ids(words), strict=True))

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None, special_tokens_in_text: bool = False
    ) -> Encoded:
        """Return ``<s> text </s>`` or ``<s> text </s> pair </s>``, cut and padded to ``max_length`` if given.

        RoBERTa has ``</s></s>`` between the texts. While the input is too long, the longer of the two texts (the second
        on a tie) loses its last piece. If ``special_tokens_in_text``, special tokens in the texts are recognised, both
        by BERT's names (``[MASK]``) and by the tokenizer's own names (``<mask>``).
        """
        split = self._around_special_tokens if special_tokens_in_text else self._plain
        parts = [split(well_formed(t)) for t in ([text] if pair is None else [text, pair])]
        layout = (self.pair_separators, self._pair_type)
        return lay_out(parts, self.vocab, self.cls_id, self.sep_id, self.pad_id, max_length, *layout)

    def _plain(self, text: str) -> Part:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids = encoding.ids
        starts = [i == 0 or self._closes[ids[i - 1]] or self._opens[token] for i, token in enumerate(ids)]
        offsets = [_trimmed(text, start, stop) for start, stop in encoding.offsets]
        if ids and self._bytes[ids[0]] == b" " and not text.startswith(" "):
            offsets[0] = (0, 0)  # an added space is not part of the text
        return Part(ids, offsets, starts)

    def _around_special_tokens(self, text: str) -> Part:
        """Return the pieces of ``text``; each stretch between special tokens is encoded separately."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        starts: list[bool] = []
        done = 0
        for match in [*self._special_pattern.finditer(text), None]:
            part = self._plain(text[done : match.start() if match else None])
            ids += part.ids
            offsets += [(a + done, b + done) for a, b in part.offsets]
            starts += part.word_starts
            if match:
                group = match.lastindex or 0
                ids.append(self._by_name[match.group(group)])
                offsets.append(match.span(group))
                starts.append(False)
                done = match.end()
        return Part(ids, offsets, starts)

    @functools.cached_property
    def _by_name(self) -> dict[str, int]:
        own = {name: entry["id"] for name, entry in self._added.items() if entry["special"]}
        return dict(zip(SPECIAL_TOKENS, self.special_ids, strict=True)) | own

    @functools.cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches any special token, each in its own group, with the white space it absorbs."""
        choices, white = [], rf"[^\S{NOT_WHITE}]"
        for name in sorted(self._by_name, key=len, reverse=True):
            entry = self._added[self.vocab[self._by_name[name]]]
            before = f"(?:(?<!{white}){white}++)?" if entry["lstrip"] else ""  # from a run's start: linear
            choices.append(f"{before}({re.escape(name)}){f'{white}*+' if entry['rstrip'] else ''}")
        return re.compile("|".join(choices))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the readable text of ``ids``, without padding and without the special tokens around texts.

        Masks and unknown pieces are written as ``[MASK]`` and ``[UNK]``, bytes that are not UTF-8 as U+FFFD.
        """
        shown = {self.unk_id: UNK, self.mask_id: MASK}
        silent = {self.pad_id, self.cls_id, self.sep_id}
        data = b""
        for i in map(int, ids):
            if i in shown:  # the space before a mask belongs to it
                data += (b" " if data and not data.endswith(b" ") else b"") + shown[i].encode()
            elif i not in silent:
                data += self._bytes[i]
        text = data.decode(errors="replace")
        return text.removeprefix(" ") if self._puts_space else text

    @functools.cached_property
    def _puts_space(self) -> bool:
        """Return whether the tokenizer puts a space before a text that begins without one."""
        return len(self._tokenizer.pre_tokenizer.pre_tokenize_str("a")[0][0]) > 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``tokenizer.json``, whole or not at all."""
        files.write_text(path, self.tokenizer_json())

    def tokenizer_json(self) -> str:
        """Return the ``tokenizer.json``, with the special tokens and their template."""
        return json.dumps(self._content, ensure_ascii=False, indent=1) + "\n"


def _engine(content: dict[str, Any], where: str) -> tokenizers.Tokenizer:
    """Return the library's tokenizer. It reads special tokens in a text as plain text and adds none."""
    try:
        engine = tokenizers.Tokenizer.from_str(json.dumps(content | {"post_processor": None}))
    except Exception as error:  # the library raises plain ``Exception``
        raise UserError(f"{where} is damaged or of another kind: {str(error)[:200]}; copy it again") from error
    engine.encode_special_tokens = True
    return engine


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    """Return the span without the white space at its ends; a span of white space becomes the empty span at its end."""
    while start < stop and _is_white(text[start]):
        start += 1
    while start < stop and _is_white(text[stop - 1]):
        stop -= 1
    return start, stop


def _is_white(character: str) -> bool:
    return character.isspace() and character not in NOT_WHITE
