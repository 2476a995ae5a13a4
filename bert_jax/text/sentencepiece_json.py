"""Converts a sentencepiece model to a Hugging Face ``tokenizer.json`` with the same pieces, scores and rules.

The ids are the same on real text, with two exceptions. First, ``tokenizers`` cuts words one by one, but sentencepiece
cuts a whole text. So if the scores of two ways to cut a word differ only by rounding (runs of dashes, in one of
thousands of sentences), the two libraries may choose differently. Second, when ``tokenizers`` normalises text, it
replaces a character together with its combining marks or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from bert_jax.records import MASK, UNK
from bert_jax.text.marks import SPACE
from bert_jax.text.sentencepiece_model import BYTE, KINDS, NORMAL, QUOTES, USER_DEFINED, parse, quiet


def converted(data: bytes, special: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of a ``tokenizer.json`` for a prepared ``.model``.

    ``special`` maps BERT's special tokens to their ids.
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
    found = [
        (-score, piece, i) for piece, score in scores.items() for i in range(1, len(piece))
        if piece[:i] in scores and piece[i:] in scores
    ]  # fmt: skip
    return [(piece[:i], piece[i:]) for _, piece, i in sorted(found)]


def _normalizer(spec: Any) -> Any:
    # The library looks up one visible character at a time, so replacements of two need a step of their own.
    steps: list[Any] = [normalizers.Replace(quote, '"') for quote in _quotes(spec)]
    steps += [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        # One space in front is kept, as the mark of the first word.
        steps += [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), SPACE)]
    return normalizers.Sequence(steps)


def _quotes(spec: Any) -> list[str]:
    """Return those of ``QUOTES`` that the model's normaliser replaces by a double quote."""
    own = quiet().SentencePieceNormalizer(normalizer_spec=spec.SerializeToString())
    return [quote for quote in QUOTES if own.Normalize(quote).endswith('"')]
