"""A run that is killed and started again ends as one that was never cut, bit for bit."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.training.run import read_run
from tests import toy

# Rates and times differ between any two runs; everything else must not.
TIMED = ("time", "tokens_per_second", "mfu", "input_wait_seconds")


def start(config: Path, workdir: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bert_jax", "pretrain", f"--config={config}", f"--workdir={workdir}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=toy.environment())


def finish(config: Path, workdir: Path) -> str:
    process = start(config, workdir)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return errors.decode()


def records(workdir: Path) -> list[dict[str, object]]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMED} for line in lines]


def test_killed_twice_and_resumed(tmp_path: Path) -> None:
    text = toy.write_text(tmp_path / "text.txt")
    model = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    # Slow enough to be hit: many steps, a save every few.
    changes = {
        "phases": {"phase1": {"num_steps": 400, "batch_size": 8, "max_length": 32}},
        "checkpoints": {"every_steps": 20},
    }
    config = toy.write_recipe(tmp_path / "recipe.json", toy.recipe(text, model=model, **changes))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish(config, whole)
    for after in (20, 120):
        process = start(config, cut)
        while process.poll() is None and max(saved_steps(str(cut)), default=0) < after:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    assert "resumed at step" in finish(config, cut)

    (params, facts, step), (expected, _, _) = read_params(str(cut)), read_params(str(whole))
    assert step == 400
    begun = [restart["step"] for restart in facts["run"]["restarts"]]
    assert len(begun) == 2
    assert 20 <= begun[0] < 120 <= begun[1]
    for found, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert records(cut) == records(whole)
    finish(config, cut)  # there is nothing to go on with
    assert [restart["step"] for restart in read_run(str(cut))["restarts"]] == begun
    report = (cut / "report.html").read_text()
    assert f"restart at step {begun[0]}" in report
    assert "step None" not in report
