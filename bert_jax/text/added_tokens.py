"""Finds the added tokens of published tokenizers, such as ``<e1>``, that text would lose.

Transformers keeps an added token whole wherever it stands in text. Here it would be cut as plain text, so that its row
of the embeddings is never used.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.storage import files, reading
from bert_jax.text.tokenizer import Tokenizer

CONFIG = "tokenizer_config.json"
FILES = ("tokenizer.json", CONFIG, "special_tokens_map.json", "added_tokens.json")
# They stand around documents and not inside: the start and end of a text, and the ends in ModernBERT's tokenizer.
AROUND_TEXTS = ("bos_token", "eos_token")
AROUND_DOCUMENTS = ("<|endoftext|>", "<|padding|>")
NAMED = re.compile(r"<[^<>]+>|\[(?!unused)[^\[\]]+\]")
SHOWN = 5


def check(tokenizer: Tokenizer, names: Iterable[str], where: str) -> None:
    """Raise ``UserError`` if text would lose one of the added tokens ``names``, which are in the place ``where``.

    The five special tokens are no loss, and neither is a token that the tokenizer reads as a piece.
    """
    own = {*SPECIAL_TOKENS, *(tokenizer.vocab[i] for i in tokenizer.special_ids), *AROUND_DOCUMENTS}
    lost = [name for name in dict.fromkeys(names) if name not in own and not _is_read(tokenizer, name)]
    if lost:
        more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
        raise UserError(
            f"{where} has added tokens that text would lose, because it is read without them: "
            f"{', '.join(map(repr, lost[:SHOWN]))}{more}; give the tokenizer without them, and a model with as many "
            "embeddings (resize_token_embeddings in transformers)"
        )


def declared(path: str | os.PathLike[str]) -> list[str]:
    """Return the added tokens of the tokenizer at ``path``, a file or a folder, without those around whole texts."""
    contents = list(_contents(path))
    around = {_text(content.get(role)) for content in contents for role in AROUND_TEXTS}
    return [name for content in contents for name in _names(content) if name not in around]


def kept(workdir: str | os.PathLike[str], tokenizer: Tokenizer) -> list[str]:
    """Return the added tokens in a run's folder. Imports of earlier versions kept them as the last pieces."""
    return [*declared(workdir), *itertools.takewhile(NAMED.fullmatch, reversed(tokenizer.vocab))]


def _contents(path: str | os.PathLike[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the files that name added tokens: the file itself, and those of its folder if it is a model's folder."""
    source = files.as_path(path)
    folder = source if source.is_dir() else source.parent
    own = [source] if source.name.endswith(".json") else []
    beside = [folder / name for name in FILES] if source.is_dir() or (folder / CONFIG).exists() else []
    for file in dict.fromkeys([*own, *beside]):
        content = reading.read_object(file) or {}
        yield {"added_tokens": list(content)} if file.name == FILES[-1] else content


def _names(content: Mapping[str, Any]) -> Iterable[str]:
    """Return the added tokens that a file names, each as a string or as an object with its text."""
    lists = [content.get(key) for key in ("added_tokens", "additional_special_tokens", "extra_special_tokens")]
    lists.append(content.get("added_tokens_decoder"))
    values = [list(one.values()) if isinstance(one, dict) else one for one in lists]
    return [text for one in values if isinstance(one, list) for text in map(_text, one) if text]


def _text(token: Any) -> str:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _is_read(tokenizer: Tokenizer, name: str) -> bool:
    """Return whether the text ``name`` gives the piece of this name."""
    return name in (tokenizer.vocab[i] for i in tokenizer.encode_batch([name])[0])
