"""Fills each ``[MASK]`` of a text with the words that a model finds most likely."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.text_model import TextModel
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import LM_HEAD, QUERIES, Model, has_queries
from bert_jax.records import MASK
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.text.encoded import typed
from bert_jax.text.marks import printable
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.tokenizer_json import NAMES
from bert_jax.training.forward import Forward
from bert_jax.training.mesh import MeshConfig, make_mesh

BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True)
class Filled:
    """The candidates for each mask in ``text``, most likely first, with their probabilities.

    A candidate is the text of a piece. If the tokenizer is WordPiece, a piece that continues a word has its ``##``.
    """

    text: str
    predictions: tuple[tuple[tuple[str, float], ...], ...]

    def __str__(self) -> str:
        """Return the text, followed by one line of candidates for each mask."""
        lines = [", ".join(f"{printable(word)} {share:.2f}" for word, share in mask) for mask in self.predictions]
        return "\n".join([self.text, *(f"  {line}" for line in lines)])


def fill_mask(model: TextModel, texts: Sequence[str], best: int = 5) -> list[Filled]:
    """Return the candidates for the masks of each text. The texts do not influence each other.

    Args:
      texts: texts with at least one ``[MASK]`` each, or the tokenizer's own name of the mask, such as ``<mask>``.

    Raises:
      UserError: a text has no mask, or more tokens than the model has positions; or the model does not read both
        sides, or has no masked-LM head.
    """
    model = model.with_parts(("encoder", LM_HEAD.name))
    params, config, tokenizer = model.params, model.config, model.tokenizer
    if config.causal:
        raise UserError(
            "a left-to-right model predicts what follows a text and cannot fill a [MASK]; bert-jax generate goes on "
            "with a text"
        )
    if config.reads == "both ways, apart":
        raise UserError(
            "a model that reads both ways, apart, cannot fill a [MASK]: none of its predictions sees both sides; take "
            "a model of a masked-LM objective"
        )
    if config.decodes:
        raise UserError(
            "a model with a decoder writes text and cannot fill a [MASK]: its head reads the decoder; bert-jax "
            "generate writes a text"
        )
    if words := model.facts.get("differs"):
        raise UserError(f"this model is not read at its masks: it {words}; pretrain one with the objective mlm")
    if LM_HEAD.name not in params:
        raise UserError(
            f"this model has no masked-LM head (its parts: {', '.join(params)}), and a fresh one knows no words; take "
            "a model with a head, or train one first (bert-jax pretrain --config=continue --init=...)"
        )
    encoded = encode_masked(texts, tokenizer, config.max_length)
    masks = [np.flatnonzero(ids == tokenizer.mask_id) for ids in encoded]
    places = np.zeros((len(texts), max(map(len, masks))), np.int32)  # [N, P]
    for row, mask in zip(places, masks, strict=True):
        row[: len(mask)] = mask
    types = [typed(np.zeros_like(ids), tokenizer.cls_last) for ids in encoded]
    rows = EncodedRows.of({"input_ids": encoded, "token_type_ids": types}, {"masked_positions": places})
    mesh = make_mesh(MeshConfig(), jax.local_devices())  # without the devices of other processes, which do not run this
    asks = has_queries(config.encoder) and model.facts.get("asks", "" if "objective" in model.facts else QUERIES)
    computed = functools.partial(_probabilities, config, tokenizer.mask_id if asks else None)
    forward = Forward(computed, mesh, BATCH_SIZE)
    read = {name: params[name] for name in ("encoder", LM_HEAD.name)}

    def candidates(row: np.ndarray) -> tuple[tuple[str, float], ...]:
        return tuple((shown(int(i)), float(row[i])) for i in np.argsort(-row)[:best])

    def shown(token: int) -> str:
        text = "" if tokenizer.is_wordpiece else tokenizer.surfaces[token][0]
        return text or tokenizer.vocab[token]  # a space alone, or WordPiece

    filled: dict[int, Filled] = {}
    for chosen, outputs in forward.rows(rows, config.max_length, read):
        probabilities = outputs["probabilities"][..., : tokenizer.size].copy()  # the rest pads the vocabulary
        probabilities[..., list(tokenizer.special_ids)] = 0.0  # never an answer
        for number, of_text in zip(chosen, probabilities, strict=True):
            found = tuple(candidates(row) for row in of_text[: len(masks[number])])
            filled[number] = Filled(texts[number], found)
    return [filled[number] for number in range(len(texts))]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _probabilities(config: ModelConfig, hidden: int | None, params: Any, batch: Any) -> dict[str, jax.Array]:
    """Return the probability of every piece at every mask, [B, P, V].

    ``hidden``: the id of the mask, if the model predicts from queries. These see all tokens but masks.
    """
    if hidden is not None:
        order = (batch["input_ids"] == hidden).astype(jnp.int32)
        batch = {**batch, "order_ids": order, QUERIES: batch["masked_positions"]}
    outputs: Any = Model(config, (LM_HEAD,)).apply({"params": params}, batch)
    return {"probabilities": jax.nn.softmax(outputs["mlm_logits"])}


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
