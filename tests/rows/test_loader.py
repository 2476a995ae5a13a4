"""Batches depend on the step alone: not on hosts, workers, or where a run was taken up."""

from __future__ import annotations

import functools
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
from bert_jax.records import BatchSpec, Feature
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.rows_config import Packing, RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from bert_jax.rows.share import WHOLE, Share
from bert_jax.task import RowSource
from tests.rows.fakes import FACTS, fake_split

SPLIT = fake_split(40, sentences=(2, 12), mean=8)
PHASES = Phases((Phase(6, 8, 32, "short"), Phase(5, 4, 64, "long")))
PACKINGS: tuple[Packing, ...] = ("none", "packed", "bucketed")
Make = Callable[[str, str, int], RowSource]


def configs(packing: Packing) -> dict[str, RowsConfig]:
    """The second phase masks more."""
    masking = {"short": MaskingConfig(), "long": MaskingConfig(rate=0.3, mask_share=1.0, random_share=0.0)}
    return {
        p.kind: RowsConfig(p.max_length, masking=masking[p.kind], packing=packing, kind=p.kind) for p in PHASES.phases
    }


SPECS = {k: spec for config in configs("none").values() for k, spec in config.batch_specs.items()}


def make_source(folder: Path, packing: Packing = "none") -> Make:
    def make(split: str, kind: str, phase: int) -> RowSource:
        assert split == "train"
        config = configs(packing)[kind]
        return SequenceRows(config, SPLIT, FACTS, seed=0, phase=phase, directory=folder)

    return make


@pytest.fixture
def source(tmp_path: Path) -> Make:
    return make_source(tmp_path)


AnyRows = tuple[Make, dict[str, BatchSpec]]


@pytest.fixture(params=PACKINGS)
def any_rows(request: pytest.FixtureRequest, tmp_path: Path) -> AnyRows:
    """Rows of every packing, and their specs."""
    by_phase = configs(request.param)
    specs = {k: spec for config in by_phase.values() for k, spec in config.batch_specs.items()}
    return make_source(tmp_path, request.param), specs


def digests(loader: Loader) -> dict[int, str]:
    return {
        step.number: hashlib.sha256(b"".join(n.encode() + batch[n].tobytes() for n in sorted(batch))).hexdigest()
        for step, batch in loader
    }


def test_batches_are_the_rows_of_their_step(source: Make) -> None:
    for step, batch in Loader(source, PHASES, 0, SPECS):
        phase = step.phase
        rows = source("train", PHASES.phases[phase].kind, phase)
        where = PHASES.rows_of(step.number, {phase: rows.rows_per_epoch})
        wanted = rows.rows(where.epochs, where.rows)
        assert (step.kind, step.rows.tolist()) == (where.kind, where.rows.tolist())
        assert all((batch[name] == wanted[name]).all() for name in wanted)
    assert step.number == 10


@pytest.mark.parametrize("start", [3, 6, 10, 11])
def test_a_run_taken_up_sees_the_batches_of_one_never_cut(any_rows: AnyRows, start: int) -> None:
    source, specs = any_rows
    whole = digests(Loader(source, PHASES, 0, specs))
    assert len(set(whole.values())) == 11
    rest = digests(Loader(source, PHASES, start, specs))
    assert rest == {step: whole[step] for step in range(start, 11)}


LONG = Phases((Phase(700, 8, 32, "short"), Phase(1301, 4, 64, "long")))
FAR = (0, 1, 1000, 2000)  # the last step too


def batches_at(any_rows: AnyRows, step: int, workers: int = 0, share: Share = WHOLE) -> dict[str, np.ndarray]:
    source, specs = any_rows
    loader = iter(Loader(source, LONG, step, specs, LoaderConfig(workers, 1), share))
    found, batch = next(loader)
    loader.close()  # type: ignore[method-assign]
    assert found.number == step
    return batch


@pytest.mark.parametrize("hosts", [2, 4])
def test_far_steps_are_the_same_for_any_number_of_hosts(any_rows: AnyRows, hosts: int) -> None:
    for step in FAR:
        parts = [batches_at(any_rows, step, share=Share((p,), hosts)) for p in range(hosts)]
        for name, value in batches_at(any_rows, step).items():
            assert (np.concatenate([part[name] for part in parts]) == value).all()


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [2, 4])
def test_far_steps_are_the_same_for_any_number_of_workers(any_rows: AnyRows, workers: int) -> None:
    for step in FAR:
        made = batches_at(any_rows, step, workers)
        assert all((made[name] == value).all() for name, value in batches_at(any_rows, step).items())


