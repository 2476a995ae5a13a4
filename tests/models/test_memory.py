"""Keys and values that layers keep: tokens given one at a time have the vectors of one pass over the whole row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.encoders import bert, modernbert
from bert_jax.models.model import Model
from tests.models.helpers import random_params

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_layers": 4, "num_heads": 2, "mlp_dim": 24, "max_length": 32}
CONFIGS = {
    "bert": bert.Config(**SIZES, attention="causal", dtype="float64"),
    "scanned modernbert, with an order": modernbert.Config(
        **SIZES, local_attention=6, dtype="float64", layers="scanned"
    ),
}
PROMPTS, NEW = (5, 8), 6  # tokens of the prompt of each row, and tokens that follow one by one


# tests/generation/test_steppers.py compares the same models in the quick tests, with their heads.
@pytest.mark.heavy
@pytest.mark.parametrize("name", CONFIGS)
def test_token_by_token_equals_one_pass(name: str) -> None:
    """Prompts of unlike lengths in a batch, windows, float64: 1e-12. The memory has a slot too many."""
    config, longest = CONFIGS[name], max(PROMPTS)
    with jax.enable_x64(True):
        rng, rows = np.random.default_rng(0), len(PROMPTS)
        tokens = rng.integers(1, 40, (rows, longest + NEW))
        lengths = np.array(PROMPTS)[:, None]
        places = np.arange(longest + NEW)[None]
        whole = features(tokens, (places < lengths + NEW).astype(int), order_ids=np.repeat(places, rows, 0))
        model = Model(config)
        params = {"encoder": random_params(config)["encoder"]}
        run = jax.jit(lambda kept, batch: model.apply({"params": params, **kept}, batch, mutable=["memory"]))
        expected = run({}, whole)[0]["sequence"]

        slots = longest + NEW + 1
        ids = np.zeros((rows, slots), int)
        ids[:, :longest] = places[:, :longest] < lengths
        positions = np.zeros((rows, slots), int)
        positions[:, :longest] = places[:, :longest]
        prompt = features(tokens[:, :longest], ids[:, :longest], order_ids=np.repeat(places[:, :longest], rows, 0))
        out, kept = run({}, {**prompt, "memory_ids": jnp.asarray(ids)})
        for row, length in enumerate(PROMPTS):
            np.testing.assert_allclose(out["sequence"][row, :length], expected[row, :length], atol=1e-12)

        for number in range(NEW):
            ids[:, longest + number] = 1
            positions[:, longest + number] = lengths[:, 0] + number
            batch = features(
                tokens[np.arange(rows), lengths[:, 0] + number][:, None],
                np.ones((rows, 1), int),
                position_ids=lengths + number,
                memory_ids=ids,
                memory_positions=positions,
            )
            out, kept = run(kept, {**batch, "memory_slot": jnp.asarray(longest + number, jnp.int32)})
            found = out["sequence"][:, 0]
            np.testing.assert_allclose(found, expected[np.arange(rows), lengths[:, 0] + number], atol=1e-12)


def features(tokens: np.ndarray, mask: np.ndarray, **others: Any) -> dict[str, jax.Array]:
    named = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": tokens * 0, **others}
    return {name: jnp.asarray(x, jnp.int32) for name, x in named.items()}
