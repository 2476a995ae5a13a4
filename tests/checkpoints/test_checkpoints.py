"""Checkpoints on disk and on a store: exact round trips, pruning, and what a damaged or unwritable step does."""

from __future__ import annotations

import dataclasses
import errno
import gc
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.experimental import multihost_utils

from bert_jax.checkpoints import restoring
from bert_jax.checkpoints.integrity import ARRAYS
from bert_jax.checkpoints.restoring import read_params, saved_steps
from bert_jax.checkpoints.saving import CheckpointConfig, Checkpoints, save_params
from bert_jax.cluster import exit_codes
from bert_jax.errors import PassingError, UserError
from bert_jax.records import Sum
from bert_jax.storage import files, globs
from bert_jax.storage.checksums import CHECKSUMS
from bert_jax.training.state import SkippedSteps, TrainState, abstract
from bert_jax.workdir.steps import MARKS

# A read that fails leaves the others of its step unawaited.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FACTS = {"model": {"hidden_size": 4}, "vocabulary_sha256": "beef"}


@pytest.fixture(autouse=True)
def _collect_here() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(params=["disk", "store"])
def workdir(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder, and one in fsspec's memory file system, which stands for an object store."""
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    if request.param == "disk":
        yield str(tmp_path / "run")
        return
    yield "memory://bucket/run"
    if files.as_path("memory://bucket").exists():
        files.as_path("memory://bucket").rmtree()


def state_at(step: int) -> TrainState:
    """Values that no other step has."""
    rng = np.random.default_rng(step)
    weights = {
        "dense": {"kernel": jnp.asarray(rng.normal(size=(8, 256)), jnp.float32)},  # too large to lie in the index
        "bias": jnp.full(4, step, "float32"),
    }
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        params=weights,
        opt_state=(jax.tree.map(jnp.square, weights), jnp.asarray(step, jnp.int32)),
        metrics={"mlm_loss": Sum(jnp.float32(step), jnp.float32(7))},
        skipped=SkippedSteps.none(),
    )


def save(workdir: str, *steps: int, steps_at: Collection[int] = (), **config: Any) -> None:
    checkpoints = Checkpoints(workdir, CheckpointConfig(**config), at=steps_at)
    for step in steps:
        checkpoints.save(state_at(step), FACTS)
    checkpoints.wait()
    checkpoints.close()


def restore(workdir: str, notes: list[str]) -> TrainState | None:
    return restoring.restore(workdir, abstract(state_at(0)), notes.append)


def assert_same(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), found, expected)


def unlist(step: Path) -> None:
    """Leave a step without lists of sha256."""
    for name in (CHECKSUMS, ARRAYS):
        (step / name).unlink()


def damage(workdir: str, step: int) -> None:
    """Truncate every data file of a step."""
    root = files.as_path(workdir) / "checkpoints" / str(step) / "state"
    waiting, found = [root], 0
    while waiting:
        for entry in waiting.pop().iterdir():
            if entry.is_dir():
                waiting.append(entry)
            elif entry.parent.name == "d":
                entry.write_bytes(entry.read_bytes()[:10])
                found += 1
    assert found


def test_round_trip(workdir: str) -> None:
    notes: list[str] = []
    assert restore(workdir, notes) is None
    save(workdir, 5, 10)
    assert_same(restore(workdir, notes), state_at(10))
    assert notes == []
    params, facts, step = read_params(workdir, 5)
    assert_same(params, state_at(5).params)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
    assert (facts, step) == (FACTS, 5)
    assert read_params(workdir)[2] == 10


def test_a_run_that_saves_only_its_last_step_says_so() -> None:
    config = CheckpointConfig(every_steps=700)
    assert "--config.checkpoints.every_steps=60 saves ten" in config.remarks(600)[0]
    assert config.remarks(701) == config.remarks(100) == ()


def test_the_oldest_steps_are_pruned_but_for_those_kept_for_ever(workdir: str) -> None:
    save(workdir, 2, 4, 6, keep=2, keep_every_steps=6)
    assert saved_steps(workdir) == [4, 6]
    save(workdir, 8, 10, 12, 14, keep=2, keep_every_steps=6)  # after a restart
    assert saved_steps(workdir) == [6, 12, 14]


