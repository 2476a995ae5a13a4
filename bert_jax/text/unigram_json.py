"""Reads a Unigram ``tokenizer.json`` of Hugging Face as a sentencepiece model.

Recent versions of transformers save this file alone, without a ``spiece.model`` (ALBERT). The steps of its normaliser
become one replacement table, so the model's own file holds all that the ids depend on.
"""

from __future__ import annotations

import base64
import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from bert_jax.errors import UserError
from bert_jax.records import CLS, SEP
from bert_jax.storage import files, reading
from bert_jax.text import sentencepiece_model
from bert_jax.text.byte_level import flat, parsed
from bert_jax.text.sentencepiece_model import BYTE, CONTROL, NORMAL, UNKNOWN

SPACE = "\u2581"
CHARACTER_STEPS = ("NFKD", "NFD", "StripAccents", "Lowercase", "Precompiled")  # they change characters one by one
NOT_WHITE = "\x1c\x1d\x1e\x1f"  # white space for Python, but not for Unicode
REPLACED = {(quote, '"') for quote in sentencepiece_model.QUOTES}
ADVICE = "give the spiece.model that it was made from, or learn a vocabulary with `bert-jax vocab`"
Steps = Sequence[Mapping[str, Any]]


def read(path: str | os.PathLike[str]) -> bytes:
    """Return the ``.model`` with the pieces, scores and rules of a Unigram ``tokenizer.json``.

    Raises:
      UserError: the file is damaged, or has a rule that a sentencepiece model cannot have.
    """
    content = parsed(reading.read_bytes(files.as_path(path)), str(path))
    try:
        return _read(content, str(path))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); copy it again") from error


def _read(content: Mapping[str, Any], where: str) -> bytes:
    characters, spaces = _steps(flat(content.get("normalizer"), "normalizers"), where)
    splitters = flat(content.get("pre_tokenizer"), "pretokenizers")
    model = sentencepiece_model.new()
    model.normalizer_spec.add_dummy_prefix = _adds_space(splitters, spaces, where)
    _add_pieces(model, content, where)
    special = sentencepiece_model.prepared(model.SerializeToString(), None, where)[1]
    _check_layout(content.get("post_processor"), special[CLS], special[SEP], where)
    model.normalizer_spec.precompiled_charsmap = _table(characters, len(splitters) > 1, where)
    return bytes(model.SerializeToString(deterministic=True))


def _steps(steps: Steps, where: str) -> tuple[Steps, Steps]:
    """Return the steps of a normaliser that change characters, and the steps after them that drop spaces."""
    spaces = [step for step in steps if step["type"] == "Strip" or _joins_spaces(step)]
    characters = steps[: len(steps) - len(spaces)]
    for i, step in enumerate(steps):
        first = i == 0 or steps[i - 1]["type"] == "Replace"  # so that quotes are replaced as they are written
        quotes = step["type"] == "Replace" and (step["pattern"].get("String"), step["content"]) in REPLACED and first
        if not (quotes or (step["type"] in CHARACTER_STEPS if i < len(characters) else step in spaces)):
            named = json.dumps(step, ensure_ascii=False)[:80]
            raise UserError(f"{where} has the normalizer step {named}, which this package cannot do; {ADVICE}")
    return characters, spaces


def _joins_spaces(step: Mapping[str, Any]) -> bool:
    return step["type"] == "Replace" and step["pattern"].get("Regex") == " {2,}" and step["content"] in (" ", SPACE)


def _adds_space(steps: Steps, spaces: Steps, where: str) -> bool:
    """Return whether the pre-tokenizer puts a space before a text.

    Raises ``UserError`` for another pre-tokenizer than Metaspace, and if spaces are kept as they stand.
    """
    kinds = [step["type"] for step in steps]
    if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]) or steps[-1]["replacement"] != SPACE:
        raise UserError(f"{where} has the pre_tokenizer {' '.join(kinds) or None}, not Metaspace; {ADVICE}")
    old = "always" if steps[-1].get("add_prefix_space", True) else "never"
    scheme = steps[-1].get("prepend_scheme", old)
    strips = [step for step in spaces if step["type"] == "Strip"]
    joined = len(kinds) > 1 or (len(strips) < len(spaces) and any(step["strip_right"] for step in strips))
    if len(kinds) > 1 and scheme != "always":
        raise UserError(
            f"{where} has Metaspace.prepend_scheme {scheme!r} after WhitespaceSplit, not 'always'; {ADVICE}"
        )
    if not joined or (scheme == "never" and not any(step["strip_left"] for step in strips)):
        raise UserError(f"{where} keeps several spaces in a row, or those around a text; {ADVICE}")
    return bool(scheme != "never")


