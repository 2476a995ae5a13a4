"""Disks that fill up or turn read-only, limits on files and on open files, at any moment of a job.

Whatever it meets, the job goes on where it can, or ends with one line and loses nothing that was saved. Once the disk
is as it was, the same command goes on to the bits of a run that met nothing, and leaves nothing else behind.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import os
import random
import re
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cli.main import run as command
from bert_jax.cluster.exit_codes import BAD_INPUT, CRASHED, DONE, PEER_LOST
from tests import hardships
from tests.training import gang
from tests.training.gang import Gang
from tests.trust import damage

STEPS, EVERY = 80, 4  # of a run, and from save to save
DISK_BYTES = 64 * hardships.MIB  # of the disk while nothing is wrong with it
SECONDS = 180  # that an attacked job may take
STARTING = ("run.json", "status.json", "vocab.txt", "checkpoints")
BUILDING = ("corpus*", "corpus/plans", "corpus/plans/*")
ENDING = (f"checkpoints/{STEPS}*", "hugging_face*", "exported.json")
# EBUSY: a temporary folder over which a disk is mounted cannot be renamed.
SAID = [os.strerror(n).lower() for n in (errno.ENOSPC, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.EBUSY)]


@dataclasses.dataclass(frozen=True)
class Place:
    """A disk with all that a job writes: its workdir, its cache, its temporary files."""

    disk: Path

    @property
    def workdir(self) -> Path:
        return self.disk / "run"

    def prepare(self, patch: pytest.MonkeyPatch) -> None:
        """Have commands write here."""
        for name, variable in (("cache", "BERT_JAX_CACHE"), ("temporary", "TMPDIR")):
            (self.disk / name).mkdir()
            patch.setenv(variable, str(self.disk / name))

    def step(self) -> int:
        """The last one logged."""
        return max((record["step"] for record in gang.records(self.workdir)), default=0)

    def left(self) -> set[str]:
        """All files, but for those of steps and of TensorBoard, which name them anew at each start; and for plans in
        the cache, where they go while no other folder can be written."""
        files = [path.relative_to(self.disk) for path in self.disk.rglob("*") if not path.is_dir()]
        others = [path for path in files if path.parts[1] not in ("checkpoints", "events")]
        named = {str(path) for path in others if path.parts[:2] != ("cache", "plans") or path.suffix == ".tmp"}
        return {re.sub(r"epoch-\d+", "epoch", name) for name in named}  # the plans of the last epochs


Hardship = Callable[[Place, Gang, random.Random], contextlib.AbstractContextManager[str]]  # says what it does


@contextlib.contextmanager
def little_space(place: Place, job: Gang, rng: random.Random) -> Iterator[str]:
    free = int(2 ** rng.uniform(10, 20.5))
    hardships.resize(place.disk, free)
    try:
        yield f"{free:,} bytes are left"
    finally:
        hardships.resize(place.disk, DISK_BYTES)


@contextlib.contextmanager
def read_only(place: Place, job: Gang, rng: random.Random) -> Iterator[str]:
    folders = [place.disk, place.workdir, *place.workdir.glob("*"), *place.workdir.glob("corpus/plans")]
    folder = rng.choice([folder for folder in folders if folder.is_dir()])
    with hardships.read_only(folder, place.disk.with_name("twin")):
        yield f"{folder.relative_to(place.disk.parent)} is read-only"


@contextlib.contextmanager
def small_files(place: Place, job: Gang, rng: random.Random) -> Iterator[str]:
    most, number = int(2 ** rng.uniform(4, 18)), rng.randrange(len(job.processes))
    hardships.limit(job.processes[number].pid, resource.RLIMIT_FSIZE, most)
    yield f"files of process {number} may have {most:,} bytes"


@contextlib.contextmanager
def few_files(place: Place, job: Gang, rng: random.Random) -> Iterator[str]:
    more, number = rng.randint(0, 12), rng.randrange(len(job.processes))
    process = job.processes[number].pid
    hardships.limit(process, resource.RLIMIT_NOFILE, hardships.open_files(process) + more)
    yield f"process {number} may open {more} more files"


HARDSHIPS: tuple[Hardship, ...] = (little_space, little_space, read_only, small_files, few_files)


def reach(place: Place, job: Gang, rng: random.Random) -> str:
    """Wait for some moment of a job that has just been started, and return which."""
    several, begun = len(job.processes) > 1, place.step()
    kind = rng.choices(["start", "training", "end"], [2 if begun else 6, 4, 0 if several else 2])[0]
    pattern = rng.choice(ENDING if kind == "end" else STARTING if several else (*STARTING, *BUILDING))
    goal = begun + rng.randint(1, 3 * EVERY)

    def there() -> bool:
        return place.step() >= goal if kind == "training" else bool([*place.workdir.glob(pattern)])

    delay = rng.uniform(0, 6 if there() else 0.2)
    while all(process.poll() is None for process in job.processes) and not there():
        time.sleep(0.001)
    time.sleep(delay)
    return f"after step {goal}" if kind == "training" else f"{delay:.2f} s after {pattern}"


def attack(recipe: Path, place: Place, processes: int, rng: random.Random) -> tuple[str, list[str]]:
    """Start the job and have it meet something at some moment; return how it ended, and what was wrong with that."""
    saved = max(saved_steps(str(place.workdir)), default=0)
    job = Gang(recipe, place.workdir, processes)
    when, hardship = reach(place, job, rng), rng.choice(HARDSHIPS)
    with hardship(place, job, rng) as what:
        try:
            ended = job.end(SECONDS)
        except subprocess.TimeoutExpired:
            return f"{hardship.__name__} hangs", [f"{what} {when}, from step {saved}: hangs"]
    title = f"{what} {when}, from step {saved}: {[code for code, _ in ended]}"
    print(title, *{line for _, said in ended for line in said.splitlines() if "error: " in line}, sep="\n  ")
    wrong = [f"{title}: {text}" for code, said in ended for text in check_ending(code, said)]
    steps = saved_steps(str(place.workdir))
    if max(steps, default=0) < saved:
        wrong.append(f"{title}: step {saved} is lost, {steps} are there")
    if steps and command(["checkpoint", "verify", f"--workdir={place.workdir}"]) != DONE:
        wrong.append(f"{title}: a saved step is damaged")
    return f"{hardship.__name__} {[code for code, _ in ended]}", wrong


def check_ending(code: int, said: str) -> Iterator[str]:
    """Return what is wrong: it has to go on to the end, or to say one line, with a path, a reason and what to do."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if code == PEER_LOST and ("cannot reach process 0" in said or "finds no process 0" in said):
        return  # which has ended before they met, and could write nothing to say so
    few = code in (CRASHED, PEER_LOST) and bool(errors) and "too many open files" in errors[-1].lower()
    if not (few or code in (DONE, BAD_INPUT)) or "Traceback" in said:
        yield f"exit code {code}: {said[-4000:]}"
    elif code == DONE and errors or code != DONE and errors != said.strip().splitlines()[-1:]:
        yield f"not one line of an error, the last: {said[-4000:]}"
    elif errors and not any(text in errors[0].lower() for text in SAID):
        yield f"no reason: {errors[0]}"
    elif errors and not re.search(r"error: (.*/.*|too many open files)(; |: )\w+ .*", errors[0]):
        yield f"no path or no advice: {errors[0]}"