def test_a_damaged_step_gives_way_to_the_one_before(workdir: str) -> None:
    save(workdir, 5, 10)
    damage(workdir, 10)
    notes: list[str] = []
    assert_same(restore(workdir, notes), state_at(5))
    assert len(notes) == 1
    assert "step 10 is damaged" in notes[0]
    assert "damaged-step-10" in notes[0]
    assert saved_steps(workdir) == [5]
    assert (files.as_path(workdir) / "damaged-step-10" / "state").exists()
    save(workdir, 10)  # the run comes by again
    assert saved_steps(workdir) == [5, 10]
    assert_same(restore(workdir, notes), state_at(10))


def test_a_step_that_was_put_there_is_set_aside(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for workdir, run_id in ((run, "ours"), (other, "theirs")):
        checkpoints = Checkpoints(str(workdir), CheckpointConfig())
        for step in (5, 10):
            checkpoints.save(state_at(step), {**FACTS, "run": {"run_id": run_id}})
        checkpoints.wait()
        checkpoints.close()
    shutil.rmtree(run / "checkpoints" / "10")
    shutil.copytree(other / "checkpoints" / "10", run / "checkpoints" / "10")
    shutil.copytree(run / "checkpoints" / "5", run / "checkpoints" / "20")
    notes: list[str] = []
    (run / "run.json").write_text('{"run_id": "ours"}')
    for step, found in ((20, r"checkpoints/20 holds step 5"), (10, r"checkpoints/10 is of another run \(theirs; ")):
        with pytest.raises(UserError, match=f"^{run}: {found}.*; choose another of its steps: 5$"):
            read_params(str(run), step)
    assert_same(restore(str(run), notes), state_at(5))
    aside = [run / f"damaged-step-{step}" for step in (20, 10)]
    assert notes == [
        f"checkpoints/20 holds step 5; set aside as {aside[0]}",
        f"checkpoints/10 is of another run (theirs; this one is ours); set aside as {aside[1]}",
    ]


@pytest.mark.parametrize("kind", ["empty folder", "link", "file"])
def test_what_is_in_the_way_of_a_save_is_named_before_it(tmp_path: Path, kind: str) -> None:
    save(str(tmp_path), 5)
    (tmp_path / "checkpoints" / "3").mkdir()  # as a cut pruning leaves it
    (tmp_path / "checkpoints" / "11").mkdir()
    (tmp_path / "checkpoints" / "11" / files.UNFINISHED).touch()  # as a cut removal leaves it
    save(str(tmp_path), 11)
    shutil.rmtree(tmp_path / "checkpoints" / "11")
    place = tmp_path / "checkpoints" / "10"
    {"empty folder": place.mkdir, "link": lambda: place.symlink_to("10"), "file": place.touch}[kind]()
    with pytest.raises(UserError, match=f"{place} is in the way of a save: .*; remove it, then run the same command"):
        Checkpoints(str(tmp_path), CheckpointConfig())


def test_nothing_is_touched_if_no_step_can_be_read(workdir: str) -> None:
    save(workdir, 5, 10)
    damage(workdir, 5)
    damage(workdir, 10)
    with pytest.raises(UserError, match=r"step 10 is damaged: .* step 5 is damaged: .* Nothing was changed"):
        restore(workdir, [])
    assert saved_steps(workdir) == [5, 10]


def test_another_model_does_not_set_good_steps_aside(workdir: str) -> None:
    save(workdir, 5)
    other = state_at(0)
    other.params = {"dense": {"kernel": jnp.zeros((8, 5))}, "bias": jnp.zeros(4)}
    with pytest.raises(UserError, match=r"step 5 is as it was saved, but cannot be restored .*Nothing was changed"):
        restoring.restore(workdir, abstract(other), print)
    assert saved_steps(workdir) == [5]


def test_memory_of_other_lanes_is_an_error(tmp_path: Path) -> None:
    """Memory is saved with the state, and has a row for each lane."""
    eight, four = (dataclasses.replace(state_at(5), memory={"past": jnp.ones((lanes, 3))}) for lanes in (8, 4))
    checkpoints = Checkpoints(str(tmp_path), CheckpointConfig())
    checkpoints.save(eight, FACTS)
    checkpoints.close()
    assert_same(restoring.restore(str(tmp_path), abstract(eight), print), eight)
    with pytest.raises(UserError, match=r"its memory/past has the shape \[8, 3\], and in this run \[4, 3\]"):
        restoring.restore(str(tmp_path), abstract(four), print)


def test_leaves_that_a_step_lacks_are_an_error(workdir: str) -> None:
    save(workdir, 5)
    state = state_at(5)
    state.metrics["skipped"] = Sum(jnp.float32(3), jnp.float32(4))
    with pytest.raises(
        UserError, match="step 5 .*cannot be restored .*it lacks metrics/skipped/value, metrics/skipped/count"
    ):
        restoring.restore(workdir, abstract(state), print)
    assert saved_steps(workdir) == [5]


def test_leaves_that_a_run_does_not_have_are_an_error(workdir: str) -> None:
    save(workdir, 5)
    other = state_at(0)
    other.metrics = {}
    with pytest.raises(UserError, match="it holds metrics/mlm_loss/count, .*which this run does not have"):
        restoring.restore(workdir, abstract(other), print)
    assert saved_steps(workdir) == [5]


def test_a_folder_without_its_marker_is_no_step(tmp_path: Path) -> None:
    save(str(tmp_path), 5)
    (tmp_path / "checkpoints" / "9").mkdir()
    shutil.copytree(tmp_path / "checkpoints" / "5", tmp_path / "checkpoints" / "11")
    for mark in MARKS[:2]:
        (tmp_path / "checkpoints" / "11" / mark).unlink()
    assert saved_steps(str(tmp_path)) == [5]
    for step in ("11", "9"):
        with pytest.raises(
            UserError, match=f"checkpoints/{step} is not complete: .* remove it to go on from the newest"
        ):
            restore(str(tmp_path), [])
        shutil.rmtree(tmp_path / "checkpoints" / step)
    assert_same(restore(str(tmp_path), []), state_at(5))


def test_an_upload_that_was_cut_is_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    workdir = "memory://bucket/cut"
    save(workdir, 5, 10)
    steps = files.as_path(workdir) / "checkpoints"
    (steps / "10" / files.MARKER).unlink()  # it comes last
    (steps / "10" / files.UNFINISHED).write_text("")
    assert saved_steps(workdir) == [5]
    assert_same(restore(workdir, []), state_at(5))
    save(workdir, 10)  # over what was left
    assert_same(restore(workdir, []), state_at(10))
    assert not list(tmp_path.glob("scratch/*"))  # copies are given back


def test_a_flipped_bit_on_a_store_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    workdir = "memory://bucket/flip"
    save(workdir, 5, 10)
    [data] = [p for p in globs.matches(f"{workdir}/checkpoints/10/state/**") if p.parent.name == "d"][:1]
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(bytes(content))
    notes: list[str] = []
    assert_same(restore(workdir, notes), state_at(5))
    assert "sha256" in notes[0]


def test_a_failed_upload_is_said_at_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("the bucket is read-only")

    monkeypatch.setattr(files, "upload", refuse)
    checkpoints = Checkpoints("memory://bucket/refused", CheckpointConfig())
    checkpoints.save(state_at(1), FACTS)
    with pytest.raises(UserError, match="read-only.*run the same command"):
        checkpoints.save(state_at(2), FACTS)
    checkpoints.close()


def test_a_failed_save_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    checkpoints = Checkpoints(str(tmp_path), CheckpointConfig())
    with pytest.raises(UserError, match="No space left on device.*free some space") as error:
        checkpoints.save(state_at(1), FACTS)
    checkpoints.close()
    assert "\n" not in str(error.value)


def test_a_store_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a restart: code 2 would forbid it. No step is set aside for it."""
    checkpoints = Checkpoints(str(tmp_path), CheckpointConfig())
    for error in (ValueError("UNAVAILABLE: 503 from the store"), OSError(errno.ESTALE, "Stale file handle")):
        with pytest.raises(PassingError, match="cannot save into .* now") as raised, checkpoints._explained():
            raise error
        assert exit_codes.of(raised.value) == 1
    checkpoints.close()
    save(str(tmp_path), 1, 2)

    def fail(*_: Any) -> None:
        raise ValueError("DEADLINE_EXCEEDED: of the store")

    monkeypatch.setattr(restoring, "check_step", fail)
    with pytest.raises(PassingError, match="cannot read .* now"):
        restore(str(tmp_path), [])
    assert saved_steps(str(tmp_path)) == [1, 2]


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_orbax_reads_a_step_and_saves_arrays_of_the_user_as_before(tmp_path: Path) -> None:
    """The arrays that several devices hold alike are whole: those that the devices cut, and small ones."""
    devices = jax.make_mesh((8,), ("x",))
    everywhere, cut = (jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("x",)))
    rng = np.random.default_rng(0)
    arrays = {shape: rng.normal(size=shape).astype(np.float32) for shape in ((2048, 1024), (1024, 8), (7, 3), ())}
    saved = {str(shape): jax.device_put(array, everywhere) for shape, array in arrays.items()}
    saved["cut"] = jax.device_put(arrays[1024, 8], cut)
    save_params(str(tmp_path / "run"), saved, FACTS)
    step = tmp_path / "run" / "checkpoints" / "0" / "state"
    for checkpointer in (ocp.StandardCheckpointer(), ocp.PyTreeCheckpointer()):
        jax.tree.map(np.testing.assert_array_equal, checkpointer.restore(step), {"params": saved})
    with ocp.CheckpointManager(tmp_path / "run" / "checkpoints") as manager:
        assert manager.restore(0)["state"]["params"].keys() == saved.keys()
        manager.restore(0, args=ocp.args.Composite(state=ocp.args.StandardRestore()))

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "own", {"key": jax.random.key(0)})
        checkpointer.wait_until_finished()
        assert jax.dtypes.issubdtype(checkpointer.restore(tmp_path / "own")["key"].dtype, jax.dtypes.prng_key)


def test_a_step_behind_the_newest_is_not_dropped_in_silence(tmp_path: Path) -> None:
    save(str(tmp_path), 10)
    with pytest.raises(UserError, match="10|later step"):
        save(str(tmp_path), 10)


def test_parameters_alone(workdir: str) -> None:
    with pytest.raises(UserError, match="there is no folder .*run; give the folder of a run"):
        read_params(workdir)
    save_params(workdir, state_at(3).params, FACTS)
    params, facts, step = read_params(workdir)
    assert_same(params, state_at(3).params)
    assert (facts, step) == (FACTS, 0)
    with pytest.raises(UserError, match="only steps 0; choose one of them"):
        read_params(workdir, 7)


def test_a_step_without_a_list_is_damaged(tmp_path: Path) -> None:
    save(str(tmp_path), 5, 10)
    unlist(tmp_path / "checkpoints" / "10")
    with pytest.raises(UserError, match=r"step 10 cannot be read .SHA256SUMS is missing.; choose another .*: 5$"):
        read_params(str(tmp_path))
    notes: list[str] = []
    assert_same(restore(str(tmp_path), notes), state_at(5))
    assert notes == [f"step 10 is damaged: SHA256SUMS is missing; set aside as {tmp_path}/damaged-step-10"]
    unlist(tmp_path / "checkpoints" / "5")
    with pytest.raises(UserError, match="step 5 cannot be read .* no other step is whole; copy it again"):
        read_params(str(tmp_path))


@pytest.mark.parametrize("config", [{"every_steps": 0}, {"keep": 0}])
def test_configuration(config: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at least 1"):
        CheckpointConfig(**config)


def test_a_save_does_not_ask_jax_for_the_step_to_leave_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Termination`` alone asks JAX, because its questions are counted."""
    asked: list[int] = []
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", asked.append)
    save(str(tmp_path), 1, 2)
    assert asked == []
