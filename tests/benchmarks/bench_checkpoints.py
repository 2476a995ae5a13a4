"""What it costs to list the sha256 of every step that is saved, in a run that saves every 100 steps, and to verify."""

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints import saving
from bert_jax.checkpoints.integrity import check_step, write_lists
from bert_jax.checkpoints.saving import CheckpointConfig, Checkpoints
from bert_jax.models.encoders import bert
from tests.benchmarks.bench_step import train_step

EVERY = 100  # steps
CONFIGS = {
    "2 x 128, 32 rows": (
        bert.Config(8192, 128, 2, 2, 512, max_length=128, dropout_rate=0.0, attention_dropout_rate=0.0),
        32,
        20,
    ),
    "12 x 768, 8 rows": (bert.Config(30522, dropout_rate=0.0, attention_dropout_rate=0.0), 8, 3),
}


def seconds_of(work: Any, *arguments: Any) -> tuple[float, float]:
    """Seconds of the clock, and of all processors: the latter are the same beside other jobs."""
    start = time.perf_counter(), time.process_time()
    work(*arguments)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def typical(work: Any, *arguments: Any, times: int) -> np.ndarray:
    """The medians of ``seconds_of``."""
    return np.median([seconds_of(work, *arguments) for _ in range(times)], axis=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_lists(name: str, tmp_path: Path) -> None:
    """The lists of a step beside 100 steps, as if nothing were done at the same time."""
    config, rows, steps = CONFIGS[name]
    step, params, state = train_step(config, rows)
    params, state = jax.block_until_ready(step(params, state))
    each = typical(lambda: jax.block_until_ready(step(params, state)), times=steps)
    checkpoints = Checkpoints(str(tmp_path), CheckpointConfig(keep=1))
    checkpoints.save_tree(1, {"params": params, "opt_state": state}, {})
    checkpoints.wait()
    checkpoints.close()
    folder = tmp_path / "checkpoints" / "1"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    lists, verify = typical(write_lists, folder, times=5), typical(check_step, folder, times=5)
    print(f"\n{name}: {size / 1e6:,.0f} MB; by the clock, and in processor time:")
    for took, what in ((each, "a step of training"), (lists, "lists, a save"), (verify, "verified, a restore")):
        print(f"  {what:<20} {took[0]:8.3f} s {took[1]:8.3f} s")
    print(f"  lists / {EVERY} steps   {lists[0] / (EVERY * each[0]):9.2%} {lists[1] / (EVERY * each[1]):9.2%}")


def test_a_run_with_lists_beside_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 x 100 steps with saves in the background, in turns."""
    step, params, state = train_step(CONFIGS["2 x 128, 32 rows"][0])
    jax.block_until_ready(step(params, state))

    def train(workdir: Path) -> None:
        weights, moments = params, state
        checkpoints = Checkpoints(str(workdir), CheckpointConfig(keep=1))
        for number in range(1, 3 * EVERY + 1):
            weights, moments = jax.block_until_ready(step(weights, moments))
            if number % EVERY == 0:
                checkpoints.save_tree(number, {"params": weights, "opt_state": moments}, {})
        checkpoints.wait()
        checkpoints.close()

    taken: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for turn in range(4):
        for lists, found in taken.items():
            monkeypatch.setattr(saving, "write_lists", write_lists if lists == "with" else lambda folder: None)
            found.append(seconds_of(train, tmp_path / f"{lists}-{turn}"))
    clock, processor = np.divide(taken["with"], taken["without"]).T
    for ratios, what in ((clock, "by the clock"), (processor, "in processor time")):
        shown = ", ".join(f"{ratio:.4f}" for ratio in ratios)
        print(f"\nwith / without lists, {what}: {np.median(ratios):.4f} ({shown})")