def differences(place: Place, whole: Place) -> Iterator[str]:
    """Return what the run in ``place`` has otherwise than one that met nothing."""
    found, wanted = gang.records(place.workdir), gang.records(whole.workdir)
    if found != wanted:
        steps = [[(record["step"], record["split"]) for record in records] for records in (found, wanted)]
        yield f"other records: {steps if steps[0] != steps[1] else [r for r in found if r not in wanted]}"
    try:
        gang.assert_same_model(place.workdir, whole.workdir)
    except AssertionError as error:
        yield f"another model: {error}"
    model, old = (folder.workdir / "hugging_face" / "model.safetensors" for folder in (place, whole))
    if model.read_bytes() != old.read_bytes():
        yield "another export"
    if names := place.left() ^ whole.left():
        yield f"other files: {sorted(names)}"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cadence = {"log_every_steps": 1, "eval_every_steps": 20, "eval_rows": 20}
    folder = tmp_path_factory.mktemp("inputs")
    return gang.make_inputs(folder, num_steps=STEPS, every_steps=EVERY, training=cadence, export=True)


def attacks(recipe: Path, folder: Path, processes: int, count: int, rng: random.Random) -> None:
    """Attack ``count`` times, in as many runs as that takes, each compared with one that met nothing."""
    met: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    whole, run = Place(folder / "whole"), 0
    whole.disk.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        whole.prepare(patch)
        gang.finish(recipe, whole.workdir, processes)
    while met.total() < count:
        place, run = Place(folder / f"disk-{run}"), run + 1
        with hardships.small_disk(place.disk, DISK_BYTES), pytest.MonkeyPatch.context() as patch:
            place.prepare(patch)
            while met.total() < count and place.step() < STEPS:
                ended, found = attack(recipe, place, processes, rng)
                met[ended] += 1
                wrong += found
            gang.finish(recipe, place.workdir, processes)
            found = [f"{place.disk.name}: {text}" for text in differences(place, whole)]
            print(*found, sep="\n")
            wrong += found
    print(f"{processes} process(es): {met.total()} hardships in {run} runs: {dict(met)}")
    assert not wrong, f"{len(wrong)} of {met.total()}:\n" + "\n".join(wrong)


@pytest.mark.trust
@pytest.mark.parametrize("processes", [1, 2], ids=["one", "two"])
def test_hardships(inputs: Path, processes: int, tmp_path: Path) -> None:
    # One process makes vocabulary and corpus in its workdir; several read what is there.
    recipe = inputs.with_name("building.json") if processes == 1 else inputs
    count = damage.scaled({1: 48, 2: 12}[processes])
    attacks(recipe, tmp_path, processes, count, damage.generator(f"disks of {processes}"))
