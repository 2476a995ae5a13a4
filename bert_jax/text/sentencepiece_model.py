"""Reads the ``.model`` file of sentencepiece, finds or appends special pieces, and folds case.

Everything that the ids depend on is kept inside the file, so every program that reads the file gives the same ids. The
protobuf message classes that sentencepiece ships work only with one range of protobuf versions. So the few fields that
are needed are declared below; protobuf preserves all other fields unread.
"""

from __future__ import annotations

import functools
import itertools
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, UNK
from bert_jax.text.accents import strips_accents
from bert_jax.text.tokenizer_json import NAMES

NORMAL, _UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # types of pieces, in sentencepiece_model.proto
KINDS = {1: "unigram", 2: "bpe"}  # types of models
_FILE = """
name: "bert_jax.sentencepiece.proto" package: "bert_jax.sentencepiece" syntax: "proto2"
message_type {
  name: "Piece"
  field { name: "piece" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "score" number: 2 type: TYPE_FLOAT label: LABEL_OPTIONAL default_value: "0" }
  field { name: "type" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "1" }
}
message_type {
  name: "TrainerSpec"
  field { name: "model_type" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "1" }
  field { name: "treat_whitespace_as_suffix" number: 24 type: TYPE_BOOL label: LABEL_OPTIONAL default_value: "false" }
}
message_type {
  name: "NormalizerSpec"
  field { name: "precompiled_charsmap" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "add_dummy_prefix" number: 3 type: TYPE_BOOL label: LABEL_OPTIONAL default_value: "true" }
  field { name: "remove_extra_whitespaces" number: 4 type: TYPE_BOOL label: LABEL_OPTIONAL default_value: "true" }
  field { name: "escape_whitespaces" number: 5 type: TYPE_BOOL label: LABEL_OPTIONAL default_value: "true" }
}
message_type {
  name: "Model"
  field { name: "pieces" number: 1 type_name: "Piece" label: LABEL_REPEATED }
  field { name: "trainer_spec" number: 2 type_name: "TrainerSpec" label: LABEL_OPTIONAL }
  field { name: "normalizer_spec" number: 3 type_name: "NormalizerSpec" label: LABEL_OPTIONAL }
}
"""


@functools.cache
def _message() -> Any:
    """Return the message class of a whole ``.model``."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bert_jax.sentencepiece.Model"))


def parse(data: bytes, where: str) -> Any:
    """Return the parsed message of a ``.model``. Raises ``UserError`` for other files and for unsupported kinds."""
    model = _message()()
    try:
        model.ParseFromString(data)
        complete = bool(model.pieces) and model.HasField("trainer_spec")
    except DecodeError:
        complete = False
    if not complete or sum(piece.type == _UNKNOWN for piece in model.pieces) != 1:
        raise UserError(f"{where} is not a sentencepiece model; give a .model file, or a vocab.txt of WordPiece")
    table = model.normalizer_spec.precompiled_charsmap  # bytes of the index (uint32), the index, replacements
    try:
        table[4 + int.from_bytes(table[:4], "little") :].decode()
        is_text = all(isinstance(piece.piece, str) for piece in model.pieces)
    except UnicodeDecodeError:
        is_text = False
    if not is_text or not all(math.isfinite(piece.score) for piece in model.pieces):
        raise UserError(
            f"{where} is damaged: a piece or a replacement is not UTF-8, or a score is not finite; copy it again"
        )
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in KINDS:
        raise UserError(f"{where} is a word or character model of sentencepiece; give a unigram or a BPE model")
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise UserError(f"{where} does not mark spaces by U+2581 at the start of words; give a model that does")
    return model


def prepare(
    data: bytes, lowercase: bool | None, where: str, strip_accents: bool | None = None
) -> tuple[bytes, dict[str, int]]:
    """Return the model with BERT's special tokens, and token -> id for them.

    A special token that the model has under no usual name is appended as a piece, so V grows by one. All but
    ``[UNK]`` become control pieces, which never result from text.

    Args:
      lowercase: whether to make the model convert text to lower case, unless it already does.
      strip_accents: whether to make the model strip accents, unless it already does. If None, as ``lowercase`` says.
    """
    model = parse(data, where)
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    special = {UNK: next(i for i, piece in enumerate(model.pieces) if piece.type == _UNKNOWN)}
    changed = False
    for role, (token, *_) in NAMES.items():
        if role == "unk":
            continue
        i = next((ids[name] for name in NAMES[role] if name in ids and ids[name] not in special.values()), None)
        if i is None:
            i = len(model.pieces)
            model.pieces.add(piece=token)
        changed |= model.pieces[i].type != CONTROL
        model.pieces[i].type = CONTROL
        special[token] = i
    strip = bool(lowercase if strip_accents is None else strip_accents)
    if (lowercase and not folds_case(data)) or (
        strip_accents and not strips_accents(functools.partial(normalized, data))
    ):
        targets = _fold_targets(_replacements(model.normalizer_spec), bool(lowercase), strip)
        model.normalizer_spec.precompiled_charsmap = replacement_table(_normalizer(targets))
        changed = True
    # Unless something has changed, the bytes and their hash stay the same.
    data = model.SerializeToString(deterministic=True) if changed else data
    return data, {token: special[token] for token in SPECIAL_TOKENS}


def folds_case(data: bytes) -> bool:
    """Return whether the model's own normaliser converts text to lower case."""
    return "B" not in normalized(data, "B")