def _add_pieces(model: Any, content: Mapping[str, Any], where: str) -> None:
    unk_id = content["model"].get("unk_id")
    entries = [(str(piece), float(score)) for piece, score in content["model"]["vocab"]]
    if unk_id is None:
        raise UserError(f"{where} has no unk_id; {ADVICE}")
    added = {token["id"]: token for token in content.get("added_tokens") or ()}
    entries += [(added[i]["content"], 0.0) for i in range(len(entries), max([*added, -1]) + 1)]
    with_bytes = bool(content["model"].get("byte_fallback"))
    for i, (piece, score) in enumerate(entries):
        kind = BYTE if with_bytes and piece.startswith("<0x") and len(piece) == 6 else NORMAL
        if i in added:
            kind = CONTROL  # never results from text
            if added[i]["content"] != piece:
                raise UserError(
                    f"{where} names the piece {i} both {piece!r} and {added[i]['content']!r}; copy it again"
                )
            if not (added[i]["special"] and piece[:1] + piece[-1:] in ("<>", "[]")):
                raise UserError(f"{where} has the added token {piece!r}, which divides words; {ADVICE}")
        model.pieces.add(piece=piece, score=score, type=UNKNOWN if i == unk_id else kind)


def _table(steps: Steps, splits: bool, where: str) -> bytes:
    """Return the replacement table that does what ``steps`` do, for each character and each of their own sources.

    Args:
      splits: whether text is split at every kind of white space, so that it all becomes spaces.
    """
    given = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    own = base64.b64decode(given[0]) if given else b""
    if len(given) == len(steps) < 2:
        return own
    if len(given) > 1:
        raise UserError(f"{where} has {len(given)} tables of replacements; {ADVICE}")
    spec = sentencepiece_model.new().normalizer_spec
    spec.precompiled_charsmap = own
    sources = set(sentencepiece_model.replacements(spec))  # of a damaged table, this raises an error: the engine panics
    sources |= {step["pattern"]["String"] for step in steps if step["type"] == "Replace"}
    normalize = _engine(steps, where).normalize_str
    sources.update(filter(_may_change, map(chr, range(1, 0x110000))))
    found = {source: normalize(source) for source in sorted(sources)}
    if splits:
        found = {source: "".join(" " if _is_white(c) else c for c in target) for source, target in found.items()}
    return sentencepiece_model.table({source: target for source, target in found.items() if source != target})


def _may_change(c: str) -> bool:
    """Return whether a step other than a table of replacements, or a split, may change the character ``c``."""
    kind = unicodedata.category(c)
    return kind not in ("Cs", "Cn", "Co") and (
        kind[0] == "M" or c.isspace() or c.lower() != c or unicodedata.normalize("NFKD", c) != c
    )


def _is_white(c: str) -> bool:
    return c.isspace() and c not in NOT_WHITE


def _engine(steps: Steps, where: str) -> Any:
    """Return the library's normaliser for ``steps``."""
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}
    content = {"version": "1.0", "added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": steps}}
    others = dict.fromkeys(("truncation", "padding", "pre_tokenizer", "post_processor", "decoder"))
    try:
        return tokenizers.Tokenizer.from_str(json.dumps({**content, **others, "model": model})).normalizer
    except Exception as error:  # the library raises plain ``Exception``
        raise UserError(f"{where} has a damaged normalizer: {str(error)[:200]}; copy it again") from error


def _check_layout(processor: Mapping[str, Any] | None, cls: int, sep: int, where: str) -> None:
    """Raise ``UserError`` unless the special tokens stand around texts as in BERT, with its token types."""
    if processor is None:
        return
    found = (processor.get("cls", [0, 0])[1], processor.get("sep", [0, 0])[1])
    if processor["type"] == "BertProcessing" and found == (cls, sep):
        return
    single = [(cls, 0), ("A", 0), (sep, 0)]
    if processor["type"] == "TemplateProcessing":
        ids = {name: entry["ids"][0] for name, entry in processor["special_tokens"].items()}
        layouts = [
            [(ids.get(part["id"], part["id"]), part["type_id"]) for step in processor[form] for part in step.values()]
            for form in ("single", "pair")
        ]
        if layouts == [single, [*single, ("B", 1), (sep, 1)]]:
            return
    raise UserError(
        f"{where} does not lay texts out as [CLS] A [SEP] B [SEP], with token types 0 and 1 (its post_processor is "
        f"{processor['type']}); {ADVICE}"
    )
