"""10,000 steps with saves and evaluations: memory and open files stay as they are, the log is whole, a stall ends."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster.exit_codes import CRASHED
from bert_jax.reporting.run_log import FILE
from tests import toy
from tests.training import gang
from tests.trust.damage import generator, scaled

pytestmark = pytest.mark.trust

STEPS, LOG, EVALUATE, SAVE = 10_000, 10, 100, 50
SETTLED = 2_000  # steps after which nothing grows any more
MORE_BYTES, MORE_FILES = 24 * 2**20, 4  # that may come and go
SAMPLE_SECONDS = 0.2


def recipe(folder: Path, num_steps: int) -> Path:
    """Return a recipe for the real command, TensorBoard's events included."""
    text = toy.write_text(folder / "text.txt", documents=120)
    model = {"hidden_size": 16, "num_layers": 1, "mlp_dim": 32, "dropout_rate": 0.1}
    training = {"log_every_steps": LOG, "eval_every_steps": EVALUATE, "eval_rows": 16}
    phases = {"phase1": {"num_steps": num_steps, "batch_size": 8, "max_length": 32}}
    changes = {"model": model, "training": training, "phases": phases, "checkpoints": {"every_steps": SAVE}}
    return toy.write_recipe(folder / "recipe.json", toy.recipe(text, **changes, export=False, examples=()))


def start(config: Path, workdir: Path) -> subprocess.Popen[bytes]:
    """What it says is in ``workdir.log``."""
    command = [sys.executable, "-m", "bert_jax", "pretrain", f"--config={config}", f"--workdir={workdir}"]
    with workdir.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stderr=log, env=os.environ | {"JAX_PLATFORMS": "cpu"})


def steps_of(workdir: Path) -> int:
    """Steps that the log has."""
    return max((record["step"] for record in gang.records(workdir)), default=0)


def assert_whole(workdir: Path, num_steps: int) -> None:
    """Each window and each evaluation stands in the log once, in order, in whole lines."""
    records = [json.loads(line) for line in (workdir / FILE).read_text().splitlines()]
    for split, every, first in (("train", LOG, LOG), ("eval", EVALUATE, 0)):
        assert [r["step"] for r in records if r["split"] == split] == list(range(first, num_steps + 1, every))


def test_memory_and_files_stay_flat(tmp_path: Path) -> None:
    num_steps, run = max(scaled(STEPS), 2 * SETTLED), tmp_path / "run"
    process = start(recipe(tmp_path, num_steps), run)
    samples: list[tuple[int, int, int]] = []  # steps, resident bytes, open files
    while process.poll() is None:
        try:
            resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            samples.append((steps_of(run), resident, len(os.listdir(f"/proc/{process.pid}/fd"))))
        except (OSError, IndexError):  # it ends
            break
        time.sleep(SAMPLE_SECONDS)
    assert process.wait() == 0, run.with_suffix(".log").read_text()
    assert_whole(run, num_steps)

    def typical(first: int, last: int) -> tuple[float, float]:
        there = [sample for sample in samples if first <= sample[0] <= last]
        return statistics.median(s[1] for s in there), statistics.median(s[2] for s in there)

    early, late = typical(SETTLED, SETTLED + num_steps // 5), typical(num_steps - num_steps // 5, num_steps - 1)
    print(f"\n{num_steps} steps: {early[0] / 2**20:.1f} -> {late[0] / 2**20:.1f} MiB, {early[1]} -> {late[1]} files")
    assert late[0] - early[0] < MORE_BYTES
    assert late[1] - early[1] <= MORE_FILES


def test_the_log_is_whole_after_kills(tmp_path: Path) -> None:
    rng = generator("long run, kills")
    num_steps, config, run = 1_000, recipe(tmp_path, 1_000), tmp_path / "run"
    for _ in range(scaled(5)):
        process, reached = start(config, run), steps_of(run)
        goal = reached + rng.randrange(LOG, num_steps // 6)
        while process.poll() is None and steps_of(run) < min(goal, num_steps - LOG):
            time.sleep(0.001)
        time.sleep(0.05 * rng.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(config, run).wait() == 0, run.with_suffix(".log").read_text()
    assert_whole(run, num_steps)


STALL = """
import time, jax
from pathlib import Path
from tests.training.line import Line, Points, train

ROWS = Points.rows

def stuck(rows):
    if rows[0, 0] > 99:
        time.sleep(600)
    return rows

class Stalling(Line):
    def loss(self, variables, batch, rng):
        shape = jax.ShapeDtypeStruct(batch["inputs"].shape, "float32")
        rows = jax.pure_callback(stuck, shape, batch["inputs"])
        return super().loss(variables, {**batch, "inputs": rows}, rng)

class Marked(Points):
    def rows(self, epochs, indices):
        batch = super().rows(epochs, indices)
        batch["inputs"][0, 0] = 100.0 if MARKED in indices else batch["inputs"][0, 0]
        return batch

train(Path(WORKDIR), Marked(), task=Stalling, num_steps=40, stall_seconds=5.0)
"""


def test_a_step_that_stalls_ends_with_all_stacks_and_goes_on(tmp_path: Path) -> None:
    """In the devices' own code, where Python hears of no signal."""
    for marked, code in ((25 * 8, CRASHED), (-1, 0)):
        program = f"MARKED, WORKDIR = {marked}, {str(tmp_path / 'run')!r}\n{STALL}"
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert done.returncode == code, done.stderr
        if code:
            assert "Timeout (0:0" in done.stderr
            assert "in stuck" in done.stderr  # where it hangs
            assert "in _train" in done.stderr  # and where that was asked for
    assert saved_steps(str(tmp_path / "run"))[-1] == 40