def packed_then_bucketed(split: str, kind: str, phase: int, folder: str) -> RowSource:
    return make_source(Path(folder), "packed" if kind == "short" else "bucketed")(split, kind, phase)


def test_workers_make_the_same_batches(tmp_path: Path) -> None:
    source = functools.partial(packed_then_bucketed, folder=str(tmp_path))
    by_phase = {"short": configs("packed")["short"], "long": configs("bucketed")["long"]}
    specs = {k: spec for config in by_phase.values() for k, spec in config.batch_specs.items()}
    config = LoaderConfig(num_workers=2, prefetch_batches=2)
    assert digests(Loader(source, PHASES, 4, specs, config)) == digests(Loader(source, PHASES, 4, specs))


def test_a_batch_is_of_one_bucket_and_every_row_is_dealt(tmp_path: Path) -> None:
    rows = make_source(tmp_path, "bucketed")("train", "long", 1)
    buckets = rows.buckets  # type: ignore[method-assign]
    widths = {"long/16": 16, "long/32": 32, "long": 64}
    assert [b.kind for b in buckets] == list(widths)
    phases = Phases((Phase(1, 4, 32, "short"), Phase(10_000, 4, 64, "long")))
    per_epoch = sum(-(-b.rows_per_epoch // (4 * b.batches)) for b in buckets)
    seen: list[int] = []
    for number in range(1, 1 + per_epoch):
        step = phases.rows_of(number, {1: rows.rows_per_epoch}, buckets)
        width = widths[step.kind]
        assert len(step.rows) * width == 4 * 64  # as many tokens in every step
        assert (step.epochs == 0).all()
        features = rows.rows(step.epochs, step.rows)
        assert features["input_ids"].shape == (len(step.rows), width)
        assert (features["attention_mask"].sum(axis=1) > width // 2).all() or width == 16
        seen += step.rows.tolist()
    assert set(seen) == set(range(rows.rows_per_epoch))
    assert len(seen) < rows.rows_per_epoch + sum(4 * b.batches for b in buckets)
    assert (phases.rows_of(1 + per_epoch, {}, buckets).epochs == 1).all()


def test_masking_changes_with_the_phase(any_rows: AnyRows) -> None:
    source, specs = any_rows
    for step, batch in Loader(source, PHASES, 0, specs):
        share = batch["masked_weights"].sum() / batch["attention_mask"].sum()
        assert abs(share - (0.15 if step.number < 6 else 0.3)) < 0.04
        row, slot = np.nonzero(batch["masked_weights"])
        kept = batch["input_ids"][row, batch["masked_positions"][row, slot]] != FACTS.mask
        assert kept.any() == (step.number < 6)


def test_the_plan_of_the_next_epoch_is_asked_for_where_it_is_needed(source: Make) -> None:
    prepared: list[tuple[int, int]] = []

    def watched(split: str, kind: str, phase: int) -> RowSource:
        rows = source(split, kind, phase)
        rows.prepare = lambda epoch: prepared.append((phase, epoch))  # type: ignore[method-assign]
        return rows

    phases = Phases((Phase(40, 8, 32, "short"),))
    list(Loader(watched, phases, 0, SPECS))
    last_epoch = (40 * 8 - 1) // source("train", "short", 0).rows_per_epoch
    assert last_epoch > 1
    assert prepared == [(0, epoch) for epoch in range(1, last_epoch + 1)]


class Broken(RowSource):
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
    with pytest.raises(UserError, match="does not divide into 3 parts"):
        Loader(source, PHASES, 0, SPECS, share=Share((0,), 3))
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
import os
import numpy as np
from bert_jax.records import Feature
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.task import RowSource

class Zeros(RowSource):
    rows_per_epoch = 100

    def rows(self, epochs, indices):
        return {"input_ids": np.zeros((len(indices), 4), np.int32)}

if __name__ == "__main__":
    phases, specs = Phases((Phase(600, 8, 4, "a"),)), {"a": {"input_ids": Feature((4,), "int32")}}
    next(iter(Loader(lambda *_: Zeros(), phases, 0, specs, LoaderConfig(num_workers=1))))
    print("ready", flush=True)
    os.kill(os.getpid(), 9)
"""


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, tmp_path / "killed.py"], stdout=subprocess.PIPE, cwd=os.getcwd(),
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as process:  # fmt: skip
        out, _ = process.communicate(timeout=120)  # returns when the last holder of the pipe has gone
    assert out == b"ready\n"
    assert process.returncode == -9
