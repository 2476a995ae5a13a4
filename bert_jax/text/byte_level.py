"""Reads the files of a byte-level BPE tokenizer, checks them and brings them to a normal form.

Published tokenizers come as ``tokenizer.json`` (merges are strings or pairs) or as ``vocab.json`` with ``merges.txt``.
The normal form is a ``tokenizer.json`` whose template names the special tokens by their ``ROLES``, so that one file
defines the tokenizer. Special tokens are found by role and never by id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage import files, reading

ROLES = ("pad", "unk", "cls", "sep", "mask")  # in the order of records.SPECIAL_TOKENS
# role -> its token's names in published tokenizers, used if neither a template nor a file beside the tokenizer tells.
NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("<s>", "[CLS]"),
    "sep": ("</s>", "[SEP]"),
    "mask": ("<mask>", "[MASK]"),
}
FILE_NAME = "tokenizer.json"
MERGES, VOCABULARY = "merges.txt", "vocab.json"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json")
NEVER_IN_UTF8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


def _alphabet() -> tuple[str, ...]:
    """Return the printable character that stands for each byte (Radford et al. 2019, ``bytes_to_unicode``)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


ALPHABET = _alphabet()  # byte -> character
SPACE = ALPHABET[ord(" ")]  # U+0120, which begins most words


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the tokenizer at ``path`` in the normal form.

    Args:
      path: a ``tokenizer.json``, or either of a ``vocab.json`` and a ``merges.txt``.

    Raises:
      UserError: the file does not exist, is damaged, or is a tokenizer of another kind.
    """
    source = files.as_path(path)
    if source.name == MERGES:
        return prepared(*_joined(source.parent / VOCABULARY, source))
    content = _read_json(source)
    if "model" not in content and source.name == VOCABULARY:
        return prepared(*_joined(source, source.parent / MERGES))
    return prepared(content, str(path), _named_beside(source.parent))


def parsed(data: str | bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in ``data``, which messages call ``where``."""
    try:
        content = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}); it may be cut short: copy it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{where} holds no JSON object, but a {type(content).__name__}; give a tokenizer.json")
    return content


