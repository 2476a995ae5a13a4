"""SIGKILL at any moment: a run that is killed again and again ends as one that was never cut, bit for bit."""

from __future__ import annotations

import collections
import random
import signal
import time
from pathlib import Path

import pytest

from bert_jax.cluster.exit_codes import DONE, PEER_LOST
from tests.training import gang
from tests.training.gang import Gang
from tests.trust import damage

STEPS, EVERY = 300, 5  # of a run, and from save to save


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cadence = {"log_every_steps": 1, "eval_every_steps": 20, "eval_rows": 20}
    folder = tmp_path_factory.mktemp("inputs")
    return gang.make_inputs(folder, num_steps=STEPS, every_steps=EVERY, training=cadence, export=True)


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def processes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def whole(recipe: Path, processes: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never cut."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    gang.finish(recipe, workdir, processes)
    return workdir


def logged(workdir: Path) -> int:
    return max((record["step"] for record in gang.records(workdir)), default=0)


def kill(recipe: Path, workdir: Path, processes: int, rng: random.Random) -> str:
    """Start the job, kill one process of it at some moment, and return where that was: "start", "training", "end"."""
    before, job = logged(workdir), Gang(recipe, workdir, processes)
    # Two processes that have not met wait long for each other, so they are hit once they train.
    where = rng.choices(["start", "training"], [1 if processes == 1 else 0, 3])[0]
    goal, deadline = before + rng.randint(1, 4 * EVERY), time.monotonic() + rng.uniform(0, 8)
    while all(process.poll() is None for process in job.processes):
        if time.monotonic() > deadline if where == "start" else logged(workdir) >= goal:
            break
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.2))
    which = rng.randrange(processes)
    job.send(which, signal.SIGKILL)
    for number, (code, said) in enumerate(job.end()):
        assert "Traceback" not in said, said[-1500:]
        assert code in ((-signal.SIGKILL, DONE) if number == which else (PEER_LOST, DONE)), (code, said[-1500:])
    return "end" if goal > STEPS else where


def attack(recipe: Path, whole: Path, folder: Path, processes: int, count: int, rng: random.Random) -> None:
    """Kill ``count`` times, in as many runs as that takes, each compared with ``whole`` once it has ended."""
    met: collections.Counter[str] = collections.Counter()
    done, run = 0, 0
    while done < count:
        workdir = folder / f"run-{run}"
        while done < count and logged(workdir) < STEPS:
            met[kill(recipe, workdir, processes, rng)] += 1
            done += 1
        gang.finish(recipe, workdir, processes)
        assert gang.records(workdir) == gang.records(whole)
        gang.assert_same_model(workdir, whole)
        assert (workdir / "hugging_face" / "model.safetensors").read_bytes() == (
            whole / "hugging_face" / "model.safetensors"
        ).read_bytes()
        assert not list(workdir.rglob("*.tmp"))
        run += 1
    print(f"{processes} process(es): {done} kills in {run} runs: {dict(met)}")


@pytest.mark.trust
def test_kills(recipe: Path, whole: Path, processes: int, tmp_path: Path) -> None:
    count = damage.scaled({1: 150, 2: 50}[processes])
    attack(recipe, whole, tmp_path, processes, count, damage.generator(f"kills of {processes}"))
