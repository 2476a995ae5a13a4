"""Strangers at the ports of a job: in process one attack a job, then on real processes until they are done."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from bert_jax.cluster import handshake, heartbeat_client, heartbeat_server
from bert_jax.storage import files
from tests.cluster import strangers
from tests.cluster.job import Job, free_address, until
from tests.training import gang
from tests.training.gang import Gang
from tests.trust.damage import generator, scaled

pytestmark = pytest.mark.trust
SECRET = bytes(range(64, 96))  # in place of a random key, to look for
KNOWN_KEY = f"""
import secrets, sys, types
from bert_jax.cli.main import run
from bert_jax.cluster import job_key
job_key.secrets = types.SimpleNamespace(token_bytes=lambda _: {SECRET!r}, token_hex=secrets.token_hex)
sys.exit(run())
"""


def test_attacks_on_a_job_that_waits_and_on_the_job_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_server, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(handshake, "PROOF_SECONDS", 2.0)
    rng, done = generator("strangers"), Counter[str]()
    for turn in range(scaled(len(strangers.ATTACKS))):
        name = sorted(strangers.ATTACKS)[turn % len(strangers.ATTACKS)]
        attack, job = strangers.ATTACKS[name], Job(free_address(), tmp_path / str(turn), 3)
        first, second = job.waiting(0), job.waiting(1)
        held = attack(job.address, rng)
        third = job.waiting(2)
        clients = [first, second, third]
        until(lambda clients=clients: all(client._all_here for client in clients))
        held += attack(job.address, rng)
        leaving = [
            threading.Thread(target=client.wait, args=(heartbeat_client.END,), daemon=True) for client in clients
        ]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join(30)
        assert not any(thread.is_alive() for thread in leaving), name
        assert strangers.are_hung_up(held), name
        assert not job.stops, (name, job.stops)
        Job.end_all()
        done[name] += 2
    print(f"{done.total()} attacks of {len(done)} kinds on jobs that wait and jobs that run: 0 ended one")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gang.make_inputs(tmp_path_factory.mktemp("inputs"), num_steps=60, export=True)


@pytest.fixture(scope="module")
def left_alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nobody attacks."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    gang.finish(recipe, workdir, 2)
    return workdir


@pytest.mark.parametrize(("port", "attacks"), [(0, strangers.ATTACKS), (1, strangers.NOISE)], ids=["heartbeat", "jax"])
def test_a_real_job_that_is_attacked_from_its_start_to_its_end(
    recipe: Path, left_alone: Path, tmp_path: Path, port: int, attacks: Mapping[str, strangers.Attack]
) -> None:
    rng, done, run = generator(f"strangers at port {port}"), Counter[str](), tmp_path / "run"
    job = Gang(recipe, run, 2, program=("-c", KNOWN_KEY))
    address = f"127.0.0.1:{job.port + port}"
    over = threading.Event()

    def attack() -> None:
        held: list[socket.socket] = []
        while not over.wait(0.1):
            name = rng.choice(sorted(attacks))
            with contextlib.suppress(OSError):  # nobody listens yet, or any more
                held += attacks[name](address, rng)
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
    assert gang.records(run) == gang.records(left_alone)
    gang.assert_same_model(run, left_alone)
    for _, said in ended:
        assert "Traceback" not in said
        assert SECRET.hex() not in said
    kept = [path for path in run.rglob("*") if path.is_file()]
    assert files.as_path(run / "hugging_face").is_dir()
    assert not [path for path in kept if SECRET in (data := path.read_bytes()) or SECRET.hex().encode() in data]
    print(f"port {port}: {done.total()} attacks, {dict(done)}; exit codes 0, records and model as of a run left alone")