def prepared(content: Mapping[str, Any], where: str, named: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return ``content`` in the normal form, after checking it.

    Args:
      content: the content of a ``tokenizer.json``.
      where: what error messages call the tokenizer.
      named: role -> token, from files beside the tokenizer's file.

    Raises:
      UserError: the tokenizer is of another kind, is damaged, or lacks a special token that BERT needs.
    """
    try:
        return _prepared(content, where, named or {})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{where} is damaged ({type(error).__name__}: {error}); copy it again") from error


def _prepared(content: Mapping[str, Any], where: str, named: Mapping[str, str]) -> dict[str, Any]:
    model = _checked_model(content, where)
    vocab: dict[str, int] = model["vocab"]
    added = {token["content"]: dict(token) for token in content.get("added_tokens") or ()}
    ids = {**vocab, **{token: entry["id"] for token, entry in added.items()}}
    processors = list(flat(content.get("post_processor"), "processors"))
    found = _roles(processors, named, ids, added, where)
    for token in found.values():
        entry = added.get(token) or {"id": ids[token], "content": token}
        added[token] = {**entry, "special": True}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    entries = [
        {"id": e["id"], "content": e["content"], **{flag: bool(e.get(flag)) for flag in flags}}
        for e in sorted(added.values(), key=lambda e: e["id"])
    ]
    separators, pair_type = _pair_form(processors, found, where)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": entries,
        "normalizer": content.get("normalizer"),
        "pre_tokenizer": content["pre_tokenizer"],
        "post_processor": template({role: (token, ids[token]) for role, token in found.items()}, separators, pair_type),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def template(special: Mapping[str, tuple[str, int]], separators: int, pair_type: int) -> dict[str, Any]:
    """Return the post-processor for ``cls A sep`` and ``cls A sep.. B sep``, which names special tokens by their roles.

    Args:
      special: role -> (token, id).
      separators: the number of separators between the texts of a pair.
      pair_type: the token type of the second text.
    """

    def token(role: str, kind: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": role, "type_id": kind}}

    def text(name: str, kind: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [token("cls"), text("A"), token("sep")]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *[token("sep")] * (separators - 1), text("B", pair_type), token("sep", pair_type)],
        "special_tokens": {role: {"id": role, "ids": [i], "tokens": [name]} for role, (name, i) in special.items()},
    }


def roles_of(content: Mapping[str, Any]) -> dict[str, int]:
    """Return role -> id for a tokenizer in the normal form."""
    return {role: entry["ids"][0] for role, entry in content["post_processor"]["special_tokens"].items()}


def pair_form(content: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of separators in a pair and the type of the second text, for a tokenizer in the normal form."""
    pair = content["post_processor"]["pair"]
    return len(pair) - 4, pair[-1]["SpecialToken"]["type_id"]


def _checked_model(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the ``model`` of a ``tokenizer.json``, each merge as ``"a b"``. Raises ``UserError`` if it is damaged."""
    model = content.get("model")
    if not isinstance(model, dict):
        raise UserError(f"{where} is not the tokenizer.json of a tokenizer: it has no 'model'; give another")
    kind = kind_of(model)
    if kind != "BPE":
        raise UserError(
            f"{where} is a {kind} tokenizer; a tokenizer.json is read if it is byte-level BPE, as RoBERTa's,"
            " WordPiece or Unigram: give a vocab.txt or a .model of sentencepiece instead"
        )
    marks = [name for name in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback") if model.get(name)]
    steps = [step.get("type") for step in flat(content.get("pre_tokenizer"), "pretokenizers")]
    if marks or "ByteLevel" not in steps:
        reason = f"has {marks[0]}" if marks else "does not turn text into bytes first (no ByteLevel pre-tokenizer)"
        raise UserError(
            f"{where} is a BPE tokenizer that {reason}; a tokenizer.json is read if it is byte-level BPE, as RoBERTa's:"
            " give a .model of sentencepiece or a vocab.txt instead"
        )
    vocab = model["vocab"]
    if lost := [byte for byte in range(256) if byte not in NEVER_IN_UTF8 and ALPHABET[byte] not in vocab]:
        raise UserError(
            f"{where} has no piece for {len(lost)} of the bytes of text, such as 0x{lost[0]:02X}; characters with them"
            " would be dropped: give a vocabulary that begins with all 256 bytes"
        )
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    for number, pair in enumerate(pairs, 1):
        if len(pair) != 2:
            raise UserError(f"{where} is damaged: merge {number} has {len(pair)} pieces, not two; copy it again")
        first, second = pair
        if unknown := [piece for piece in (first, second, first + second) if piece not in vocab]:
            raise UserError(
                f"{where} is damaged: merge {number}, {first!r} with {second!r}, needs the piece {unknown[0]!r}, which"
                " the vocabulary lacks; copy it again, together with its vocabulary"
            )
    plain = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    flags = {name: bool(model.get(name)) for name in ("fuse_unk", "byte_fallback", "ignore_merges")}
    return {"type": "BPE", **plain, **flags, "vocab": dict(vocab), "merges": [" ".join(pair) for pair in pairs]}


def kind_of(model: Mapping[str, Any]) -> str:
    """Return the kind of the ``model`` of a ``tokenizer.json``; early versions do not name it."""
    if "type" in model:
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if "unk_id" in model:
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def flat(step: Any, members: str) -> Sequence[Mapping[str, Any]]:
    """Return the steps of a normaliser, pre-tokenizer or post-processor, which may be one step, a sequence, or None."""
    if not step:
        return []
    return [inner for part in step[members] for inner in flat(part, members)] if step["type"] == "Sequence" else [step]


def _roles(
    processors: Sequence[Mapping[str, Any]],
    named: Mapping[str, str],
    ids: Mapping[str, int],
    added: Mapping[str, Any],
    where: str,
) -> dict[str, str]:
    """Return role -> token.

    The token of a role is the one in the post-processor; otherwise the one in ``named``, which comes from files beside
    the tokenizer; otherwise the first of the role's ``NAMES`` that is an added token.
    """
    said: dict[str, str] = {}
    for step in processors:
        if step["type"] in ("RobertaProcessing", "BertProcessing"):
            said |= {"cls": step["cls"][0], "sep": step["sep"][0]}
        elif step["type"] == "TemplateProcessing":
            said |= _said_by_template(step)
    found = {}
    for role in ROLES:
        usual = next((name for name in NAMES[role] if name in added), None)
        token = said.get(role) or named.get(role) or usual
        if token is not None:
            found[role] = token
    if missing := [role for role in ROLES if role not in found]:
        raise UserError(
            f"{where} has no special token for {', '.join(missing)}; name each in a special_tokens_map.json beside it,"
            f' such as {{"{missing[0]}_token": "{NAMES[missing[0]][0]}"}}, and add what the vocabulary lacks'
        )
    for role, token in found.items():
        if token not in ids:
            raise UserError(f"{where} takes {token!r} for {role}, which the vocabulary lacks; add it as an added token")
    if len(set(found.values())) < len(found):
        twice = next(token for token in found.values() if list(found.values()).count(token) > 1)
        roles = " and ".join(role for role in found if found[role] == twice)
        raise UserError(
            f"{where} takes {twice!r} for {roles}; name a token of its own for each in special_tokens_map.json"
        )
    return found


def _said_by_template(step: Mapping[str, Any]) -> dict[str, str]:
    """Return role -> token as a template states it: by its keys if they are roles, else by the tokens around a text."""
    tokens = {name: entry["tokens"][0] for name, entry in step["special_tokens"].items()}
    if set(ROLES) <= tokens.keys():
        return {role: tokens[role] for role in ROLES}
    single = [piece["SpecialToken"]["id"] if "SpecialToken" in piece else None for piece in step["single"]]
    if len(single) == 3 and single[0] and single[1] is None and single[2]:
        return {"cls": tokens[single[0]], "sep": tokens[single[2]]}
    return {}


def _pair_form(processors: Sequence[Mapping[str, Any]], roles: Mapping[str, str], where: str) -> tuple[int, int]:
    """Return the number of separators in a pair and the type of the second text: 2, 0 (RoBERTa) or 1, 1 (BERT)."""
    for step in processors:
        if step["type"] == "RobertaProcessing":
            return 2, 0
        if step["type"] == "TemplateProcessing" and step["pair"]:
            names = {name: entry["tokens"][0] for name, entry in step["special_tokens"].items()}
            kinds = [next(iter(piece.values())) for piece in step["pair"]]
            layout = [names.get(kind["id"], kind["id"]) for kind in kinds]
            cls, sep = roles["cls"], roles["sep"]
            for separators in (1, 2):
                if layout == [cls, "A", *[sep] * separators, "B", sep]:
                    return separators, kinds[-1]["type_id"]
            if cls in layout:  # a template that only joins the texts tells nothing
                raise UserError(
                    f"{where} lays a pair out as {' '.join(layout)}; {cls} A {sep} B {sep}, or two {sep} between the"
                    " texts, can be read"
                )
    return 1, 1


def _joined(vocabulary: Any, merges: Any) -> tuple[dict[str, Any], str, dict[str, str]]:
    """Return the arguments of ``prepared`` for a ``vocab.json`` with a ``merges.txt``, by the rules of RoBERTa."""
    vocab = _read_json(vocabulary)
    if not all(isinstance(i, int) for i in vocab.values()):
        raise UserError(f"{vocabulary} does not map each piece to a number; give the vocab.json of a tokenizer")
    try:
        lines = reading.read_bytes(merges).decode("utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(
            f"{vocabulary} has no {MERGES} beside it; put both, or a tokenizer.json, into one folder"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{merges} is not UTF-8 at byte offset {error.start}; copy it again") from error
    # Only the first line may be a comment: "# #" is a merge.
    pairs = [line.rstrip("\r") for line in lines[lines[0].startswith("#version") :]]
    named = _named_beside(merges.parent)
    special = {name for names in NAMES.values() for name in names if name in vocab} | {*named.values()} & vocab.keys()
    mask = named.get("mask", "<mask>")
    options = _options_beside(merges.parent)
    content = {
        "added_tokens": [
            {"id": vocab[name], "content": name, "lstrip": name == mask, "special": True} for name in special
        ],
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": bool(options.get("add_prefix_space")),
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": [pair for pair in pairs if pair]},
    }
    if {"<s>", "</s>"} <= special:
        content["post_processor"] = {"type": "RobertaProcessing", "cls": ["<s>"], "sep": ["</s>"]}
    return content, str(merges), named


def _named_beside(folder: Any) -> dict[str, str]:
    """Return role -> token from ``tokenizer_config.json`` and ``special_tokens_map.json`` in ``folder``."""
    options = _options_beside(folder)
    tokens = {role: options.get(f"{role}_token") for role in ROLES}
    # A token is a string, or an object with options.
    texts = {role: token.get("content") if isinstance(token, dict) else token for role, token in tokens.items()}
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _options_beside(folder: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in BESIDE:
        if (folder / name).exists():
            found |= _read_json(folder / name)
    return found


def _read_json(source: Any) -> dict[str, Any]:
    if not source.exists():
        raise UserError(
            f"no vocabulary file {source}; learn one with `bert-jax vocab` or name a published tokenizer.json"
        )
    return parsed(reading.read_bytes(source), str(source))
