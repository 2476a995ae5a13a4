"""Fills each ``[MASK]`` of a text with the words that a model finds most likely."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.encoding import padded_length
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.records import MASK
from bert_jax.text.byte_level import NAMES
from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Filled:
    """The candidates for each mask in ``text``, most likely first, with their probabilities.

    A candidate is the text of a piece. If the piece continues a word, ``##`` is put before it, whatever the tokenizer.
    ``print`` shows the text with a line of candidates for each mask.
    """

    text: str
    predictions: tuple[tuple[tuple[str, float], ...], ...]

    def __str__(self) -> str:
        return as_table(self)


def fill_mask(
    params: Any, config: ModelConfig, tokenizer: Tokenizer, texts: Sequence[str], best: int = 5
) -> list[Filled]:
    """Return the candidates for the masks of each text. The texts do not influence each other.

    Args:
      params: a tree with the parameters of an encoder of ``config`` and of its ``mlm_head``; others are ignored.
      texts: texts with at least one ``[MASK]`` each, or the tokenizer's own name of the mask, such as ``<mask>``.

    Raises:
      UserError: a text has no mask, or more tokens than the model has positions; or the model is left-to-right or has
        no masked-LM head.
    """
    if config.causal:
        raise UserError(
            "a left-to-right model predicts what follows a text and cannot fill a [MASK]; leave config.examples out"
        )
    if LM_HEAD.name not in params:
        raise UserError(
            f"this model has no masked-LM head (its parts: {', '.join(params)}), and a fresh one knows no words; take "
            "a model with a head, or train one first (bert-jax pretrain --config=continue --init=...)"
        )
    encoded = encode_masked(texts, tokenizer, config.max_length)
    masks = [np.flatnonzero(ids == tokenizer.mask_id) for ids in encoded]
    length = padded_length(max(map(len, encoded)), config.max_length)
    input_ids = _pad(encoded, tokenizer.pad_id, length)  # [B, L]
    batch = {
        "input_ids": input_ids,
        "token_type_ids": np.zeros_like(input_ids),
        "attention_mask": _pad([np.ones_like(ids) for ids in encoded], 0, length),
        "masked_positions": _pad(masks, 0, max(map(len, masks))),  # [B, P]
    }
    logits = _logits(config, {name: params[name] for name in ("encoder", LM_HEAD.name)}, batch)  # [B, P, V]
    probabilities = np.array(jax.nn.softmax(logits))[..., : tokenizer.size]  # other logits are of padding
    probabilities[..., list(tokenizer.special_ids)] = 0.0  # never an answer

    def candidates(row: np.ndarray) -> tuple[tuple[str, float], ...]:
        return tuple((shown(int(i)), float(row[i])) for i in np.argsort(-row)[:best])

    def shown(token: int) -> str:
        text, continues = tokenizer.surfaces[token]
        text = text or tokenizer.vocab[token]  # a space alone
        return f"##{text}" if continues and tokenizer.is_continuation[token] else text

    return [
        Filled(text, tuple(candidates(row) for row in rows[: len(mask)]))
        for text, mask, rows in zip(texts, masks, probabilities, strict=True)
    ]


@functools.partial(jax.jit, static_argnums=0)
def _logits(config: ModelConfig, params: Any, batch: Any) -> jax.Array:
    outputs: Any = Model(config, (LM_HEAD,)).apply({"params": params}, batch)
    return outputs["mlm_logits"]  # type: ignore[no-any-return]


def check_masked(texts: Sequence[str], where: str = "") -> None:
    """Raise ``UserError`` for a text without any usual name of the mask.

    ``where`` is the config key that has the texts.
    """
    for text in texts:
        if not any(name in text for name in NAMES["mask"]):
            raise _no_mask(text, where)


def _no_mask(text: str, where: str) -> UserError:
    missing = f"{where} has no" if where else "no"
    return UserError(f"{missing} {MASK} in {text[:60]!r}; write {MASK} where a word is to be found")


def encode_masked(texts: Sequence[str], tokenizer: Tokenizer, max_length: int, where: str = "") -> list[np.ndarray]:
    """Return the token ids of each text, int32 [L].

    Args:
      where: the config key that has the texts, for messages.

    Raises:
      UserError: a text has no ``[MASK]``, or is longer than ``max_length``.
    """
    encoded = [np.asarray(tokenizer.encode(text, special_tokens_in_text=True).input_ids, np.int32) for text in texts]
    for text, ids in zip(texts, encoded, strict=True):
        if tokenizer.mask_id not in ids:
            raise _no_mask(text, where)
        if len(ids) > max_length:
            subject = f"a text of {where}" if where else "a text"
            raise UserError(
                f"{subject} has {len(ids)} tokens, the model {max_length} positions; shorten it: {text[:60]!r}"
            )
    return encoded


def _pad(rows: Sequence[np.ndarray], value: int, length: int) -> np.ndarray:
    """Return rows of different lengths as one int32 array [B, length], padded with ``value``."""
    padded = np.full((len(rows), length), value, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def as_record(filled: Filled) -> dict[str, Any]:
    """Return a record for JSON: ``predictions`` has a list of [word, probability] for each mask."""
    return {"text": filled.text, "predictions": [[list(c) for c in candidates] for candidates in filled.predictions]}


def as_table(filled: Filled) -> str:
    """Return the text, followed by one line of candidates for each mask."""
    lines = [", ".join(f"{_on_a_line(word)} {share:.2f}" for word, share in c) for c in filled.predictions]
    return "\n".join([filled.text, *(f"  {line}" for line in lines)])


def _on_a_line(word: str) -> str:
    """Return ``word`` with line breaks and other control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in word)
