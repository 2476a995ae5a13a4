"""Reads and makes the content of a ``tokenizer.json``, the file format of the library ``tokenizers``.

All files but the ``.model`` of sentencepiece are turned into this content: ``vocab.txt`` (WordPiece), ``vocab.json``
with ``merges.txt`` (byte-level BPE), and ``tokenizer.json`` itself. Its template names the special tokens by their
``ROLES``, so that one file defines a tokenizer. Special tokens are found by role and never by id.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, UNK
from bert_jax.storage import files, reading
from bert_jax.text.marks import SPACE
from bert_jax.text.settings import FLAGS, ROLES, Settings, Token, check_token, read_json

Content = dict[str, Any]
# role -> names of its token in published tokenizers, for tokenizers whose files do not name the token of the role.
NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
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

    A role that no token has gets a new token, under BERT's name, so V grows by one.

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
    processors = flat(content.get("post_processor"), "processors")
    ids = ids_of(whole)
    roles = _roles(processors, named, ids, model, where)
    lacking = {role: token for role, token in zip(ROLES, SPECIAL_TOKENS, strict=True) if role not in roles}
    special = {role: (roles | lacking)[role] for role in ROLES}
    flags = settings.flags if settings else lambda token: {}
    whole = with_added(whole, [{"content": token, **flags(token)} for token in special.values()])
    for entry in whole["added_tokens"]:
        entry["special"] |= entry["content"] in special.values()
    ids = ids_of(whole)
    separators, pair_type = _pair_form(processors, special, where)
    tokens = {role: (token, ids[token]) for role, token in special.items()}
    return whole | {"post_processor": _template(tokens, separators, pair_type)}


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
    """Return whether two results of ``normal`` give the same ids, but for the types of the texts of a pair."""
    first, second = (
        c | {"post_processor": c["post_processor"]["special_tokens"], "decoder": None}
        for c in (dict(content), dict(other))
    )
    return first == second and pair_form(content)[0] == pair_form(other)[0]


def steps_of(content: Mapping[str, Any]) -> list[str]:
    """Return the types of the steps that text goes through before it is cut into pieces."""
    members = (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"))
    return [step["type"] for key, inner in members for step in flat(content.get(key), inner)]


def flat(step: Any, members: str) -> Sequence[Mapping[str, Any]]:
    """Return the steps of a normaliser, pre-tokenizer or post-processor, which may be one step, a sequence, or None."""
    if not step:
        return []
    return [inner for part in step[members] for inner in flat(part, members)] if step["type"] == "Sequence" else [step]


def _template(special: Mapping[str, tuple[str, int]], separators: int, pair_type: int) -> dict[str, Any]:
    """Return the post-processor for ``cls A sep`` and ``cls A sep.. B sep``, which names special tokens by their roles.

    Args:
      special: role -> (token, id).
      separators: the number of separators between the texts of a pair.
      pair_type: the token type of the second text.
    """

    def token(role: str, type_id: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": role, "type_id": type_id}}

    def text(name: str, type_id: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    single = [token("cls"), text("A"), token("sep")]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *[token("sep")] * (separators - 1), text("B", pair_type), token("sep", pair_type)],
        "special_tokens": {role: {"id": role, "ids": [i], "tokens": [name]} for role, (name, i) in special.items()},
    }


def special_of(content: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of the special tokens, in the order of ``ROLES``, for the result of ``normal``."""
    return tuple(content["post_processor"]["special_tokens"][role]["ids"][0] for role in ROLES)


