"""sentencepiece: text to ids and back with a unigram or a BPE model, published or learned.

This is a thin wrapper over the library ``sentencepiece`` and gives the same ids. It adds BERT's special tokens (under
whatever names the model has for them), word starts, and spans of the original text. (The library's own spans include
the space before a word, and assign a character that became several pieces to only one of these.)
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.records import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from bert_jax.storage import files, reading
from bert_jax.text.encoded import Encoded, Part, lay_out
from bert_jax.text.sentencepiece_model import BYTE, folds_case, parse, prepared, quiet
from bert_jax.text.surrogates import retried, well_formed

SPACE = "\u2581"  # marks the start of a word in a piece


class SentencePiece:
    """A sentencepiece tokenizer. Threads may share it. It is pickled as its model."""

    file_name = "spiece.model"
    pair_separators = 1
    joiner = ""

    def __init__(self, model: bytes, lowercase: bool | None = None, where: str = "the model") -> None:
        """Read ``model``, the bytes of a ``.model`` file; error messages call it ``where``.

        See ``sentencepiece_model.prepared`` for the changes that are made to the model, and for ``lowercase``.
        """
        try:
            self.model, special = prepared(model, lowercase, where)
            self.lowercase = folds_case(self.model)
            self._processor = quiet().SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as error:  # all that the library says of a table or a piece that it cannot read
            raise UserError(f"{where} is damaged ({error}); copy it again") from error
        pieces = parse(self.model, where).pieces
        self.vocab: tuple[str, ...] = tuple(piece.piece for piece in pieces)
        self._is_byte = [piece.type == BYTE for piece in pieces]
        self._special = special  # BERT's name -> id
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (special[t] for t in SPECIAL_TOKENS)
        self.special_ids: tuple[int, ...] = (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)
        self.num_added = len(pieces) - len(parse(model, where).pieces)  # special tokens that the file did not have

    @classmethod
    def load(cls, path: str | os.PathLike[str], lowercase: bool | None = None) -> SentencePiece:
        """Return the tokenizer of a ``.model`` file, or of a Unigram ``tokenizer.json``.

        Raises ``UserError`` if the file is missing or of another kind.
        """
        source = files.as_path(path)
        if not source.exists():
            raise UserError(f"no vocabulary file {path}; learn one with `bert-jax vocab` or name a published .model")
        if source.name.endswith(".json"):
            from bert_jax.text import unigram_json

            return cls(unigram_json.read(path), lowercase, str(path))
        return cls(reading.read_bytes(source), lowercase, str(path))

    def __reduce__(self) -> tuple[type[SentencePiece], tuple[bytes]]:
        return SentencePiece, (self.model,)

    @property
    def size(self) -> int:
        """Return V, the number of pieces."""
        return len(self.vocab)

    @functools.cached_property
    def sha256(self) -> str:
        """Return the identity of the tokenizer: the hash of its model."""
        return hashlib.sha256(self.model).hexdigest()

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """Return whether each piece continues a word, bool [V].

        A piece starts a word if it begins with the mark of a space, with an ideograph, or with a character that is
        neither letter nor digit, as in WordPiece.
        """
        return np.array([i not in self.special_ids and self._goes_on(i) for i in range(self.size)])

    @functools.cached_property
    def surfaces(self) -> tuple[tuple[str, bool | None], ...]:
        """Return, for each piece, its text and whether it continues a word, [V]; see ``Tokenizer``."""
        names = {i: token for token, i in self._special.items()}
        return tuple(
            (names[i], None) if i in names else (piece.removeprefix(SPACE), not piece.startswith(SPACE))
            for i, piece in enumerate(self.vocab)
        )

    def _goes_on(self, token: int) -> bool:
        piece = self.vocab[token]
        return self._is_byte[token] or (not piece.startswith(SPACE) and _is_letter(piece[:1]))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only), without special tokens around it.

        Special tokens in a text are read as plain text.
        """
        encode = functools.partial(self._processor.Encode, return_type="numpy", num_threads=1)
        return retried(lambda some: encode(list(some)), texts)

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None, special_tokens_in_text: bool = False
    ) -> Encoded:
        """Return ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``, cut and padded to ``max_length`` if given.

        While the input is too long, the longer of the two texts (the second on a tie) loses its last piece.
        If ``special_tokens_in_text``, special tokens in the texts are recognised, both by BERT's names (``[MASK]``) and
        by the model's own names (``<mask>``).
        """
        split = self._around_special_tokens if special_tokens_in_text else self._plain
        parts = [split(well_formed(t)) for t in ([text] if pair is None else [text, pair])]
        return lay_out(parts, self.vocab, self.cls_id, self.sep_id, self.pad_id, max_length)

    def _plain(self, text: str, processor: Any = None) -> Part:
        found = (processor or self._processor).Encode(text, return_type="offset_mapping")
        starts = []
        for token, piece in zip(found["ids"], found["pieces"], strict=True):
            # The library gives the text of an unknown piece, which shows whether it continues a word; its id does not.
            starts.append(not _is_letter(piece[:1]) if token == self.unk_id else not self.is_continuation[token])
        return Part(found["ids"], list(_spans(text, found["pieces"], found["offsets"])), starts)

    def _around_special_tokens(self, text: str) -> Part:
        """Return the pieces of ``text``, in which special tokens are recognised.

        A space before a special token belongs to this token. Text right after a special token, without a space,
        continues the same word.
        """
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        starts: list[bool] = []

        def add(part: Part, shift: int) -> None:
            ids.extend(part.ids)
            offsets.extend((a + shift, b + shift) for a, b in part.offsets)
            starts.extend(part.word_starts)

        done = 0
        for match in [*self._special_pattern.finditer(text), None]:
            between = text[done : match.start() if match else None]
            new_word = done == 0 or between[:1].isspace()
            add(self._plain(between.rstrip() if match else between, None if new_word else self._inside_a_word), done)
            if match:
                add(Part([self._by_name[match.group()]], [(0, match.end() - match.start())], [False]), match.start())
                done = match.end()
        return Part(ids, offsets, starts)

    @functools.cached_property
    def _by_name(self) -> dict[str, int]:
        return self._special | {self.vocab[i]: i for i in self.special_ids}

    @functools.cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._by_name, key=len, reverse=True))))

    @functools.cached_property
    def _inside_a_word(self) -> Any:
        """Return a processor of the model that, unlike the usual one, does not put a space before a text."""
        model = parse(self.model, "the model")
        model.normalizer_spec.add_dummy_prefix = False
        return quiet().SentencePieceProcessor(model_proto=model.SerializeToString())

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the readable text of ``ids``: pieces joined to words, without ``[PAD]``, ``[CLS]`` and ``[SEP]``.

        Masks and unknown pieces are written as ``[MASK]`` and ``[UNK]``.
        """
        shown = {self.unk_id: UNK, self.mask_id: MASK}
        silent = {self._special[token] for token in (PAD, CLS, SEP)}
        words: list[str] = []
        run: list[int] = []
        for i in [int(i) for i in ids if i not in silent] + [self.unk_id]:
            if i not in shown:
                run.append(i)
                continue
            words += [self._processor.Decode(run)] if run else []
            words.append(shown[i])
            run = []
        return " ".join(words[:-1])  # the last [UNK] was a sentinel

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to ``path``, whole or not at all. Loading the file gives the same tokenizer."""
        files.write_bytes(path, self.model)

    def tokenizer_json(self) -> str:
        """Return a Hugging Face ``tokenizer.json`` with the same pieces, rules and special tokens.

        See ``sentencepiece_json``.
        """
        from bert_jax.text.sentencepiece_json import tokenizer_json

        return tokenizer_json(self.model, self._special)


def _spans(text: str, pieces: Sequence[str], offsets: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop), the span of each piece in ``text``, without the space before a word.

    If a character became several pieces, the span of each of these pieces covers it.
    """
    for piece, (start, stop) in zip(pieces, offsets, strict=True):
        while piece.startswith(SPACE) and start < stop and text[start].isspace():
            start += 1
        if start == stop and piece != SPACE:
            start = min(start, len(text) - 1)
            stop = start + 1
        yield start, stop


def _is_letter(character: str) -> bool:
    """Return whether a piece that begins with ``character`` continues the word before it."""
    return character.isalnum() and not (unicodedata.name(character, "").startswith("CJK "))
