"""The engine of sentencepiece's own models, unigram or BPE, published or learned: the library ``sentencepiece``."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.records import MASK, SPECIAL_TOKENS, UNK
from bert_jax.text import tokenizer_json
from bert_jax.text.encoded import Cut
from bert_jax.text.json_engine import JsonEngine
from bert_jax.text.marks import SPACE, Underline
from bert_jax.text.roles import Layout, template
from bert_jax.text.sentencepiece_model import (
    BYTE,
    KINDS,
    NORMAL,
    USER_DEFINED,
    folds_case,
    normalized,
    parse,
    prepare,
    quiet_library,
)
from bert_jax.text.settings import ROLES, Settings

_QUOTES = ("``", "''")  # ALBERT's replacement table has " for each; the tables of most models keep both
_ALBERT_ROLES = {"cls": "[CLS]", "sep": "[SEP]", "mask": MASK}  # whatever other special tokens a model has
_DECODER = decoders.Sequence([decoders.Metaspace(SPACE, "always"), decoders.ByteFallback(), decoders.Fuse()])


class SentencePieceEngine:
    """A model of sentencepiece. Threads may share it. It is pickled as its model."""

    file_name = "spiece.model"
    layout = Layout()
    joiner = ""
    marks = Underline()
    added_ids: frozenset[int] = frozenset()

    def __init__(
        self, model: bytes, lowercase: bool | None = None, where: str = "the model", strip_accents: bool | None = None
    ) -> None:
        """Read ``model``, the bytes of a ``.model`` file; error messages call it ``where``.

        See ``sentencepiece_model.prepare`` for the changes that are made to the model, and for the other arguments.
        """
        try:
            self.model, special = prepare(model, lowercase, where, strip_accents)
            self.lowercase = folds_case(self.model)
            self._processor = quiet_library().SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as error:  # the library's only error for a table or a piece that it cannot read
            raise UserError(f"{where} is damaged ({error}); copy it again") from error
        self.vocab: tuple[str, ...] = tuple(piece.piece for piece in parse(self.model, where).pieces)
        self._special = special  # BERT's name -> id
        self.special_ids: tuple[int, ...] = tuple(special[token] for token in SPECIAL_TOKENS)
        self.role_ids = dict(zip(ROLES, self.special_ids, strict=True))

    def __reduce__(self) -> tuple[type[SentencePieceEngine], tuple[bytes]]:
        return SentencePieceEngine, (self.model,)

    @property
    def sha256(self) -> str:
        """Return the hash of the model."""
        return hashlib.sha256(self.model).hexdigest()

    def file(self, name: str) -> bytes:
        """Return what a file of the tokenizer holds."""
        return self.model

    @property
    def roles(self) -> dict[str, str]:
        """Return role -> special token."""
        return {role: self.vocab[i] for role, i in zip(ROLES, self.special_ids, strict=True)}

    @functools.cached_property
    def as_json(self) -> JsonEngine:
        """Return the engine of the same pieces, rules and special tokens in a ``tokenizer.json``; see ``_convert``."""
        content = _convert(self.model, self._special)
        return JsonEngine(tokenizer_json.normal(content, "the model", self.roles), "the model")

    def by_rules(self, settings: Settings, lowercase: bool) -> JsonEngine:
        """Return the engine of the same pieces with the special tokens, and ALBERT's rules, that ``settings`` name.

        Args:
          lowercase: whether ALBERT's rules convert text to lower case.
        """
        content = _convert(self.model, self._special)
        content |= _albert(content, settings, lowercase) if settings.has_albert_rules else {}
        own = _ALBERT_ROLES if settings.has_albert_rules and not settings.is_xlnet else {}
        named = self.roles | own | settings.roles
        if settings.is_xlnet:
            ids = tokenizer_json.ids_of(content)
            special = {role: (token, ids[token]) for role, token in named.items() if token in ids}
            content["post_processor"] = template(special, Layout(cls_last=True))
        return JsonEngine(tokenizer_json.normal(content, "the model", named, settings), "the model")

    def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only)."""
        return list(self._processor.Encode(list(texts), return_type="numpy", num_threads=1))

    def cut(self, text: str, special_tokens: bool = False) -> Cut:
        """Return the pieces of ``text``; an unknown piece has its own text.

        If ``special_tokens``, special tokens in the text are recognised by either name. As sentencepiece cannot do
        that, ``as_json`` then cuts the text.
        """
        if special_tokens:
            return self.as_json.cut(text, special_tokens)
        cut = self._processor.Encode(text, return_type="offset_mapping")
        return Cut(cut["ids"], cut["pieces"], list(_spans(text, cut["pieces"], cut["offsets"])))

    def normalized(self, text: str) -> str:
        """Return ``text`` as it is before it is cut into pieces."""
        return normalized(self.model, text)

    def text(self, pieces: Sequence[str]) -> str:
        """Return the text of ``pieces``."""
        text: str = _DECODER.decode(list(pieces))
        return text