def pair_form(content: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of separators in a pair and the type of the second text, for the result of ``normal``."""
    pair = content["post_processor"]["pair"]
    return len(pair) - 4, pair[-1]["SpecialToken"]["type_id"]


def _roles(
    processors: Sequence[Mapping[str, Any]],
    named: Mapping[str, str],
    ids: Mapping[str, int],
    model: Mapping[str, Any],
    where: str,
) -> dict[str, str]:
    """Return role -> token for the roles that a token has.

    The token of a role is, in this order: the token that the post-processor names, the model's own [UNK], the token in
    ``named`` (from files beside the tokenizer), or the first of the role's ``NAMES`` that is a piece.
    """
    stated: dict[str, str] = {}
    for step in processors:
        if step["type"] in ("RobertaProcessing", "BertProcessing"):
            stated |= {"cls": step["cls"][0], "sep": step["sep"][0]}
        elif step["type"] == "TemplateProcessing":
            stated |= _template_roles(step)
    unknown = model["vocab"][model["unk_id"]][0] if "unk_id" in model else model.get("unk_token")
    if "unk_id" in model and unknown != named.get("unk", unknown) in ids:  # else an ordinary piece becomes special
        raise UserError(
            f"{where} takes {unknown!r} for unknown characters (unk_id {model['unk_id']}), the files beside it "
            f"{named['unk']!r}; correct the one that is wrong"
        )
    roles: dict[str, str] = {}
    for role in ROLES:
        usual = next((name for name in NAMES[role] if name in ids), None)
        own = unknown if role == "unk" and (model["type"] != "BPE" or role not in named) else None
        token = stated.get(role) or own or named.get(role) or usual
        if token:
            roles[role] = str(token)
    for role, token in roles.items():
        if token not in ids:
            raise UserError(f"{where} takes {token!r} for {role}, which the vocabulary lacks; add it as an added token")
    tokens = list(roles.values())
    if twice := next((token for token in tokens if tokens.count(token) > 1), None):
        both = " and ".join(role for role in roles if roles[role] == twice)
        raise UserError(
            f"{where} takes {twice!r} for {both}; name a token of its own for each in special_tokens_map.json"
        )
    return roles


def _template_roles(step: Mapping[str, Any]) -> dict[str, str]:
    """Return role -> token as a template states it: by its keys if they are roles, else by the tokens around a text."""
    tokens = {name: entry["tokens"][0] for name, entry in step["special_tokens"].items()}
    if set(ROLES) <= tokens.keys():
        return {role: tokens[role] for role in ROLES}
    single = [piece["SpecialToken"]["id"] if "SpecialToken" in piece else None for piece in step["single"]]
    if len(single) == 3 and single[0] and single[1] is None and single[2]:
        return {"cls": tokens[single[0]], "sep": tokens[single[2]]}
    return {}


def _pair_form(processors: Sequence[Mapping[str, Any]], roles: Mapping[str, str], where: str) -> tuple[int, int]:
    """Return the number of separators in a pair and the type of the second text: 2, 0 (RoBERTa) or 1, 1 (BERT).

    A template that only joins the texts, without special tokens, tells nothing.
    """
    steps = [step for step in processors if step["type"] != "ByteLevel"]
    if len(steps) > 1:
        raise UserError(f"{where} has {len(steps)} post-processors that put tokens around a text; one can be read")
    if not steps or steps[0]["type"] != "TemplateProcessing":
        return (2, 0) if steps and steps[0]["type"] == "RobertaProcessing" else (1, 1)
    cls, sep = roles["cls"], roles["sep"]
    single = [f"{cls}:0", "A:0", f"{sep}:0"]
    pairs = {
        (count, kind): [*single, *[f"{sep}:0"] * (count - 1), f"B:{kind}", f"{sep}:{kind}"]
        for count in (1, 2)
        for kind in (0, 1)
    }
    for name, known in (("single", [single]), ("pair", pairs.values())):
        if (layout := _layout(steps[0], name)) not in known and any(part[:2] not in ("A:", "B:") for part in layout):
            raise UserError(
                f"{where} lays a {'text' if name == 'single' else name} out as {' '.join(layout)} (token:type); "
                f"{cls} A {sep} and {cls} A {sep} B {sep}, or two {sep} between the texts, can be read"
            )
    return next((form for form, pair in pairs.items() if pair == _layout(steps[0], "pair")), (1, 1))


def is_bare(content: Mapping[str, Any]) -> bool:
    """Return whether the post-processor in a ``tokenizer.json`` puts no special tokens around a text."""
    steps = flat(content.get("post_processor"), "processors")
    return all(step["type"] == "ByteLevel" or not step.get("special_tokens", True) for step in steps)


def _layout(step: Mapping[str, Any], key: str) -> list[str]:
    """Return "A", "B" or a special token, with its type, for each part of a template."""
    names = {name: entry["tokens"][0] for name, entry in step["special_tokens"].items()}
    pieces = [next(iter(piece.values())) for piece in step[key] or ()]
    return [f"{names.get(piece['id'], piece['id'])}:{piece['type_id']}" for piece in pieces]


def _of_merges(vocabulary: Any, merges: Any, settings: Settings) -> Content:
    """Return the content for a ``vocab.json`` with a ``merges.txt``, by the rules of RoBERTa."""
    for file, other in ((vocabulary, merges), (merges, vocabulary)):
        if not other.exists():
            raise UserError(f"{file} has no {other.name} beside it; put both, or a tokenizer.json, into one folder")
    settings.check_class("merges")
    vocab = read_json(vocabulary)
    lines = reading.utf8_text(merges, str(merges), "merges").split("\n")
    # Only the first line may be a comment: "# #" is a merge.
    pairs = [line.rstrip("\r") for line in lines[lines[0].startswith("#version") :]]
    named = settings.roles
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
