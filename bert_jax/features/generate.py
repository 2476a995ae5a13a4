"""Goes on with texts: prompts to the texts that a model writes after them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.text_model import TextModel
from bert_jax.generation.search import Search, tokens_of
from bert_jax.generation.settings import Settings
from bert_jax.generation.steppers import Decoder, LeftToRight, MaskAtEnd, Stepper, keeping, memory_bytes, stepper_of
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import LM_HEAD, Model, shapes_of
from bert_jax.program import size
from bert_jax.rows.example_rows import EncodedRows, padded_length
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.forward import Forward
from bert_jax.training.memory import device_bytes
from bert_jax.training.mesh import MeshConfig, make_mesh

BATCH_SIZE = 16
RECIPES = ("gpt2", "gpt", "unilm", "mass", "clm_mlm:ltr")  # whose models write


@dataclasses.dataclass(frozen=True)
class Generated:
    """A text that a model wrote after a prompt, without the prompt.

    Attributes:
      text: the text as a person reads it; it begins with a space if it begins a word.
      ids: the ids of its tokens, without an end token.
    """

    text: str
    ids: tuple[int, ...]


def generate(
    model: TextModel, prompts: Sequence[str], settings: Settings | None = None, batch_size: int = BATCH_SIZE
) -> list[Generated]:
    """Return what the model writes after each prompt: ``num_results`` texts for each, the best first, in order.

    Prompts do not influence each other.

    Args:
      batch_size: the number of prompts that are computed together.

    Raises:
      UserError: a prompt is empty or too long, the model cannot write, or the memory is too small.
    """
    settings = settings or Settings()
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; at least 1 is needed")
    model = model.with_parts(("encoder", LM_HEAD.name))
    tokenizer, config = model.tokenizer, keeping(model.config)
    stepper = stepper_of_trained(model)
    params = _params(config, model.params)
    if settings.method == "beam" and settings.beams > tokenizer.size:
        raise UserError(
            f"generate.beams is {settings.beams:,}, and the vocabulary has {tokenizer.size:,} pieces; give at most as "
            "many beams"
        )
    encoded = encode_prompts(prompts, tokenizer, stepper, settings.max_new_tokens)
    width = config.max_length - isinstance(stepper, MaskAtEnd)  # of a padded prompt, which a [MASK] follows
    mesh = make_mesh(MeshConfig(), jax.local_devices())  # without the devices of other processes, which do not run this
    longest = padded_length(max(map(len, encoded)), width)
    of_device = -(-min(batch_size, len(encoded)) // len(jax.local_devices()))  # prompts
    _check_memory(config, of_device * settings.rows, longest + settings.max_new_tokens)
    rows = EncodedRows.of({"input_ids": encoded}, {"numbers": np.arange(len(encoded), dtype=np.int32)})
    run = Search(stepper, dataclasses.replace(settings, seed=0), tokens_of(tokenizer))
    forward = Forward(functools.partial(_run, run), mesh, batch_size)
    found: dict[int, list[Generated]] = {}
    for chosen, outputs in forward.rows(rows, width, {"params": params}, np.int32(settings.seed)):
        for number, ids, lengths in zip(chosen, outputs["ids"], outputs["lengths"], strict=True):
            texts = [one[:length] for one, length in zip(ids, lengths, strict=True)]
            before = encoded[number] if stepper.goes_on else encoded[number][:0]
            found[number] = [Generated(_text(tokenizer, before, one), tuple(map(int, one))) for one in texts]
    return [one for number in range(len(encoded)) for one in found[number]]


@functools.partial(jax.jit, static_argnums=0)
def _run(run: Search, variables: Any, seed: jax.Array, batch: Any) -> dict[str, jax.Array]:
    return run(variables, seed, batch, batch["numbers"])._asdict()


def stepper_of_trained(model: TextModel) -> Stepper:
    """Return the way in which a trained model writes. Raises ``UserError`` if it cannot write.

    The "writes" of its facts has the ways that the objectives, or the task, of its training name. A model that learned
    a task writes a target for a source.
    """
    facts, config = model.facts, keeping(model.config)
    ways = facts.get("writes") or ()
    stepper = stepper_of(config, model.tokenizer, ways)
    if stepper is None:
        raise UserError(
            f"this model ({config.encoder}) does not read from left to right alone and cannot write; models of the "
            f"recipes {', '.join(RECIPES)} write, and models of a recipe with --config.objective.name=ltr"
        )
    learned_a_task = isinstance(stepper, LeftToRight) and ways and facts.get("task")
    return dataclasses.replace(stepper, goes_on=False) if learned_a_task else stepper  # type: ignore[type-var]


def encode_prompts(prompts: Sequence[str], tokenizer: Tokenizer, stepper: Stepper, new: int) -> list[np.ndarray]:
    """Return the ids of each prompt, int32 [P], with the special tokens before it and, if it is a source, after it.

    Args:
      new: the number of new tokens.

    Raises:
      UserError: a prompt is empty, or is too long for the model's positions together with ``new`` tokens.
    """
    if not prompts:
        raise UserError("there is no text to go on with; give a prompt")
    before, after = _around(tokenizer, stepper)
    most = stepper.config.max_length
    encoded = []
    for text, ids in zip(prompts, tokenizer.encode_batch(prompts), strict=True):
        if not len(ids):
            raise UserError(f"a prompt is empty ({text[:60]!r}); give the text that the model goes on with")
        encoded.append(np.array([*before, *ids, *after], np.int32))
        length = len(encoded[-1])
        if isinstance(stepper, Decoder) and new >= most:
            raise UserError(f"max_new_tokens is {new}; the decoder has {most} positions: give at most {most - 1}")
        if length + (0 if isinstance(stepper, Decoder) else new) > most:
            too_long = f"a prompt has {length} tokens" + f", and max_new_tokens is {new}" * (length < most)
            advice = f"give at most {most - length} max_new_tokens" if length < most else "shorten it"
            raise UserError(f"{too_long}; the model has {most} positions: {advice}: {text[:60]!r}")
    return encoded


def _around(tokenizer: Tokenizer, stepper: Stepper) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the special tokens before a prompt and, if it is a source, after it."""
    before, after = tokenizer.around
    return before, () if stepper.goes_on else after * max(tokenizer.pair_separators, 1)