def normalized(data: bytes, text: str) -> str:
    """Return ``text`` as a model's own normaliser gives it."""
    return str(quiet_library().SentencePieceNormalizer(model_proto=data).Normalize(text))


def quiet_library() -> Any:
    """Return the library, set to log only errors."""
    sentencepiece.set_min_log_level(2)
    return sentencepiece


@functools.cache  # making the normaliser takes a second
def folding_normalizer(lowercase: bool, strip_accents: bool) -> Any:
    """Return sentencepiece's usual normaliser (NFKC, single spaces), extended by lower case or stripped accents."""
    usual = dict(quiet_library().SentencePieceNormalizer(rule_name="nmt_nfkc").Decompile())
    return _normalizer(_fold_targets(usual, lowercase, strip_accents))


def _replacements(normalizer_spec: Any) -> dict[str, str]:
    """Return source -> target of the replacement table (``precompiled_charsmap``) of a model's normaliser."""
    if not normalizer_spec.precompiled_charsmap:
        return {}
    return dict(
        quiet_library().SentencePieceNormalizer(normalizer_spec=normalizer_spec.SerializeToString()).Decompile()
    )


def replacement_table(normalizer: Any) -> bytes:
    """Return the replacement table (``precompiled_charsmap``) of a normaliser of the library."""
    spec = _message()().normalizer_spec
    spec.ParseFromString(normalizer.serialized_normalizer_spec())
    return bytes(spec.precompiled_charsmap)


def _normalizer(own: Mapping[str, str]) -> Any:
    """Return a normaliser with the replacements ``own``, source -> target."""
    return quiet_library().SentencePieceNormalizer(norm_map=list(own.items()))


def _fold_targets(own: Mapping[str, str], lowercase: bool, strip_accents: bool) -> dict[str, str]:
    """Return the replacements ``own``, each followed by folding, and the replacements that fold other characters."""
    targets = {source: _fold(target, lowercase, strip_accents) for source, target in own.items()}
    others = {c: _fold(c, lowercase, strip_accents) for c in _foldable() if c not in own}
    return targets | {c: folded for c, folded in others.items() if folded != c}


@functools.cache  # a look at every character takes a third of a second
def _foldable() -> tuple[str, ...]:
    """Return the characters that folding may change: capitals, composed characters and accents."""
    codes = itertools.chain(range(0xD800), range(0xE000, 0x110000))  # without surrogates
    return tuple(
        c for c in map(chr, codes) if c.lower() != c or unicodedata.decomposition(c) or unicodedata.category(c) == "Mn"
    )


def _fold(text: str, lowercase: bool, strip_accents: bool) -> str:
    """Return ``text`` in lower case or without accents, composed again, so that (unlike in BERT) Hangul stays whole."""
    text = text.lower() if lowercase else text
    if strip_accents:
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return unicodedata.normalize("NFC", text)
