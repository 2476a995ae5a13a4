"""Finds the added tokens, such as ``<e1>``, that the files of a published tokenizer declare.

Their rows of the embeddings are made by ``interchange.initial.with_vocabulary_rows``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from etils import epath

from bert_jax.storage import reading

# An added token: its ``content``, its ``id`` if it is known, and the flags of ``tokenizer_json.FLAGS`` that are on.
# Without flags, it is found exactly as it is written, before text is converted to lower case.
Token: TypeAlias = Mapping[str, Any]
CONFIG = "tokenizer_config.json"
_AROUND_TEXTS = ("bos_token", "eos_token")


def of_files(source: epath.Path, pieces: Collection[str]) -> list[Token]:
    """Return the added tokens that the files beside a tokenizer's file declare, by id; [] outside a model's folder.

    A ``tokenizer.json`` declares them with ids and flags, as does ``tokenizer_config.json`` of some versions of
    transformers; others only list texts. Of the ``pieces`` of the file itself, those that stand around whole texts are
    left out.
    """
    folder = source.parent
    if not (folder / CONFIG).exists():
        return []
    config, special_map, whole, ids = (
        reading.read_object(folder / name) or {}
        for name in (CONFIG, "special_tokens_map.json", "tokenizer.json", "added_tokens.json")
    )
    around = [_token(content.get(role)).get("content") for content in (config, special_map) for role in _AROUND_TEXTS]
    tokens: dict[str, Token] = {}
    listed = [token for content in (config, special_map) for token in _special_tokens(content)]
    special = {token["content"] for token in listed}
    by_id = config.get("added_tokens_decoder")
    plain = [
        {"content": text, "id": i, "special": text in special, "normalized": text not in special}
        for text, i in ids.items()
    ]
    decoded = [{**token, "id": int(i)} for i, token in by_id.items()] if isinstance(by_id, dict) else []
    for token in [*map(_token, whole.get("added_tokens") or ()), *decoded, *plain, *listed]:
        if token.get("content") and not (token["content"] in around and token["content"] in pieces):
            tokens.setdefault(token["content"], token)
    return sorted(tokens.values(), key=lambda token: token.get("id", float("inf")))


def _special_tokens(content: Mapping[str, Any]) -> Iterator[Token]:
    """Yield the special tokens that a file lists, each as a string or as an object."""
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values = content.get(key) or ()
        yield from map(_token, values.values() if isinstance(values, dict) else values)


def _token(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value if isinstance(value.get("content"), str) else {}
    return {"content": value, "special": True} if isinstance(value, str) else {}
