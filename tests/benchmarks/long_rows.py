"""Time and memory of a train step of a small ModernBERT at several lengths, beside transformers in the same run.

    make .venv-parity/base.stamp && .venv-parity/bin/python -m tests.benchmarks.long_rows

Each figure is of a process of its own; the two sides take turns. A step reads 8,192 tokens, of which 30 % are
predicted: forward, backward and update (AdamW), float32. Theirs is ``ModernBertForMaskedLM`` with PyTorch's fused
attention, and with ``sparse_prediction``, so that predicted positions alone reach the vocabulary on both sides. Time is
that of the processor, since other jobs may run beside. Memory is what the process holds at most during the steps, above
what it held before the first one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS, TOKENS, RATE, VOCABULARY = (512, 1024, 2048, 4096, 8192), 8192, 0.3, 8_000
LAYERS, HIDDEN, HEADS, MLP = 4, 128, 2, 192  # modernbert:tiny
STEPS, TURNS = 3, 3


def ours(length: int) -> Callable[[], None]:
    """Return a compiled step."""
    from bert_jax.training.malloc import keep_freed_memory

    keep_freed_memory()
    import jax

    from bert_jax.models.encoders import modernbert
    from bert_jax.objectives.base import Setting
    from bert_jax.objectives.mlm import Config, Objective
    from bert_jax.rows.masking import MaskingConfig
    from bert_jax.training import mesh as meshes
    from bert_jax.training.mesh import MeshConfig, make_mesh
    from bert_jax.training.optimizers import adamw
    from bert_jax.training.schedules import linear
    from bert_jax.training.state import InitialState
    from bert_jax.training.step import jit_train_step, make_train_step
    from bert_jax.training.stepping import compile_program

    model = modernbert.Config(VOCABULARY, HIDDEN, LAYERS, HEADS, MLP)
    masking = MaskingConfig(rate=RATE, max_predictions=int(RATE * length))
    task = Objective(Config(masking=masking, arrangement="sentences"), Setting(model, {"step": length}))
    rng, rows = np.random.default_rng(0), TOKENS // length
    spec = task.batch_specs["step"]
    predicted = np.linspace(1, length - 2, spec["masked_positions"].shape[0]).astype(int)
    values: dict[str, Any] = {"input_ids": rng.integers(5, VOCABULARY, (rows, length)), "attention_mask": 1}
    values |= {"masked_positions": predicted, "masked_weights": 1.0, "masked_labels": 7, "row_weights": 1.0}
    batch = {
        name: np.broadcast_to(np.asarray(values.get(name, 0), of.dtype), (rows, *of.shape)).copy()
        for name, of in spec.items()
    }
    mesh, tx = make_mesh(MeshConfig(), jax.devices()[:1]), adamw.Optimizer().make()
    state, frozen = InitialState(task, tx, mesh).make(0)
    schedule = linear.Schedule(1e-4, 10).make(1_000)
    on_device = meshes.to_devices(batch, mesh)
    with meshes.activations(mesh):
        step_of = jit_train_step(make_train_step(task, tx, schedule, 0), state)
        compiled = compile_program(step_of, state, frozen, on_device)

    def step() -> None:
        nonlocal state
        state = compiled(state, frozen, on_device)
        jax.block_until_ready(state)

    return step


def theirs(length: int) -> Callable[[], None]:
    """Return a step."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=MLP,
        pad_token_id=0,
        sparse_prediction=True,
        attn_implementation="sdpa",
    )
    model = transformers.ModernBertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids = torch.randint(5, VOCABULARY, (TOKENS // length, length))
    labels = torch.full_like(ids, -100)
    labels[:, torch.linspace(1, length - 2, int(RATE * length)).long()] = 7
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def held() -> float:
    """Return the memory that this process holds now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def measure(side: str, length: int) -> dict[str, float]:
    step = {"ours": ours, "theirs": theirs}[side](length)
    before, most, done = held(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, held())

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    seconds = []
    for _ in range(STEPS):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    done.set()
    watcher.join()
    return {"seconds": statistics.median(seconds), "megabytes": most - before}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
        return
    print("| length | ours, s | theirs, s | theirs / ours | ours, MB | theirs, MB | theirs / ours |")
    print("|---|---|---|---|---|---|---|")
    for length in LENGTHS:
        found: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
        for _ in range(TURNS):
            for side, figures in found.items():
                command = [sys.executable, "-m", "tests.benchmarks.long_rows", side, str(length)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                figures.append(json.loads(output.splitlines()[-1]))
        median = {
            side: [statistics.median(one[name] for one in figures) for name in ("seconds", "megabytes")]
            for side, figures in found.items()
        }
        (own, mb), (their, their_mb) = median["ours"], median["theirs"]
        times, memory = f"{own:.2f} | {their:.2f} | {their / own:.2f}", f"{mb:,.0f} | {their_mb:,.0f}"
        print(f"| {length:,} | {times} | {memory} | {their_mb / mb:.2f} |", flush=True)


if __name__ == "__main__":
    main()
