"""Reads the vocabulary and the rules of a WordPiece tokenizer from a Hugging Face ``tokenizer.json``.

Recent versions of transformers save this file alone, without a ``vocab.txt``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.storage import files, reading
from bert_jax.text.byte_level import parsed

# What every BERT tokenizer has, and this one can do: (step, option, value).
RULES = (
    ("normalizer", "type", "BertNormalizer"),
    ("normalizer", "clean_text", True),
    ("normalizer", "handle_chinese_chars", True),
    ("pre_tokenizer", "type", "BertPreTokenizer"),
    ("model", "unk_token", "[UNK]"),
    ("model", "continuing_subword_prefix", "##"),
    ("model", "max_input_chars_per_word", 100),
)


def read(path: str | os.PathLike[str], lowercase: bool | None = None) -> tuple[tuple[str, ...], bool]:
    """Return (pieces by id, whether text is converted to lower case) of a WordPiece ``tokenizer.json``.

    Args:
      lowercase: what the caller expects; None takes what the file says.

    Raises:
      UserError: the file is damaged, has rules that BERT's tokenizer does not have, or does not do what ``lowercase``
        expects.
    """
    content = parsed(reading.read_bytes(files.as_path(path)), str(path))
    try:
        return _read(content, str(path), lowercase)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); copy it again") from error


def _read(content: Mapping[str, Any], where: str, lowercase: bool | None) -> tuple[tuple[str, ...], bool]:
    for step, option, value in RULES:
        if (found := (content[step] or {}).get(option, value)) != value:
            raise UserError(
                f"{where} has {step}.{option} {found!r}; a WordPiece tokenizer is read if it is BERT's, with {value!r}:"
                " give the tokenizer of a BERT, or learn one with `bert-jax vocab`"
            )
    own, strips = bool(content["normalizer"]["lowercase"]), content["normalizer"].get("strip_accents")
    if strips not in (None, own):
        raise UserError(
            f"{where} has normalizer.strip_accents {strips} beside lowercase {own}; BERT strips accents if, and only "
            "if, it converts to lower case: give another tokenizer"
        )
    if lowercase not in (None, own):
        does = "converts text to lower case" if own else "keeps capitals"
        raise UserError(
            f"{where} {does}, and config.vocab.lowercase is {lowercase}; set --config.vocab.lowercase={own}"
        )
    added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
    by_id = {int(i): piece for piece, i in {**content["model"]["vocab"], **added}.items()}
    if lost := next((i for i in range(len(by_id)) if i not in by_id), None):
        raise UserError(f"{where} has no piece for id {lost}; copy it again")
    return tuple(by_id[i] for i in range(len(by_id))), own
