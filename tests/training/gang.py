"""Several real processes of ``bert-jax pretrain`` on this machine."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.cli.main import run
from bert_jax.rows.loader import Batches
from tests import toy

TIMED = ("time", "tokens_per_second", "step_seconds", "mfu", "input_wait_seconds")
HEARTBEAT_SECONDS = 5
FAULTY = """
import sys
from MODULE import run
if "--process_id=NUMBER" in sys.argv:
    FAULT
sys.exit(run())
"""


def faulty(fault: str, number: int = 1, module: str = "bert_jax.cli.main") -> tuple[str, str]:
    """Return a program that calls ``run`` of ``module``, of which one process runs ``fault`` first."""
    return "-c", FAULTY.replace("NUMBER", str(number)).replace("    FAULT", fault).replace("MODULE", module)


def make_inputs(folder: Path, num_steps: int = 50, every_steps: int = 10, **changes: Any) -> Path:
    """Text, vocabulary, corpus and a recipe that names them: several processes build none."""
    text = toy.write_text(folder / "text.txt", documents=80)
    phases = {"phase1": {"num_steps": num_steps, "batch_size": 8, "max_length": 32}}
    cadence = {"training": {"log_every_steps": 1, "eval_every_steps": 25, "eval_rows": 20}}
    model = {"num_heads": 4, "dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    saved = {"checkpoints": {"every_steps": every_steps}, "export": False, "examples": ()}
    config = toy.recipe(text, phases=phases, model=model, **{**cadence, **saved, **changes})
    config["objective"] = {"name": "mlm_nsp", "packing": "packed"}
    recipe = toy.write_recipe(folder / "building.json", config)
    assert run(["vocab", f"--config={recipe}", f"--output={folder / 'vocab.txt'}"]) == 0
    named = f"--config.vocab.path={folder / 'vocab.txt'}"
    assert run(["corpus", f"--config={recipe}", named, f"--output={folder / 'corpus'}"]) == 0
    config["vocab"]["path"], config["corpus"]["path"] = str(folder / "vocab.txt"), str(folder / "corpus")
    return toy.write_recipe(folder / "recipe.json", config)


def compile_once(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let later processes read from ``folder`` what the first has compiled."""
    patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


class Gang:
    """Processes of one job, started together."""

    def __init__(
        self,
        recipe: Path,
        workdir: Path,
        count: int,
        flags: Sequence[str] = (),
        verb: str = "pretrain",
        program: Sequence[str] = ("-m", "bert_jax"),
        own_groups: bool = False,
        port: int | None = None,
        arrival_seconds: int = 120,
    ):
        self.port = port or free_port()
        job = [f"--coordinator=127.0.0.1:{self.port}", f"--num_processes={count}"] if count > 1 else []
        job += [f"--heartbeat_seconds={HEARTBEAT_SECONDS}", f"--arrival_seconds={arrival_seconds}"] if job else []
        command = [sys.executable, *program, verb, f"--config={recipe}", f"--workdir={workdir}"]
        self.workdir = workdir
        self.processes = [
            subprocess.Popen(
                [*command, *flags, *job, *([f"--process_id={number}"] if job else [])],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=toy.environment(),
                text=True,
                start_new_session=own_groups,
            )
            for number in range(count)
        ]

    def reach(self, step: int) -> None:
        """Until the log has ``step``."""
        self.until(lambda: max((record["step"] for record in records(self.workdir)), default=0) >= step)

    def until(self, done: Callable[[], object], seconds: float = 180) -> None:
        """While all of them run."""
        deadline = time.monotonic() + seconds
        while not done():
            assert all(process.poll() is None for process in self.processes), self.end()
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def send(self, number: int, which: signal.Signals) -> None:
        self.processes[number].send_signal(which)

    def end(self, seconds: float = 600) -> list[tuple[int, str]]:
        """(exit code, what it said) of every process, once all have ended."""
        deadline = time.monotonic() + seconds
        try:
            found = []
            for process in self.processes:
                _, said = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
                found.append((process.returncode, said))
            return found
        finally:
            for process in self.processes:
                process.kill()


def finish(recipe: Path, workdir: Path, count: int, *flags: str) -> list[dict[str, Any]]:
    """Run to the end; the records without what is timed."""
    ended = Gang(recipe, workdir, count, flags).end()
    assert [code for code, _ in ended] == [0] * count, ended
    return records(workdir)


def kill_after(recipe: Path, workdir: Path, flags: Sequence[str] = (), step: int = 1) -> None:
    """Start a run of one process and kill it before its end, as soon as ``step`` or a later step is saved."""
    job = Gang(recipe, workdir, 1, flags)
    job.until(lambda: max(saved_steps(str(workdir)), default=0) >= step)
    job.send(0, signal.SIGKILL)
    [(code, said)] = job.end()
    assert code == -signal.SIGKILL, said


def train(recipe: Path, workdir: Path, *flags: str, devices: int = 1) -> list[dict[str, Any]]:
    """Run to the end in this process; return the records without what is timed."""
    every = jax.devices()
    with toy.one_device(), pytest.MonkeyPatch.context() as patch:  # undone in the reverse order
        for name in ("devices", "local_devices") if devices > 1 else ():
            patch.setattr(jax, name, lambda backend=None: every[:devices])
        assert run(["pretrain", f"--config={recipe}", f"--workdir={workdir}", *flags]) == 0
    return records(workdir)


def break_off(recipe: Path, workdir: Path, step: int, *flags: str) -> None:
    """Run ``step`` steps in this process, after which no batch can be read; the folder is left as by a kill."""
    make = Batches.__getitem__

    def broken(self: Batches, number: int) -> Any:
        if number == step:
            raise FileNotFoundError(2, "No such file or directory", "/mnt/corpus/train-00001")
        return make(self, number)

    with toy.one_device(), pytest.MonkeyPatch.context() as patch:  # undone in the reverse order
        patch.setattr(Batches, "__getitem__", broken)
        assert run(["pretrain", f"--config={recipe}", f"--workdir={workdir}", *flags]) == 2
    assert max(saved_steps(str(workdir))) < max(record["step"] for record in records(workdir)) <= step


def records(workdir: Path) -> list[dict[str, Any]]:
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:  # being written
            continue
    return [{k: v for k, v in record.items() if k not in TIMED} for record in found]


def assert_same_losses(found: list[dict[str, Any]], wanted: list[dict[str, Any]], rtol: float = 1e-5) -> None:
    assert [(r["step"], r["split"]) for r in found] == [(r["step"], r["split"]) for r in wanted]
    for one, other in zip(found, wanted, strict=True):
        for name in ("loss", "mlm_loss", "nsp_loss"):
            if name in other:
                np.testing.assert_allclose(one[name], other[name], rtol=rtol, err_msg=f"{name} at {other['step']}")


def assert_same_model(found: Path, wanted: Path, step: int | None = None) -> None:
    """At ``step``, or else at the last step of both."""
    (params, _, step), (expected, _, last) = (read_params(str(workdir), step) for workdir in (found, wanted))
    assert step == last
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def free_port() -> int:
    """A port that is free."""
    while True:
        port = random.randrange(20_000, 32_000)  # below those that the system deals out
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
