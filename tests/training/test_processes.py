"""Several processes train as one, and end as one: killed, frozen, told to go, or with nothing to read."""

from __future__ import annotations

import random
import re
import signal
import time
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cluster.exit_codes import BAD_INPUT, PEER_LOST, PREEMPTED
from tests.tasks import toy_tasks
from tests.training import gang
from tests.training.gang import Gang, faulty

KINDS = "tests.training.kinds"
MESHES = {
    "data": (),
    "fsdp": ("--config.mesh={'data': 1, 'fsdp': -1}",),
    "tensor": ("--config.mesh={'data': 1, 'tensor': -1}",),
    "mixed": ("--config.mesh={'data': -1, 'fsdp': 1, 'tensor': 2}",),
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gang.make_inputs(tmp_path_factory.mktemp("inputs"), every_steps=4)


@pytest.fixture(scope="module")
def alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    gang.finish(recipe, workdir, 1)
    return workdir


LOST_FILE = """
    from bert_jax.rows.loader import Batches
    make = Batches.__getitem__
    def broken(self, step):
        if step == 14:
            raise FileNotFoundError(2, "No such file or directory", "/mnt/corpus/train-00001")
        return make(self, step)
    Batches.__getitem__ = broken
"""
UNREAD_STEP = """
    from bert_jax.storage import files
    read = files.sha256
    def broken(path, *part):
        if "/checkpoints/STEP/" in str(path):
            raise OSError(5, "Input/output error", str(path))
        return read(path, *part)
    files.sha256 = broken
"""


def test_two_train_as_one_and_one_is_killed(recipe: Path, tmp_path: Path) -> None:
    """The other ends too. Both trained as one process with two devices does."""
    cut, flags = tmp_path / "cut", MESHES["fsdp"]
    job = Gang(recipe, cut, 2, flags)
    job.reach(random.Random(time.time()).randrange(10, 18))
    job.send(1, signal.SIGKILL)
    (code, said), _ = job.end()
    assert code == PEER_LOST, said
    assert re.search("error: process 1 on .* is gone", said)
    found, last = gang.records(cut), saved_steps(str(cut))[-1]
    saves = ["--config.checkpoints.keep=20", f"--config.checkpoints.every_steps={last}"]
    whole = gang.train(recipe, tmp_path / "whole", *flags, *saves, devices=2)
    assert found == whole[: len(found)]
    gang.assert_same_model(cut, tmp_path / "whole", last)


def test_two_fail_as_one_go_on_and_are_told_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes to one ends both. The task compiles in a blink; ``test_four_two_one_four`` has real runs."""
    cut = tmp_path / "cut"
    # An error of the system is one line and code 2, as of a process that is alone, and the other is told at once.
    with monkeypatch.context() as patch:
        patch.setattr(gang, "HEARTBEAT_SECONDS", 60)
        job = Gang(tmp_path / "none", cut, 2, program=faulty(LOST_FILE, module=KINDS))
    (code, said), (own, own_output) = job.end()
    assert (code, own) == (BAD_INPUT, BAD_INPUT), (said, own_output)
    assert "has failed: /mnt/corpus/train-00001: no such file or directory; name another path" in said
    assert "\nerror: /mnt/corpus/train-00001: no such file or directory; name another path" in own_output
    assert "Traceback" not in own_output

    # A step that one cannot read is read by none, though the read of the other has not come to its end.
    first, (before, newest) = gang.records(cut), saved_steps(str(cut))[-2:]
    fault = UNREAD_STEP.replace("STEP", str(newest))
    job = Gang(tmp_path / "none", cut, 2, program=faulty(fault, module=KINDS))
    job.until(lambda: max(saved_steps(str(cut))) > newest)
    job.send(1, signal.SIGTERM)
    ended = job.end()
    assert [code for code, _ in ended] == [PREEMPTED, PREEMPTED], ended
    assert f"step {newest} is damaged: " in ended[0][1]  # as the other has found
    assert f" cannot be read (Input/output error); set aside as {cut}/damaged-step-{newest}" in ended[0][1]
    assert f"resumed at step {before}" in ended[0][1]
    found, told = gang.records(cut), saved_steps(str(cut))[-1]
    assert told == found[-1]["step"] > newest
    assert f"step {told} is saved" in ended[0][1]
    assert first[-1]["step"] > before
    assert found[: len(first)] == first


@pytest.mark.heavy
def test_several_build_nothing(recipe: Path, tmp_path: Path) -> None:
    job = Gang(recipe, tmp_path / "run", 2, ["--config.corpus.path=", "--config.vocab.path="])
    ended = job.end()
    assert [code for code, _ in ended] == [BAD_INPUT, BAD_INPUT]
    said = "".join(said for _, said in ended)
    assert "there is no vocabulary in" in said
    assert "on one host, with the recipe and the flags given here, run bert-jax vocab" in said


@pytest.mark.heavy
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh(recipe: Path, alone: Path, tmp_path: Path, mesh: str, count: int) -> None:
    gang.finish(recipe, tmp_path / "run", count, *MESHES[mesh])
    gang.assert_same_losses(gang.records(tmp_path / "run"), gang.records(alone))


@pytest.mark.heavy
def test_twenty_kills_of_four(tmp_path: Path) -> None:
    recipe = gang.make_inputs(tmp_path, num_steps=240, every_steps=5, training={"log_every_steps": 1})
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    gang.finish(recipe, whole, 4)
    rng = random.Random(time.time())
    for turn in range(20):
        logged = max((record["step"] for record in gang.records(cut)), default=0)
        job = Gang(recipe, cut, 4)
        job.reach(min(logged + rng.randrange(1, 14), 239))
        lost = rng.randrange(4)
        job.send(lost, signal.SIGKILL)
        killed = time.monotonic()
        ended = job.end()
        assert time.monotonic() - killed < 10
        for number, (code, said) in enumerate(ended):
            if number != lost:
                assert code == PEER_LOST, (turn, number, said)
                assert f"error: process {lost} " in said, (turn, number, said)
    gang.finish(recipe, cut, 4)
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)


@pytest.mark.heavy
def test_four_two_one_four(recipe: Path, tmp_path: Path) -> None:
    """The same losses, and the same global batches to the byte."""
    for name, parts in {"alone": ((1, None),), "run": ((4, 8), (2, 20), (1, 33), (4, None))}.items():
        (tmp_path / f"rows of {name}").mkdir()
        for count, until in parts:
            program = RECORDED.replace("FOLDER", repr(str(tmp_path / f"rows of {name}")))
            job = Gang(recipe, tmp_path / name, count, program=("-c", program))
            if until is not None:
                job.reach(until)
                job.send(0, signal.SIGTERM)
            assert {code for code, _ in job.end()} == {PREEMPTED if until else 0}
    gang.assert_same_losses(gang.records(tmp_path / "run"), gang.records(tmp_path / "alone"))
    found, wanted = made_rows(tmp_path / "rows of run"), made_rows(tmp_path / "rows of alone")
    assert found == wanted
    assert set(wanted) == {(step, row) for step in range(50) for row in range(8)}


RECORDED = """
import os, sys, zlib
from bert_jax.cli.main import run
from bert_jax.rows.loader import Batches

make = Batches.__getitem__

def recorded(self, number):
    step, batch = make(self, number)
    with open(os.path.join(FOLDER, str(os.getpid())), "a") as file:
        for i, row in enumerate(self._share.rows(len(step.rows))):
            content = b"".join(batch[name][i].tobytes() for name in sorted(batch))
            print(number, row, zlib.crc32(content), file=file)
    return step, batch

Batches.__getitem__ = recorded
sys.exit(run())
"""


def made_rows(folder: Path) -> dict[tuple[int, int], set[int]]:
    """(step, row of the global batch) -> hashes of what all processes made there."""
    made: dict[tuple[int, int], set[int]] = {}
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            step, row, content = map(int, line.split())
            made.setdefault((step, row), set()).add(content)
    return made


@pytest.mark.heavy
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_process_ends_the_others(recipe: Path, tmp_path: Path, frozen: int) -> None:
    job = Gang(recipe, tmp_path / "run", 2)
    job.reach(5)
    job.send(frozen, signal.SIGSTOP)
    stopped = time.monotonic()
    other = job.processes[1 - frozen]
    _, said = other.communicate(timeout=60)
    took = time.monotonic() - stopped
    job.send(frozen, signal.SIGKILL)
    job.end()
    assert took < gang.HEARTBEAT_SECONDS + 5
    assert other.returncode == PEER_LOST, said
    assert f"process {frozen} " in said


@pytest.mark.heavy
def test_two_fine_tune_as_one(tmp_path: Path) -> None:
    """Two processes fine-tune from zero, and then from the encoder of that run, which stays frozen."""
    for name, frozen in {"from zero": [], "frozen": ["encoder"]}.items():
        folder = tmp_path / name
        recipe = toy_tasks.write_toy(folder, "tagging", export=True, frozen=frozen)
        flags = [f"--data={folder}", *([f"--init={tmp_path / 'from zero' / '1'}"] if frozen else [])]
        for count in (1, 2):
            ended = Gang(recipe, folder / str(count), count, flags, verb="finetune").end()
            assert [code for code, _ in ended] == [0] * count, ended
        gang.assert_same_losses(gang.records(folder / "2"), gang.records(folder / "1"))
        by_two, by_one = (toy_tasks.predictions(folder, workdir=name) for name in ("2", "1"))
        assert [one["prediction"] for one in by_two] == [one["prediction"] for one in by_one]
        assert (folder / "2" / "hugging_face" / "model.safetensors").exists()