def most_new_tokens(model: TextModel, prompts: Sequence[str]) -> int:
    """Return how many new tokens the model's positions allow after the longest of ``prompts``; below 1: none."""
    stepper, tokenizer = stepper_of_trained(model), model.tokenizer
    special = sum(map(len, _around(tokenizer, stepper)))
    room = stepper.config.max_length - special - max(map(len, tokenizer.encode_batch(prompts)))
    return stepper.config.max_length - 1 if isinstance(stepper, Decoder) and room >= 0 else room


def missing_head(config: ModelConfig, params: Mapping[str, Any]) -> str:
    """Return the first of the parts that predict a token, encoder and head, that ``params`` lack; "" if none."""
    return next((name for name in _needed(config) if name not in params), "")


def _needed(config: ModelConfig) -> list[str]:
    """Return the names of the parameters of the encoder and the head; the head of a GPT has none."""
    return [*shapes_of(Model(config, (LM_HEAD,)), ("masked_positions",))[1]]


def _params(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of encoder and head. Raises ``UserError`` if the model has no head that predicts tokens."""
    if missing := missing_head(config, params):
        raise UserError(
            f"this model has no {missing} (its parts: {', '.join(params)}), and a fresh one knows no words; take a "
            "model with a head, or train one first (bert-jax pretrain)"
        )
    return {name: params[name] for name in _needed(config)}


def _check_memory(config: ModelConfig, rows: int, slots: int) -> None:
    """Raise ``UserError`` if the keys and values of ``rows`` texts do not fit into a device."""
    needed, there = memory_bytes(config, rows, slots), device_bytes(jax.local_devices()[0])
    if there is not None and needed > there:
        raise UserError(
            f"{rows:,} texts of {slots:,} tokens keep {size(needed)} of keys and values on a device, which has "
            f"{size(there)}; give a smaller batch_size, fewer beams or results, or fewer max_new_tokens"
        )


def _text(tokenizer: Tokenizer, before: np.ndarray, ids: np.ndarray) -> str:
    """Return the text of ``ids`` after the tokens ``before``, with the space between them."""
    whole, start = tokenizer.decode([*before, *ids]), tokenizer.decode(before)
    return whole[len(start) :] if whole.startswith(start) else tokenizer.decode(ids)
