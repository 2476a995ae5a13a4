"""The engine of sentencepiece's own models, unigram or BPE, published or learned: the library ``sentencepiece``."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from tokenizers import decoders

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text import tokenizer_json
from bert_jax.text.encoded import Cut
from bert_jax.text.json_engine import JsonEngine
from bert_jax.text.marks import SPACE, Underline
from bert_jax.text.sentencepiece_model import folds_case, parse, prepared, quiet

DECODER = decoders.Sequence([decoders.Metaspace(SPACE, "always"), decoders.ByteFallback(), decoders.Fuse()])


class SentencePieceEngine:
    """A model of sentencepiece. Threads may share it. It is pickled as its model."""

    file_name = "spiece.model"
    pair_separators, pair_type = 1, 1
    joiner = ""
    marks = Underline()
    added_ids: frozenset[int] = frozenset()

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
        self.vocab: tuple[str, ...] = tuple(piece.piece for piece in parse(self.model, where).pieces)
        self._special = special  # BERT's name -> id
        self.special_ids: tuple[int, ...] = tuple(special[token] for token in SPECIAL_TOKENS)

    def __reduce__(self) -> tuple[type[SentencePieceEngine], tuple[bytes]]:
        return SentencePieceEngine, (self.model,)

    @property
    def sha256(self) -> str:
        """Return the hash of the model."""
        return hashlib.sha256(self.model).hexdigest()

    def file(self, name: str) -> bytes:
        """Return what a file of the tokenizer holds."""
        return self.model

    @functools.cached_property
    def converted(self) -> JsonEngine:
        """Return the engine of the same pieces and rules in a ``tokenizer.json``; see ``sentencepiece_json``."""
        from bert_jax.text.sentencepiece_json import converted

        named = {role: self.vocab[i] for role, i in zip(tokenizer_json.ROLES, self.special_ids, strict=True)}
        content = converted(self.model, self._special)
        return JsonEngine(tokenizer_json.normal(content, "the model", named), "the model")

    def json(self) -> str:
        """Return a Hugging Face ``tokenizer.json`` with the same pieces, rules and special tokens."""
        return self.converted.json()

    @property
    def content(self) -> tokenizer_json.Content:
        """Return the content of that ``tokenizer.json``."""
        return self.converted.content

    def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only)."""
        return list(self._processor.Encode(list(texts), return_type="numpy", num_threads=1))

    def cut(self, text: str, special_tokens: bool = False) -> Cut:
        """Return the pieces of ``text``; an unknown piece has its own text.

        If ``special_tokens``, those in the text are recognised by either name. As sentencepiece cannot do that, the
        pieces are then those of ``converted``.
        """
        if special_tokens:
            return self.converted.cut(text, special_tokens)
        found = self._processor.Encode(text, return_type="offset_mapping")
        return Cut(found["ids"], found["pieces"], list(_spans(text, found["pieces"], found["offsets"])))

    def text(self, pieces: Sequence[str]) -> str:
        """Return the text of ``pieces``."""
        text: str = DECODER.decode(list(pieces))
        return text


def _spans(text: str, pieces: Sequence[str], offsets: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop), the span of each piece in ``text``, without the space before a word.

    If a character became several pieces, the library assigns it to only one of these. Here each of them covers it.
    """
    for piece, (start, stop) in zip(pieces, offsets, strict=True):
        while piece.startswith(SPACE) and start < stop and text[start].isspace():
            start += 1
        if start == stop and piece != SPACE:
            start = min(start, len(text) - 1)
            stop = start + 1
        yield start, stop
