"""Batches depend on the step alone: not on hosts, workers, or where a run was taken up."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.records import Feature
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.sentence_pairs import RowsConfig, SentencePairRows
from bert_jax.task import RowSource
from tests.rows.fakes import FACTS, fake_split

SPLIT = fake_split(40, sentences=(2, 12), mean=8)
PHASES = Phases((Phase(6, 8, 32, "short"), Phase(5, 4, 64, "long")))
CONFIGS = {phase.kind: RowsConfig(phase.max_length) for phase in PHASES.phases}
SPECS = {kind: config.batch_spec() for kind, config in CONFIGS.items()}
Make = Callable[[str, str, int], RowSource]


@pytest.fixture
def source(tmp_path: Path) -> Make:
    def make(split: str, kind: str, phase: int) -> RowSource:
        assert split == "train"
        return SentencePairRows(CONFIGS[kind], SPLIT, FACTS, seed=0, phase=phase, directory=tmp_path)

    return make


def digests(loader: Loader) -> dict[int, str]:
    return {
        step: hashlib.sha256(b"".join(name.encode() + batch[name].tobytes() for name in sorted(batch))).hexdigest()
        for step, batch in loader
    }


def test_batches_are_the_rows_of_their_step(source: Make) -> None:
    for step, batch in Loader(source, PHASES, 0, SPECS):
        phase = PHASES.locate(step)[0]
        rows = source("train", PHASES.phases[phase].kind, phase)
        where = PHASES.step(step, {phase: rows.rows_per_epoch})
        wanted = rows.rows(where.epochs, where.rows)
        assert all((batch[name] == wanted[name]).all() for name in wanted)
    assert step == 10


@pytest.mark.parametrize("start", [3, 6, 10, 11])
def test_a_run_taken_up_sees_the_batches_of_one_never_cut(source: Make, start: int) -> None:
    whole = digests(Loader(source, PHASES, 0, SPECS))
    assert len(set(whole.values())) == 11
    rest = digests(Loader(source, PHASES, start, SPECS))
    assert rest == {step: whole[step] for step in range(start, 11)}


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_share_the_batch_of_one(source: Make, hosts: int) -> None:
    whole = dict(Loader(source, PHASES, 0, SPECS))
    parts = [dict(Loader(source, PHASES, 0, SPECS, process_index=p, process_count=hosts)) for p in range(hosts)]
    for step, batch in whole.items():
        for name, value in batch.items():
            assert (np.concatenate([part[step][name] for part in parts]) == value).all()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_make_the_same_batches(source: Make, workers: int) -> None:
    config = LoaderConfig(num_workers=workers, prefetch_batches=2)
    assert digests(Loader(source, PHASES, 4, SPECS, config)) == digests(Loader(source, PHASES, 4, SPECS))


def test_the_plan_of_the_next_epoch_is_asked_for_where_it_is_needed(source: Make) -> None:
    prepared: list[tuple[int, int]] = []

    def watched(split: str, kind: str, phase: int) -> RowSource:
        rows = source(split, kind, phase)
        rows.prepare = lambda epoch: prepared.append((phase, epoch))  # type: ignore[attr-defined]
        return rows

    phases = Phases((Phase(40, 8, 32, "short"),))
    list(Loader(watched, phases, 0, SPECS))
    last_epoch = (40 * 8 - 1) // source("train", "short", 0).rows_per_epoch
    assert last_epoch > 1
    assert prepared == [(0, epoch) for epoch in range(1, last_epoch + 1)]


class Broken:
    """Rows that fail from the second batch on."""

    rows_per_epoch = 100

    def __init__(self, how: str):
        self.how = how

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        if indices[0] >= 8:
            if self.how == "dies":
                os._exit(9)
            raise UserError("block 7 of the corpus is damaged; build it again")
        return {"input_ids": np.zeros((len(indices), 4), np.int32)}


BROKEN_PHASES = Phases((Phase(6, 8, 4, "a"),))
BROKEN_SPECS = {"a": {"input_ids": Feature((4,), "int32")}}


def broken_loader(how: str, workers: int) -> Loader:
    return Loader(lambda *_: Broken(how), BROKEN_PHASES, 0, BROKEN_SPECS, LoaderConfig(num_workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_reaches_the_consumer_as_it_was(workers: int) -> None:
    with pytest.raises(UserError, match="block 7 of the corpus is damaged"):
        list(broken_loader("raises", workers))


def test_the_death_of_a_worker_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="exit code 9"):
        list(broken_loader("dies", 1))


def test_a_batch_that_is_not_as_declared_names_every_difference(source: Make) -> None:
    wrong = {kind: dict(spec) for kind, spec in SPECS.items()}
    wrong["short"]["labels"] = wrong["short"].pop("cls_positions")
    wrong["short"]["input_ids"] = SPECS["long"]["input_ids"]
    with pytest.raises(UserError, match="input_ids is .*declared.*labels is absent.*cls_positions.*declared nowhere"):
        list(Loader(source, PHASES, 0, wrong))


def test_bad_values_are_errors(source: Make) -> None:
    with pytest.raises(UserError, match="does not divide among 3 hosts"):
        Loader(source, PHASES, 0, SPECS, process_count=3)
    with pytest.raises(UserError, match="num_workers is -1"):
        LoaderConfig(num_workers=-1)
    with pytest.raises(UserError, match="prefetch_batches is 0"):
        LoaderConfig(prefetch_batches=0)


def test_waiting_is_measured_and_batches_are_made_ahead() -> None:
    class Slow(Broken):
        def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
            time.sleep(0.05)
            return {"input_ids": np.zeros((len(indices), 4), np.int32)}

    eager = Loader(lambda *_: Slow(""), BROKEN_PHASES, 0, BROKEN_SPECS)
    list(eager)
    assert eager.wait_seconds > 0.2
    patient = Loader(lambda *_: Slow(""), BROKEN_PHASES, 0, BROKEN_SPECS)
    for _ in patient:
        time.sleep(0.1)
    assert patient.wait_seconds < eager.wait_seconds


KILLED = """
import os, sys
from tests.rows.test_loader import CONFIGS, FACTS, PHASES, SPECS, SPLIT
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.sentence_pairs import SentencePairRows

def source(split, kind, phase):
    return SentencePairRows(CONFIGS[kind], SPLIT, FACTS, seed=0, phase=phase, directory=sys.argv[1])

if __name__ == "__main__":
    next(iter(Loader(source, PHASES, 0, SPECS, LoaderConfig(num_workers=2))))
    print("ready", flush=True)
    os.kill(os.getpid(), 9)
"""


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, tmp_path / "killed.py", tmp_path], stdout=subprocess.PIPE, cwd=os.getcwd(),
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as process:  # fmt: skip
        told, _ = process.communicate(timeout=120)  # returns when the last holder of the pipe has gone
    assert told == b"ready\n"
    assert process.returncode == -9
