"""Steppers: tokens that are written one at a time have the logits of one pass over the whole text."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.generation.steppers import Decoder, LeftToRight, MaskAtEnd, Stepper, memory_bytes, reorder
from bert_jax.models.encoders import albert, bert, gpt2, modernbert, seq2seq, transformer_xl
from bert_jax.models.model import LM_HEAD, Model, shapes_of
from bert_jax.planning.plan import Change
from bert_jax.recipes import recipes
from bert_jax.runs import recipe_plan

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 24, "max_length": 32}
DOUBLE: dict[str, Any] = {**SIZES, "dtype": "float64"}
MASK, NEW = 39, 4
SLOTS = 8 + NEW + 1  # a step more than a search takes
STEPPERS: dict[str, Stepper] = {
    "bert": LeftToRight(bert.Config(**DOUBLE, attention="causal")),
    "gpt2": LeftToRight(gpt2.Config(**DOUBLE)),
    "scanned modernbert": LeftToRight(
        modernbert.Config(**{**DOUBLE, "num_layers": 4}, local_attention=6, layers="scanned")
    ),
    "albert": LeftToRight(albert.Config(**DOUBLE, embedding_size=8, attention="causal", layers="scanned")),
    "scanned transformer_xl": LeftToRight(transformer_xl.Config(**DOUBLE, layers="scanned")),
    "a mask at the end": MaskAtEnd(bert.Config(**DOUBLE, type_vocab_size=6), MASK),
    "a scanned decoder": Decoder(seq2seq.Config(**DOUBLE, num_decoder_layers=3, layers="scanned"), MASK),
}


@functools.cache
def params_of(config: Any) -> dict[str, Any]:
    """Every parameter of encoder and head from N(0, 0.2), layer-norm gains around 1."""
    _, shapes = shapes_of(Model(config, (LM_HEAD,)), ("masked_positions",))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: rng.normal(0.0, 0.2, leaf.shape) + (path[-1].key == "scale"), shapes
    )


def prompts_of(lengths: np.ndarray) -> dict[str, jax.Array]:
    tokens = np.random.default_rng(0).integers(1, 39, (len(lengths), lengths.max()))
    mask = np.arange(lengths.max()) < lengths[:, None]
    return {name: jnp.asarray(x, jnp.int32) for name, x in (("input_ids", tokens * mask), ("attention_mask", mask))}


def one_pass(stepper: Any, texts: list[tuple[np.ndarray, int]]) -> np.ndarray:
    """The logits of each new token, [texts, n + 1, V], from whole texts: (tokens, length of the prompt) each."""
    if isinstance(stepper, Decoder):
        return decoded(stepper, texts)
    longest, writes_left = max(len(tokens) for tokens, _ in texts) + 1, isinstance(stepper, LeftToRight)
    rows: dict[str, list[np.ndarray]] = {}
    for tokens, length in texts:
        for stop in range(length, len(tokens) + 1):
            ids = np.append(tokens[:stop], [] if writes_left else [MASK]).astype(int)
            order = np.arange(len(ids)) if writes_left else np.maximum(np.arange(len(ids)) - length + 1, 0)
            features = {"input_ids": ids, "order_ids": order, "attention_mask": np.ones_like(ids)}
            features["token_type_ids"] = np.where(writes_left, 0, 4 + (order > 0))
            for name, x in features.items():
                rows.setdefault(name, []).append(np.pad(x, (0, longest - len(ids))))
            rows.setdefault("masked_positions", []).append(np.array([len(ids) - 1]))
    if stepper.config.causal:
        del rows["order_ids"]
    batch = {name: jnp.asarray(np.stack(x), jnp.int32) for name, x in rows.items()}
    run = jax.jit(Model(stepper.config, (LM_HEAD,)).apply)
    logits = run({"params": params_of(stepper.config)}, batch)["mlm_logits"]
    return np.asarray(logits).reshape(len(texts), NEW + 1, -1)


def decoded(stepper: Decoder, texts: list[tuple[np.ndarray, int]]) -> np.ndarray:
    """The logits of each new token, [texts, n + 1, V], of a decoder that reads all new tokens at once."""
    width = max(length for _, length in texts)
    rows = {
        "input_ids": [np.pad(tokens[:length], (0, width - length)) for tokens, length in texts],
        "attention_mask": [np.arange(width) < length for _, length in texts],
        "decoder_input_ids": [np.append(MASK, tokens[length:]) for tokens, length in texts],
        "masked_positions": [np.arange(NEW + 1)] * len(texts),
    }
    batch = {name: jnp.asarray(np.stack(x), jnp.int32) for name, x in rows.items()}
    run = jax.jit(Model(stepper.config, (LM_HEAD,)).apply)
    return np.asarray(run({"params": params_of(stepper.config)}, batch)["mlm_logits"])


@pytest.mark.parametrize("name", STEPPERS)
def test_token_by_token_equals_whole_texts(name: str) -> None:
    """Prompts of unlike lengths in a batch, padded further, in float64: 1e-12. Half-way the rows change places."""
    stepper: Any = STEPPERS[name]
    lengths = np.array([5, 2, 7])
    with jax.enable_x64(True):
        prompt, params = prompts_of(lengths), {"params": params_of(stepper.config)}
        new = np.random.default_rng(1).integers(1, 39, (len(lengths), NEW))
        padded = {key: jnp.pad(x, ((0, 0), (0, 1))) for key, x in prompt.items()}
        logits, state = jax.jit(stepper.start, static_argnums=2)(params, padded, SLOTS)
        found, rows, step = [np.asarray(logits)], np.arange(len(lengths)), jax.jit(stepper.step)
        for number in range(NEW):
            if number == 2:
                state, rows = reorder(state, jnp.array([2, 0, 1])), np.array([2, 0, 1])
            logits, state = step(params, jnp.asarray(new[rows, number], jnp.int32), state)
            found.append(np.asarray(logits)[np.argsort(rows)])
        ids = np.asarray(prompt["input_ids"])
        texts = [(np.append(ids[row, :length], new[row]), length) for row, length in enumerate(lengths)]
        np.testing.assert_allclose(np.swapaxes(found, 0, 1), one_pass(stepper, texts), atol=1e-12)
    kept = sum(x.nbytes for x in jax.tree.leaves(state.memory))
    assert kept == memory_bytes(stepper.config, len(lengths), SLOTS)  # a padded prompt of 8, and new tokens


def test_a_plan_says_what_generation_keeps() -> None:
    """GPT-2 keeps 2 x 12 layers x 768 numbers of two bytes for a token."""
    recipe = recipe_plan.PretrainingRecipe.of(recipes.load("gpt2").to_dict())
    task, _ = recipe.variant(Change(), jax.devices()[:1])
    [line] = recipe_plan._when_it_writes(task, task.setting.model)  # type: ignore[attr-defined]
    assert line == "bert-jax generate keeps 36.00 MiB of keys and values for each text, or beam, of 1,024 tokens"
    mlm = recipe_plan.PretrainingRecipe.of(recipes.load("quickstart").to_dict()).variant(Change(), jax.devices()[:1])[0]
    assert recipe_plan._when_it_writes(mlm, bert.Config(40)) == []
