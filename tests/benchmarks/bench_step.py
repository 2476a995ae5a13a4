"""Milliseconds and page faults of a train step of the quickstart's model, memory given back to the kernel and kept."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest


def train_step(config: Any, rows: int = 32) -> tuple[Callable[..., Any], Any, Any]:
    """(a jitted step, parameters, optimizer state) of a BERT on rows of 128 positions with 19 predictions."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bert_jax.losses.cross_entropy import cross_entropy
    from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, Model, fresh_params
    from bert_jax.training.optimizers import adamw

    rng = np.random.default_rng(0)
    ids = jnp.asarray(rng.integers(0, config.vocab_size, (rows, 128)), jnp.int32)
    positions, labels = ids[:, :19] % 128, ids[:, :19]
    tx, params = adamw.Optimizer().make(), fresh_params(config)

    def loss(weights):
        batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": jnp.ones_like(ids)}
        batch |= {"masked_positions": positions, "cls_positions": jnp.zeros((rows, 1), jnp.int32)}
        out = Model(config, (POOLER, LM_HEAD, NSP_HEAD)).apply({"params": weights}, batch)
        return cross_entropy(out["mlm_logits"], labels, jnp.ones(labels.shape))[0].value / labels.size

    @jax.jit
    def step(weights, state):
        direction, state = tx.update(jax.grad(loss)(weights), state, weights)
        return jax.tree.map(lambda w, d: w - 1e-3 * d, weights, direction), state

    return step, params, tx.init(params)


def measure(steps: int = 30) -> dict[str, float]:
    """A 2 x 128 BERT, 8,192 pieces, 32 rows of 128 positions with 19 predictions, float32, no dropout."""
    import jax

    from bert_jax.models.encoders import bert

    config = bert.Config(8192, 128, 2, 2, 512, max_length=128, dropout_rate=0.0, attention_dropout_rate=0.0)
    step, params, state = train_step(config)
    for _ in range(3):
        params, state = jax.block_until_ready(step(params, state))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
    for _ in range(steps):
        params, state = step(params, state)
    jax.block_until_ready(params)
    seconds = time.perf_counter() - start
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"milliseconds": 1e3 * seconds / steps, "page_faults": faults / steps}


@pytest.mark.parametrize("memory", ["given back", "kept"])
def test_step(memory):
    first = "from bert_jax.training.malloc import keep_freed_memory as f; f(); " if memory == "kept" else ""
    program = f"{first}import json; from tests.benchmarks.bench_step import measure; print(json.dumps(measure()))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    print(f"\nmemory {memory}: {json.loads(done.stdout)}")
