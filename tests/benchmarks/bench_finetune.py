"""Milliseconds of a fine-tuning step, ours beside transformers on PyTorch: same sizes, float32, the same cores, in one
run (``make bench-parity``). The model of each side sees the same random batch; both train with dropout and AdamW."""

import json
import os
import subprocess
import sys
import time

import pytest

SIZES = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "base": (12, 768, 12)}
BATCH, VOCABULARY = 32, 30_522
SHAPES = [("tiny", 128), ("mini", 128), ("base", 64)]


def ours(size: str, length: int, steps: int) -> float:
    from bert_jax.training.malloc import keep_freed_memory

    keep_freed_memory()
    import jax
    import numpy as np

    from bert_jax.models.encoders import bert
    from bert_jax.tasks.base import KIND, Setting
    from bert_jax.tasks.classification import Config, Task
    from bert_jax.text.wordpiece import WordPiece
    from bert_jax.training.mesh import unbox
    from bert_jax.training.optimizers import OptimizerConfig, make_optimizer
    from bert_jax.training.schedules import ScheduleConfig, make_schedule
    from bert_jax.training.state import make_state
    from bert_jax.training.step import make_train_step, metric_names

    layers, hidden, heads = SIZES[size]
    model = bert.Config(VOCABULARY, hidden, layers, heads, 4 * hidden, 512)
    words = " ".join(["a"] * (length - 2))
    example = [{"id": str(i), "text": words, "label": str(i % 2)} for i in range(BATCH)]
    tokenizer = WordPiece(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"))
    task = Task(Config(), Setting({"train": tuple(example)}, tokenizer, model, ("0", "1"), length, BATCH))
    tx, schedule = make_optimizer(OptimizerConfig()), make_schedule(ScheduleConfig("linear", 2e-5, 10), 10_000)
    params = unbox(jax.jit(task.init)(jax.random.key(0))).params
    state = make_state(params, tx, (), metric_names(task))
    batch = task.source("train", KIND, 0).rows(np.zeros(BATCH, np.int64), np.arange(BATCH))
    batch["input_ids"] = np.random.default_rng(0).integers(1000, VOCABULARY, (BATCH, length), np.int32)
    assert batch["attention_mask"].shape == (BATCH, length)
    step = jax.jit(make_train_step(task, tx, schedule, 0), donate_argnums=0)

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = step(state, {}, batch)
        jax.block_until_ready(state)

    return timed(run, steps)


def theirs(size: str, length: int, steps: int) -> float:
    import torch
    import transformers

    layers, hidden, heads = SIZES[size]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * hidden, num_labels=2,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    ids = torch.randint(1000, VOCABULARY, (BATCH, length))
    batch = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids)}
    labels = torch.arange(BATCH) % 2

    def run(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(**batch, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return timed(run, steps)


def timed(run, steps: int) -> float:
    """Milliseconds a step: the best of three turns."""
    run(2)
    turns = []
    for _ in range(3):
        start = time.perf_counter()
        run(steps)
        turns.append(1e3 * (time.perf_counter() - start) / steps)
    return min(turns)


@pytest.mark.parametrize(("size", "length"), SHAPES)
def test_step_beside_pytorch(size: str, length: int) -> None:
    pytest.importorskip("torch")
    steps = {"tiny": 10, "mini": 4, "base": 1}[size]
    figures = {}
    for side in ("theirs", "ours"):  # a process each: neither side's threads are in the other's way
        program = (
            f"import json; from tests.benchmarks.bench_finetune import {side} as measured; "
            f"print(json.dumps(measured({size!r}, {length}, {steps})))"
        )
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        figures[side] = json.loads(done.stdout.splitlines()[-1])
    ratio = figures["theirs"] / figures["ours"]
    print(f"\n{size} {BATCH} x {length}: {figures['ours']:.0f} ms, PyTorch {figures['theirs']:.0f} ms, {ratio:.2f} x")
