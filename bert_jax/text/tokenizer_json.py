"""Reads and makes the content of a ``tokenizer.json``, the file format of the library ``tokenizers``.

All files but the ``.model`` of sentencepiece are turned into this content: ``vocab.txt`` (WordPiece), ``vocab.json``
with ``merges.txt`` (byte-level BPE, or GPT-1's), and ``tokenizer.json`` itself. Its template names the special tokens
by their ``ROLES``, so that one file defines a tokenizer. Special tokens are found by role and never by id.

The tokenizer of a GPT has neither [CLS] nor [SEP], and may lack the other roles too. It keeps the ids that were
published: it gets no token. GPT-2 has the role ``END``; GPT-1 has [UNK] alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, UNK
from bert_jax.storage import files, reading
from bert_jax.text.marks import ALPHABET, SPACE
from bert_jax.text.roles import (
    NAMES,
    bare_template,
    check_bare,
    flat_steps,
    is_gpt,
    layout_in,
    layout_of,
    roles_of,
    template,
)
from bert_jax.text.settings import END, FLAGS, ROLES, Settings, Token, check_token, read_json

Content = dict[str, Any]
_END_OF_WORD = "</w>"
_END = "<|endoftext|>"  # GPT-2's end token, for files that do not name the token of this role
FILE_NAME = "tokenizer.json"
MERGES, _VOCABULARY = "merges.txt", "vocab.json"
_DECODERS = {
    "ByteLevel": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "WordPiece": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "Metaspace": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
}
NO_PIECE = "<no piece {}>"  # the name of an id that no piece has; spaces keep texts from giving it
_MAX_PIECES = 1 << 22  # a higher id in a file is a mistake
MAX_WORD_CHARACTERS = 100  # a longer word becomes [UNK], as in BERT's release of 2018-10 and all later libraries


def read(path: str | os.PathLike[str], settings: Settings) -> Content:
    """Return the content of the tokenizer at ``path``, after ``normal``.

    Args:
      path: a ``tokenizer.json``, or either of a ``vocab.json`` and a ``merges.txt``.
      settings: what the files beside it say.

    Raises:
      UserError: the file is damaged, or one of the two is missing.
    """
    source = files.as_path(path)
    if source.name == MERGES:
        return _of_merges(source.parent / _VOCABULARY, source, settings)
    content = read_json(source)
    if "model" not in content and source.name == _VOCABULARY:
        return _of_merges(source, source.parent / MERGES, settings)
    settings.check_class("json")
    return normal(content, str(path), settings.roles, settings)


def of_bert(
    pieces: Sequence[str],
    lowercase: bool,
    strip_accents: bool | None = None,
    split_ideographs: bool = True,
    settings: Settings | None = None,
) -> Content:
    """Return the content of BERT's WordPiece tokenizer with ``pieces``, one for each id.

    Of two equal pieces, the later piece has the id, as in all other libraries; no text gives the earlier id.

    Args:
      strip_accents: if None, accents are stripped where text is converted to lower case.
      settings: what the files beside the pieces say of special and added tokens.
    """
    named = settings.roles if settings else {}
    model = {
        "type": "WordPiece",
        "unk_token": named.get("unk", UNK),
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": MAX_WORD_CHARACTERS,
        "vocab": {piece: i for i, piece in enumerate(pieces)},
    }
    clean = {"clean_text": True, "handle_chinese_chars": split_ideographs, "strip_accents": strip_accents}
    normalizer = {"type": "BertNormalizer", **clean, "lowercase": lowercase}
    content = {"normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}, "model": model}
    return normal(content, "the vocabulary", named, settings)


def normal(
    content: Mapping[str, Any], where: str, named: Mapping[str, str] | None = None, settings: Settings | None = None
) -> Content:
    """Return ``content`` in one form, whichever version of a library wrote it, with its special tokens.

    A role that no token has gets a new token, under BERT's name, so V grows by one. The tokenizer of a GPT gets none
    (``roles.is_gpt``).

    Args:
      content: the content of a ``tokenizer.json``; error messages call it ``where``.
      named: role -> token, from files beside the tokenizer's file.
      settings: what these files say, with more added tokens.

    Raises:
      UserError: ``content`` is no tokenizer, or lays out pairs in a way that this package cannot.
    """
    try:
        return _normal(content, where, named or {}, settings)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{where} is damaged ({type(error).__name__}: {error}); copy it again") from error


def _normal(content: Mapping[str, Any], where: str, named: Mapping[str, str], settings: Settings | None) -> Content:
    if not isinstance(content.get("model"), dict):
        raise UserError(f"{where} is not the tokenizer.json of a tokenizer: it has no 'model'; give another")
    if (side := (content.get("truncation") or {}).get("direction", "Right")) != "Right":
        raise UserError(f"{where} cuts a long text at its {side} end (truncation.direction); Right alone can be read")
    model, normalizer = _model(content["model"]), content.get("normalizer")
    if normalizer and normalizer.get("strip_accents") == normalizer.get("lowercase", object()):
        normalizer = {**normalizer, "strip_accents": None}  # BERT's normaliser then strips accents if it lower-cases
    types = [model["type"], *steps_of(content)]
    usual = next((_DECODERS[name] for name in ("ByteLevel", "WordPiece") if name in types), None)
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            check_token(entry, where, "added_tokens", Mapping) for entry in content.get("added_tokens") or ()
        ],
        "normalizer": normalizer,
        "pre_tokenizer": content.get("pre_tokenizer"),
        "decoder": usual or content.get("decoder") or _DECODERS["Metaspace"],
        "model": model,
    }
    _check_unknown(model, where)
    added = settings.added(ids_of(whole)) if settings else []
    whole = with_added(_without_holes(whole, {token["id"] for token in added if "id" in token}), added)
    processors = flat_steps(content.get("post_processor"), "processors")
    ids = ids_of(whole)
    end = next((token for token in (settings and settings.end, _END) if token in ids), None)
    roles = roles_of(processors, named, ids, model, where, end)
    if bare := is_gpt(roles.keys(), model, end):
        special = {role: roles[role] for role in ROLES if role in roles} | ({END: end} if end else {})
    else:
        lacking = {role: token for role, token in zip(ROLES, SPECIAL_TOKENS, strict=True) if role not in roles}
        special = {role: (roles | lacking)[role] for role in ROLES}
    flags = settings.flags if settings else lambda token: {}
    whole = with_added(whole, [{"content": token, **flags(token)} for token in special.values()])
    for entry in whole["added_tokens"]:
        entry["special"] |= entry["content"] in special.values()
    ids = ids_of(whole)
    tokens = {role: (token, ids[token]) for role, token in special.items()}
    if bare:
        check_bare(processors, end, where)
        return whole | {"post_processor": bare_template(tokens)}
    return whole | {"post_processor": template(tokens, layout_of(processors, special, where))}


def _check_unknown(model: Mapping[str, Any], where: str) -> None:
    """Raise ``UserError`` if a model that needs a piece for unknown words has none."""
    vocab, unknown = model["vocab"], model.get("unk_token")
    if model["type"] == "Unigram" and not 0 <= model.get("unk_id", -1) < len(vocab):
        raise UserError(f"{where} is damaged (unk_id {model.get('unk_id')} is no piece); copy it again")
    needed = unknown or model["type"] in ("WordPiece", "WordLevel")
    if isinstance(vocab, dict) and needed and unknown not in vocab:
        raise UserError(f"{where} is damaged (the unk_token {unknown!r} is no piece); copy it again")


def _without_holes(content: Content, others: Collection[int]) -> Content:
    """Return ``content`` with a piece, which no text gives, for each id of the model's range that nothing has.

    Args:
      others: ids that tokens will have which are not in ``content`` yet.
    """
    ids, model = ids_of(content), content["model"]
    taken = set(ids.values())
    if not isinstance(model["vocab"], dict) or len(taken) < len(ids) or max(taken, default=0) >= _MAX_PIECES:
        return content
    free = {*range(max(model["vocab"].values(), default=0))} - taken - {*others}
    holes = {NO_PIECE.format(i): i for i in sorted(free)}
    return content | {"model": {**model, "vocab": {**model["vocab"], **holes}}}


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``model`` with its type, its merges as pairs, and without options that are off."""
    kept = {key: value for key, value in model.items() if not (value is None or value is False or value == "")}
    kept.pop("dropout", None)
    if "merges" in kept:
        kept["merges"] = [merge.split(" ") if isinstance(merge, str) else list(merge) for merge in kept["merges"]]
    return {**kept, "type": _type_of(model), "vocab": model["vocab"]}


