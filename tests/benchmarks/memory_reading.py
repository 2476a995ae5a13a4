"""Prints how fast a Transformer-XL reads on, with a memory and without (Dai et al. 2019, section 4.4).

    python -m tests.benchmarks.memory_reading

Each token is to be predicted from at least ``MEMORY`` tokens before it. With a memory, a step computes ``SEGMENT`` new
tokens. Without, it computes a window of both, of which the last ``SEGMENT`` tokens count, or the last token alone, as
models without memory were evaluated in the paper.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.models.encoders import transformer_xl
from bert_jax.models.model import LM_HEAD, Model

ROWS, SEGMENT, MEMORY, LAYERS, WIDTH, PIECES, TURNS = 8, 64, 64, 4, 256, 8_192, 20


def reader(memory: int, length: int, scored: int) -> Callable[[], Any]:
    """Return a function that reads rows of ``length`` tokens and gives the logits of the last ``scored``."""
    shape = {"num_layers": LAYERS, "hidden_size": WIDTH, "num_heads": 4, "mlp_dim": 4 * WIDTH, "vocab_size": PIECES}
    config = transformer_xl.Config(**shape, memory_length=memory)
    ids = jnp.asarray(np.random.default_rng(0).integers(5, PIECES, (ROWS, length)), jnp.int32)
    places = jnp.broadcast_to(jnp.arange(length - scored, length)[None], (ROWS, scored))
    batch = {"input_ids": ids, "attention_mask": jnp.ones_like(ids), "masked_positions": places}
    past = {name: jnp.ones((ROWS, *one.shape), one.dtype) for name, one in transformer_xl.Encoder.past(config).items()}
    model = Model(config, (LM_HEAD,))
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), batch))
    step = jax.jit(model.apply)

    def read() -> Any:
        nonlocal past
        outputs = jax.block_until_ready(step(params, {**batch, **past}))
        past = {name: outputs[name] for name in past}
        return outputs

    return read


def milliseconds(read: Callable[[], Any]) -> float:
    """Return the least time of a step."""
    read()
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        read()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    ways = {
        f"memory of {MEMORY}, {SEGMENT} new tokens a step": (MEMORY, SEGMENT, SEGMENT),
        f"no memory, windows of {MEMORY + SEGMENT}, {SEGMENT} tokens count": (0, MEMORY + SEGMENT, SEGMENT),
        f"no memory, windows of {MEMORY + 1}, the last token counts": (0, MEMORY + 1, 1),
    }
    for name, (memory, length, scored) in ways.items():
        spent = milliseconds(reader(memory, length, scored))
        print(f"{name}: {spent:.1f} ms a step, {ROWS * scored / spent * 1e3:,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
