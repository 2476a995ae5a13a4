"""Strangers at JAX's port, which knows no password, and processes that are started twice: while a real job runs."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest

from bert_jax.cluster.exit_codes import BAD_INPUT, PEER_LOST, PREEMPTED
from bert_jax.storage import files
from tests.training import gang
from tests.training.gang import Gang
from tests.trust import strangers
from tests.trust.damage import generator

pytestmark = pytest.mark.trust


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gang.make_inputs(tmp_path_factory.mktemp("inputs"), num_steps=60, export=True)


@pytest.fixture(scope="module")
def left_alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nobody attacks."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    gang.finish(recipe, workdir, 2)
    return workdir


def test_a_real_job_that_is_attacked_from_its_start_to_its_end(recipe: Path, left_alone: Path, tmp_path: Path) -> None:
    rng, done = generator("strangers"), Counter[str]()
    job = Gang(recipe, tmp_path / "run", 2)
    over = threading.Event()

    def attack() -> None:
        held: list[socket.socket] = []
        while not over.wait(0.1):
            name = rng.choice(sorted(strangers.ATTACKS))
            with contextlib.suppress(OSError):  # nobody listens yet, or any more
                held += strangers.ATTACKS[name](f"127.0.0.1:{job.port}", rng)
                done[name] += 1
            strangers.close(held[:-500])
            held = held[-500:]
        strangers.close(held)

    attacking = threading.Thread(target=attack, daemon=True)
    attacking.start()
    try:
        ended = job.end()
    finally:
        over.set()
        attacking.join()
    assert [code for code, _ in ended] == [0, 0], ended
    assert done.total() >= 20, done
    assert gang.records(job.workdir) == gang.records(left_alone)
    gang.assert_same_model(job.workdir, left_alone)
    assert not [said for _, said in ended if "Traceback" in said]
    assert files.as_path(job.workdir / "hugging_face").is_dir()
    print(f"{done.total()} attacks, {dict(done)}; exit codes 0, records and model as of a run left alone")


def test_processes_that_are_started_twice(tmp_path: Path) -> None:
    """Each is refused in one line, and the job that runs does not notice."""
    recipe = gang.make_inputs(tmp_path, num_steps=30_000)
    job = Gang(recipe, tmp_path / "run", 2)
    job.reach(3)
    late = Gang(recipe, tmp_path / "run", 2, port=job.port, arrival_seconds=5)
    (first, why_first), (second, why_second) = late.end()
    assert (first, second) == (BAD_INPUT, PEER_LOST), (why_first, why_second)
    assert f"cannot listen at 127.0.0.1:{job.port} (Address already in use)" in why_first
    assert "a job whose processes have all arrived takes no other" in why_second
    job.reach(len(gang.records(tmp_path / "run")) + 3)
    job.send(1, signal.SIGTERM)
    ended = job.end()
    assert [code for code, _ in ended] == [PREEMPTED, PREEMPTED], ended