Engine = JsonEngine | SentencePieceEngine  # a library with a tokenizer


def _spans(text: str, pieces: Sequence[str], offsets: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop), the span of each piece in ``text``, without the space before a word.

    If a character became several pieces, the library assigns it to only one piece. Here each of the pieces covers it.
    """
    for piece, (start, stop) in zip(pieces, offsets, strict=True):
        while piece.startswith(SPACE) and start < stop and text[start].isspace():
            start += 1
        if start == stop and piece != SPACE:
            start = min(start, len(text) - 1)
            stop = start + 1
        yield start, stop


def _convert(data: bytes, special: Mapping[str, int]) -> tokenizer_json.Content:
    """Return the content of a ``tokenizer.json`` with the pieces, scores and rules of a prepared ``.model``.

    The ids are the same on real text, with two exceptions. First, ``tokenizers`` cuts words one by one, but
    sentencepiece cuts a whole text. So if the scores of two ways to cut a word differ only by rounding (runs of dashes,
    in one of thousands of sentences), the two libraries may choose differently. Second, when ``tokenizers`` normalises
    text, it replaces a character together with its combining marks or not at all.

    Args:
      special: BERT's special tokens -> their ids.
    """
    model = parse(data, "the model")
    tokenizer = tokenizers.Tokenizer(_model(model, special[UNK]))
    tokenizer.normalizer = _normalizer(model.normalizer_spec)
    # Text after a special token continues a word, unless a space comes first. With ALBERT's replacement of quotes it
    # begins a word, as in ALBERT: "first" would put no space before a text that begins with such quotes.
    scheme = "always" if _quotes(model.normalizer_spec) else "first"
    scheme = scheme if model.normalizer_spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    steps = [decoders.ByteFallback(), decoders.Fuse()] if any(p.type == BYTE for p in model.pieces) else []
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(SPACE, scheme), *steps])
    names = {token: model.pieces[i].piece for token, i in special.items()}
    if KINDS[model.trainer_spec.model_type] == "bpe":
        user_defined = [p.piece for p in model.pieces if p.type == USER_DEFINED]
        tokenizer.add_tokens([AddedToken(piece, normalized=True) for piece in user_defined])
    tokenizer.add_special_tokens(
        [AddedToken(name, lstrip=token == MASK, normalized=False) for token, name in names.items()]
    )
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


def _albert(content: tokenizer_json.Content, settings: Settings, lowercase: bool) -> tokenizer_json.Content:
    """Return the steps by which ALBERT's tokenizer changes and splits text before the rules of the model itself."""
    own = [step for step in content["normalizer"]["normalizers"] if step["type"] == "Precompiled"]
    quotes = [{"type": "Replace", "pattern": {"String": quote}, "content": '"'} for quote in _QUOTES]
    accents = [] if settings.switch("keep_accents") else [{"type": "NFKD"}, {"type": "StripAccents"}]
    case = [{"type": "Lowercase"}] if lowercase else []
    scheme = "never" if settings.switch("add_prefix_space") is False else "always"
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*quotes, *accents, *case, *own]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
    }


def _model(model: Any, unk_id: int) -> Any:
    highest = max(piece.score for piece in model.pieces if piece.type == NORMAL)
    # sentencepiece uses a user-defined piece wherever it occurs, so its score here beats any other way to cut the text.
    pieces = [
        (p.piece, len(p.piece.encode()) * highest - 0.1 if p.type == USER_DEFINED else p.score) for p in model.pieces
    ]
    has_bytes = any(piece.type == BYTE for piece in model.pieces)
    if KINDS[model.trainer_spec.model_type] == "unigram":
        return models.Unigram(pieces, unk_id=unk_id, byte_fallback=has_bytes)
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    return models.BPE(
        ids, _merges(model), unk_token=pieces[unk_id][0], fuse_unk=True, byte_fallback=has_bytes, ignore_merges=False
    )


def _merges(model: Any) -> list[tuple[str, str]]:
    """Return every pair of pieces whose concatenation is a piece, best score first, as sentencepiece tries them."""
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == NORMAL}
    merges = [
        (-score, piece, i) for piece, score in scores.items() for i in range(1, len(piece))
        if piece[:i] in scores and piece[i:] in scores
    ]  # fmt: skip
    return [(piece[:i], piece[i:]) for _, piece, i in sorted(merges)]


def _normalizer(spec: Any) -> Any:
    # The library looks up one visible character at a time, so a replacement of two characters needs a separate step.
    steps: list[Any] = [normalizers.Replace(quote, '"') for quote in _quotes(spec)]
    steps += [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        # One space in front is kept, as the mark of the first word.
        steps += [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), SPACE)]
    return normalizers.Sequence(steps)


def _quotes(spec: Any) -> list[str]:
    """Return the ``_QUOTES`` that the model's normaliser replaces by a double quote."""
    own = quiet_library().SentencePieceNormalizer(normalizer_spec=spec.SerializeToString())
    return [quote for quote in _QUOTES if own.Normalize(quote).endswith('"')]
