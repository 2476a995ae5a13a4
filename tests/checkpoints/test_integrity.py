"""What has changed in a saved step is found before it is believed, and no other fault is taken for a damage."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from bert_jax.checkpoints import integrity, restoring
from bert_jax.checkpoints.integrity import DamagedStepError, check_step, findings
from bert_jax.checkpoints.restoring import newest_verified, read_params, saved_steps
from bert_jax.checkpoints.saving import save_params
from bert_jax.cluster import exit_codes
from bert_jax.errors import UserError
from bert_jax.storage import files
from bert_jax.storage.checksums import CHECKSUMS, write_checksums
from bert_jax.training.state import abstract
from tests.checkpoints.test_checkpoints import FACTS, assert_same, restore, save, state_at, unlist
from tests.trust.damage import flip_bit


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A workdir with the steps 5 and 10."""
    save(str(tmp_path), 5, 10)
    return tmp_path


def step_of(workdir: Path, step: int) -> Path:
    return workdir / "checkpoints" / str(step)


def arrays_file(step: Path) -> Path:
    """The file that holds all arrays but the smallest."""
    return max(step.glob("state/ocdbt.process_0/d/*"), key=lambda path: path.stat().st_size)


def flip(path: Path, seed: int = 0) -> None:
    path.write_bytes(flip_bit(path.read_bytes(), random.Random(seed)))


def test_a_step_lists_its_files_and_sha256sum_reads_it(saved: Path) -> None:
    step = step_of(saved, 10)
    done = subprocess.run(["sha256sum", "--check", CHECKSUMS], cwd=step, capture_output=True, text=True, check=True)
    listed = {line.partition(": ")[0] for line in done.stdout.splitlines()}
    there = {path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_file()}
    assert there - listed == {CHECKSUMS, "_CHECKPOINT_METADATA", "commit_success.txt"}
    check_step(step)


def test_a_flipped_bit_is_found_and_the_array_is_named(saved: Path) -> None:
    file = arrays_file(step_of(saved, 10))
    flip(file)
    notes: list[str] = []
    assert_same(restore(str(saved), notes), state_at(5))
    [note] = notes
    where = file.relative_to(step_of(saved, 10))
    assert f"step 10 is damaged: {where} is damaged: its sha256 differs from SHA256SUMS (array " in note
    assert ("params.dense.kernel)" in note) != ("opt_state.0.dense.kernel)" in note)
    assert note.endswith(f"; set aside as {saved}/damaged-step-10")
    assert saved_steps(str(saved)) == [5]


def test_all_arrays_of_a_lost_file_are_named(saved: Path) -> None:
    arrays_file(step_of(saved, 10)).unlink()
    one, other = "opt_state.0.dense.kernel", "params.dense.kernel"  # in one file or, now and then, in two
    with pytest.raises(DamagedStepError, match=rf"missing \((arrays {one}, {other}|array {one}|array {other})\)$"):
        check_step(step_of(saved, 10))


@pytest.mark.parametrize("name", ["facts/metadata", "state/_METADATA", "state/manifest.ocdbt", "ARRAYS", CHECKSUMS])
def test_any_other_file(saved: Path, name: str) -> None:
    flip(step_of(saved, 10) / name)
    with pytest.raises(UserError, match=r"step 10 cannot be read .*SHA256SUMS.*choose another of its steps: 5$"):
        read_params(str(saved))
    assert_same(read_params(str(saved), 5)[0], state_at(5).params)


def test_what_is_no_file_is_not_read(saved: Path) -> None:
    step = step_of(saved, 10)
    arrays = arrays_file(step)
    arrays.unlink()
    os.mkfifo(arrays)  # to read it would wait for ever
    assert list(findings(step)) == [f"{arrays.relative_to(step)} is a pipe, a socket or a device"]
    notes: list[str] = []
    assert_same(restore(str(saved), notes), state_at(5))
    assert len(notes) == 1


def test_a_list_that_lacks_files_is_damaged(saved: Path) -> None:
    sums = step_of(saved, 10) / CHECKSUMS
    sums.write_text(sums.read_text().partition("\n")[0] + "\n")
    with pytest.raises(DamagedStepError, match="SHA256SUMS does not list facts/commit_success.txt"):
        check_step(step_of(saved, 10))
    sums.write_text("")
    with pytest.raises(DamagedStepError, match="SHA256SUMS does not list facts/"):
        check_step(step_of(saved, 10))


