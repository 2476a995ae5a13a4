"""A model that is a table: the next token's log-probabilities depend on the last token alone. Vocabulary of 4."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.generation.search import Found, Search, Tokens
from bert_jax.generation.settings import Settings
from bert_jax.generation.steppers import State

V = 4


@dataclasses.dataclass(frozen=True)
class Table:
    """A stepper whose variables are the table itself, logits [V, V]; its memory keeps nothing."""

    def history(self, prompt: Any) -> tuple[jax.Array, jax.Array]:
        return prompt["input_ids"], jnp.sum(prompt["attention_mask"], axis=1)

    def start(self, variables: Any, prompt: Any, slots: int) -> tuple[jax.Array, State]:
        length = jnp.sum(prompt["attention_mask"], axis=1)
        last = jnp.take_along_axis(prompt["input_ids"], length[:, None] - 1, axis=1)[:, 0]
        none = jnp.zeros((len(last), 0), jnp.int32)
        return variables[last], State({}, none, none, jnp.array(0, jnp.int32), length)

    def step(self, variables: Any, ids: jax.Array, state: State) -> tuple[jax.Array, State]:
        return variables[ids], state


def table(seed: int, size: int = V) -> np.ndarray:
    """Logits [size, size], so steep that texts end early and late."""
    return np.random.default_rng(seed).normal(0, 1.5, (size, size)).astype(np.float32)


def run(
    logits: np.ndarray, prompts: list[list[int]], ends: tuple[int, ...] = (), pad: int = 0, **settings: Any
) -> Found:
    """Return what the table writes after prompts, all in one batch; ``numbers`` are their places in the list."""
    width = max(map(len, prompts))
    batch = {
        "input_ids": jnp.array([prompt + [0] * (width - len(prompt)) for prompt in prompts], jnp.int32),
        "attention_mask": jnp.array([[1] * len(p) + [0] * (width - len(p)) for p in prompts], jnp.int32),
    }
    numbers = settings.pop("numbers", range(len(prompts)))
    chosen = Settings(**settings)
    search = Search(Table(), dataclasses.replace(chosen, seed=0), Tokens(len(logits), pad, ends))
    return jax.device_get(
        _jitted(search, jnp.asarray(logits), jnp.int32(chosen.seed), batch, jnp.array(numbers, jnp.int32))
    )  # type: ignore[no-any-return]


def _run(search: Search, logits: jax.Array, seed: jax.Array, batch: Any, numbers: jax.Array) -> Found:
    return search(logits, seed, batch, numbers)  # type: ignore[arg-type]


_jitted = jax.jit(_run, static_argnums=0)