def _type_of(model: Mapping[str, Any]) -> str:
    """Return the type of a ``model``; early versions do not name it."""
    if "type" in model:
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if "unk_id" in model:
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def with_added(content: Content, tokens: Iterable[Token]) -> Content:
    """Return ``content`` with more added tokens. A token that has no ``id`` and is no piece yet gets the next id."""
    entries, ids = {entry["content"]: entry for entry in content["added_tokens"]}, ids_of(content)
    for token in tokens:
        name = token["content"]
        i = ids.setdefault(name, token.get("id", len(ids)))
        entries.setdefault(name, {**token, "id": i})
    whole = [{"id": e["id"], "content": c, **{f: bool(e.get(f)) for f in FLAGS}} for c, e in entries.items()]
    return content | {"added_tokens": sorted(whole, key=lambda entry: entry["id"])}


def ids_of(content: Mapping[str, Any]) -> dict[str, int]:
    """Return piece -> id, added tokens included."""
    vocab = content["model"]["vocab"]
    own = vocab if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    return {**own, **{entry["content"]: entry["id"] for entry in content["added_tokens"]}}


def same(content: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two results of ``normal`` give the same ids. The types of the texts of a pair may differ."""
    first, second = (
        c | {"post_processor": c["post_processor"]["special_tokens"], "decoder": None}
        for c in (dict(content), dict(other))
    )
    layouts = (layout_in(one)._replace(pair_type=0) for one in (content, other))
    return first == second and next(layouts) == next(layouts)


def steps_of(content: Mapping[str, Any]) -> list[str]:
    """Return the types of the steps that text goes through before it is cut into pieces."""
    members = (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"))
    return [step["type"] for key, inner in members for step in flat_steps(content.get(key), inner)]


def _of_merges(vocabulary: Any, merges: Any, settings: Settings) -> Content:
    """Return the content for a ``vocab.json`` with a ``merges.txt``, by the rules of RoBERTa, GPT-2 or GPT-1."""
    for file, other in ((vocabulary, merges), (merges, vocabulary)):
        if not other.exists():
            raise UserError(f"{file} has no {other.name} beside it; put both, or a tokenizer.json, into one folder")
    settings.check_class("merges")
    vocab = read_json(vocabulary)
    lines = reading.utf8_text(merges, str(merges), "merges").split("\n")
    # Only the first line may be a comment: "# #" is a merge.
    pairs = [line.rstrip("\r") for line in lines[lines[0].startswith("#version") :]]
    named = settings.roles
    if settings.is_gpt or (not settings.class_name and _marks_ends(vocab)):
        return normal(_of_gpt(vocab, pairs, named), str(merges), named, settings)
    special = {name for names in NAMES.values() for name in names if name in vocab} | {*named.values()} & vocab.keys()
    mask = named.get("mask", "<mask>")
    first = bool(settings.switch("add_prefix_space"))
    content: Content = {
        "added_tokens": [
            {"lstrip": name == mask, **settings.flags(name), "id": vocab[name], "content": name, "special": True}
            for name in special
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": first, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": [pair for pair in pairs if pair]},
    }
    ends = {role: named.get(role, usual) for role, usual in (("cls", "<s>"), ("sep", "</s>"))}
    if settings.is_roberta or {*ends.values()} <= special:
        named |= ends
        content["post_processor"] = {"type": "RobertaProcessing", **{role: [token] for role, token in ends.items()}}
    return normal(content, str(merges), named, settings)


def _marks_ends(vocab: Collection[str]) -> bool:
    """Return whether pieces with a suffix end words, and no piece stands for the byte of a space, as in GPT-1."""
    return any(piece.endswith(_END_OF_WORD) for piece in vocab) and ALPHABET[ord(" ")] not in vocab


def _of_gpt(vocab: Mapping[str, int], merges: Sequence[str], named: Mapping[str, str]) -> Content:
    """Return the content of GPT-1's tokenizer: words as BERT's in lower case, and a suffix where they end."""
    clean = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    unknown = named.get("unk", NAMES["unk"][1])
    return {
        "normalizer": {"type": "BertNormalizer", **clean},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "BPEDecoder", "suffix": _END_OF_WORD},
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "end_of_word_suffix": _END_OF_WORD,
            "vocab": dict(vocab),
            "merges": [pair for pair in merges if pair],
        },
    }