def test_no_step_is_without_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that is cut before the list leaves no step."""
    save(str(tmp_path), 5)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bert_jax.checkpoints.saving.write_lists", fail)
    with pytest.raises(UserError, match="No space left on device"):
        save(str(tmp_path), 10)
    assert saved_steps(str(tmp_path)) == [5]
    monkeypatch.undo()
    save(str(tmp_path), 10)
    check_step(step_of(tmp_path, 10))


def test_a_lost_mark_does_not_hide_a_step(saved: Path) -> None:
    """The step before would be believed to be the newest."""
    (step_of(saved, 10) / "commit_success.txt").unlink()
    notes: list[str] = []
    assert_same(restore(str(saved), notes), state_at(10))
    assert notes == []
    save(str(saved), 11)
    assert saved_steps(str(saved)) == [5, 10, 11]


def test_a_step_that_lost_all_marks_is_not_passed_over(saved: Path) -> None:
    for mark in ("commit_success.txt", CHECKSUMS):
        (step_of(saved, 10) / mark).unlink()
    said = r"checkpoints/10 is not complete: it has none of commit_success.txt, SHA256SUMS, COMMITTED; "
    with pytest.raises(UserError, match=f"{saved}: {said}choose another of its steps: 5$"):
        read_params(str(saved))
    assert_same(read_params(str(saved), 5)[0], state_at(5).params)
    with pytest.raises(UserError, match="is in the way of a save"):
        save(str(saved), 11)
    shutil.rmtree(step_of(saved, 5))
    with pytest.raises(UserError, match=f"{said}no other step is whole"):
        read_params(str(saved))


def test_a_list_that_is_gone_is_a_loss_if_the_other_is_there(saved: Path) -> None:
    (step_of(saved, 10) / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=r"step 10 cannot be read \(SHA256SUMS is missing\); choose .*: 5$"):
        read_params(str(saved))
    notes: list[str] = []
    assert_same(restore(str(saved), notes), state_at(5))
    assert "step 10 is damaged: SHA256SUMS is missing" in notes[0]


def rewrite_sums(step: Path) -> None:
    """As one who copies a step makes its list anew, ``ARRAYS`` included."""
    names = [line.partition("  ")[2] for line in (step / CHECKSUMS).read_text().splitlines()]
    write_checksums(step, names)


def test_rewritten_sums_do_not_hide_a_flipped_bit(saved: Path) -> None:
    step = step_of(saved, 10)
    flip(arrays_file(step))
    rewrite_sums(step)
    with pytest.raises(DamagedStepError, match=r"^the sha256 of array \S+dense.kernel differs from ARRAYS$"):
        check_step(step)
    found = [finding for number in range(3) for finding in findings(step, (number, 3))]
    assert len(found) == 1
    flip(step / "state" / "manifest.ocdbt")
    rewrite_sums(step)
    with pytest.raises(DamagedStepError, match=r"^the sha256 of arrays .* and \d more differs from ARRAYS$"):
        check_step(step)
    (step / "ARRAYS").write_bytes(b"\xff")
    rewrite_sums(step)
    with pytest.raises(DamagedStepError, match=r"^the arrays cannot be compared with ARRAYS \('utf-8' codec"):
        check_step(step)


def test_facts_that_are_null_are_named(saved: Path) -> None:
    (step_of(saved, 10) / "facts" / "metadata").write_text("null")
    rewrite_sums(step_of(saved, 10))
    with pytest.raises(UserError, match=r"step 10 cannot be read \(facts/metadata is not a JSON object\); choose"):
        read_params(str(saved))


@pytest.mark.parametrize("name", ["٣٠٠", "010"])
def test_a_folder_is_a_step_if_its_name_is_a_number_in_ascii(saved: Path, name: str) -> None:
    step_of(saved, 10).rename(saved / "checkpoints" / name)
    assert saved_steps(str(saved)) == [5]
    assert_same(restore(str(saved), []), state_at(5))
    save(str(saved), 11)
    assert saved_steps(str(saved)) == [5, 11]


def test_what_must_not_be_read_is_not_damaged(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "x")
    monkeypatch.setattr(files, "sha256", raising(denied))
    with pytest.raises(
        UserError, match=r"step 10 cannot be read \(Permission denied: x\). Nothing was changed: make it"
    ):
        restore(str(saved), [])
    assert saved_steps(str(saved)) == [5, 10]
    with pytest.raises(UserError, match=r"step 10 cannot be read \(.*Permission denied"):
        read_params(str(saved))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError):
        saved_steps(str(saved))


def test_processes_share_the_work(saved: Path) -> None:
    step = step_of(saved, 10)
    flip(arrays_file(step))
    found = [list(findings(step, (number, 3))) for number in range(3)]
    assert sum(" is damaged: " in finding for process in found for finding in process) == 1  # ARRAYS may tell another
    read: list[str] = []
    for number in range(3):
        read += names_read(step, (number, 3))
    assert sorted(read) == sorted(names_read(step, (0, 1)))


def names_read(step: Path, share: tuple[int, int]) -> list[str]:
    names: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.storage.files.sha256", lambda path, *part: names.append(str(path)) or "")
        list(integrity.damages(step, share=share))
    return names


def test_only_a_verified_step_is_advised(saved: Path) -> None:
    workdir = str(saved)
    assert newest_verified(workdir, [5, 10]) == 10
    assert newest_verified(workdir, [5]) == 5
    flip(arrays_file(step_of(saved, 10)))
    assert newest_verified(workdir, [5, 10]) == 5
    unlist(step_of(saved, 5))
    assert newest_verified(workdir, [5, 10]) is None


OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: Out of memory allocating 8192 bytes."


def wrapped(error: BaseException) -> Exception:
    try:
        raise ValueError("reading params.bias") from error
    except ValueError as outer:
        return outer


SHORTAGES: dict[str, Callable[[], Exception]] = {
    "of the device": lambda: jax.errors.JaxRuntimeError(OUT_OF_MEMORY),
    "within another": lambda: wrapped(jax.errors.JaxRuntimeError(OUT_OF_MEMORY)),
    "among others": lambda: ExceptionGroup("reads", [jax.errors.JaxRuntimeError(OUT_OF_MEMORY)]),
    "of the host": lambda: MemoryError("cannot allocate 8192 bytes"),
}


@pytest.mark.parametrize("kind", SHORTAGES)
def test_too_little_memory_is_not_damage(saved: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "_read_tree", raising(SHORTAGES[kind]()))
    with pytest.raises(
        UserError, match=r"step 10 cannot be restored for lack of memory .* takes 1\d,\d{3} bytes .*fsdp"
    ) as caught:
        restore(str(saved), [])
    assert "\n" not in str(caught.value)
    assert exit_codes.of(caught.value) == 2
    assert saved_steps(str(saved)) == [5, 10]


def test_an_error_of_a_device_is_not_damage(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "_read_tree", raising(jax.errors.JaxRuntimeError("INTERNAL: the chip is gone")))
    with pytest.raises(jax.errors.JaxRuntimeError, match="the chip is gone"):
        restore(str(saved), [])
    assert saved_steps(str(saved)) == [5, 10]


@pytest.mark.parametrize("where", ["verified", "read"])
def test_too_many_open_files_are_not_damage(saved: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "verified":
        error: Exception = OSError(errno.EMFILE, "Too many open files", "x")
        monkeypatch.setattr(files, "sha256", raising(error))
    else:  # as TensorStore says it
        error = ValueError(f"RESOURCE_EXHAUSTED: reading {'x' * 300}: Too many open files [at a.cc:1]")
        monkeypatch.setattr(restoring, "_read_tree", raising(error))
    with pytest.raises(UserError, match=r"step 10 cannot be restored .*Too many open files.* raise the limit on open"):
        restore(str(saved), [])
    assert saved_steps(str(saved)) == [5, 10]


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_steps_move_between_disks_and_object_stores(tmp_path: Path) -> None:
    """What verifies them comes along: the marker of an upload, the list of a step."""
    save("memory://moved/run", 5)
    fetched = tmp_path / "fetched"
    move(restoring.steps_folder("memory://moved/run") / "5", fetched)
    check_step(fetched)
    flip(fetched / "commit_success.txt")
    with pytest.raises(DamagedStepError, match="commit_success.txt is damaged: its sha256 differs from COMMITTED"):
        check_step(fetched)

    save(str(tmp_path), 10)
    put = restoring.steps_folder("memory://moved/run") / "10"
    move(files.as_path(step_of(tmp_path, 10)), put)
    assert saved_steps("memory://moved/run") == [5, 10]
    check_step(put)
    assert_same(read_params("memory://moved/run")[0], state_at(10).params)
    (put / CHECKSUMS).unlink()
    integrity.write_lists(put)  # as where several processes save there
    check_step(put)
    (put / "facts" / "metadata").write_text("{}")
    with pytest.raises(DamagedStepError, match="facts/metadata is damaged"):
        check_step(put)
    files.as_path("memory://moved").rmtree()


def move(source: Any, target: Any) -> None:
    for name in files.below(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((source / name).read_bytes())


def test_a_damaged_best_evaluation_points_at_steps_of_the_run(saved: Path) -> None:
    save_params(str(saved / "best"), state_at(3).params, FACTS)
    unlist(saved / "checkpoints" / "5")
    flip(arrays_file(step_of(saved / "best", 0)))
    with pytest.raises(
        UserError, match=r"best: step 0 cannot be read .*\(array params.dense.kernel\).*another step of the run: 10$"
    ):
        read_params(str(saved / "best"))


def test_the_shapes_tell_what_a_state_takes_on_each_device() -> None:
    shapes = abstract(state_at(0))
    assert restoring._bytes_per_device(shapes) == sum(leaf.nbytes for leaf in jax.tree.leaves(state_at(0)))
