"""A store that answers 503, slowly, not at all: a run on it ends as one that met no trouble, or in one line.

What passes is waited out. What lasts ends the command with a code after which a launcher starts it again, what is
refused with one after which it does not; either way the same command goes on later, to the same bits.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from bert_jax.checkpoints.integrity import ARRAYS, check_step
from bert_jax.checkpoints.restoring import saved_steps, steps_folder
from bert_jax.cli.main import run
from bert_jax.cluster.exit_codes import BAD_INPUT, CRASHED, DONE
from bert_jax.reporting.run_log import read_records
from bert_jax.storage import files, lease, trouble
from tests import toy
from tests.storage.faulty import PASSING, REFUSALS, URL, FaultyStore
from tests.training.gang import TIMED
from tests.trust.damage import generator, scaled

STEPS = 12
Fault = Callable[[str, str], str | None]
Answer = tuple[int, str]  # exit code, what was said


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a run leaves that is to be the same as without trouble."""

    records: list[dict[str, object]]
    state: str  # the list of sha256 of its arrays
    export: bytes


@pytest.fixture(autouse=True, scope="module")
def _quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with toy.one_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(trouble, "FIRST_WAIT", 0.002)
        patch.setattr(trouble, "LONGEST_WAIT", 0.02)
        patch.setattr(lease, "SILENCE_SECONDS", 1.0)  # of a run that could not let go, in this very process
        patch.setattr(lease, "BEAT_SECONDS", 0.25)
        patch.setattr(lease, "LOOK_SECONDS", 0.05)
        patch.setenv(trouble.SECONDS, "0.5")
        patch.setenv("BERT_JAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    FaultyStore.heal()
    files.as_path(URL).rmtree()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short run, whose vocabulary and corpus lie on the store."""
    folder = tmp_path_factory.mktemp("inputs")
    config = toy.recipe(
        toy.write_text(folder / "text.txt"),
        phases={"phase1": {"num_steps": STEPS, "batch_size": 8, "max_length": 32}},
        training={"log_every_steps": 1, "eval_every_steps": 6, "eval_rows": 8, "loggers": ()},
        checkpoints={"every_steps": 4},
        examples=(),
    )
    built = toy.write_recipe(folder / "building.json", config)
    assert run(["vocab", f"--config={built}", f"--output={URL}/vocab.txt"]) == 0
    assert run(["corpus", f"--config={built}", f"--config.vocab.path={URL}/vocab.txt", f"--output={URL}/corpus"]) == 0
    config["vocab"]["path"], config["corpus"]["path"] = f"{URL}/vocab.txt", f"{URL}/corpus"
    return toy.write_recipe(folder / "recipe.json", config)


@contextlib.contextmanager
def faults(fault: Fault) -> Iterator[None]:
    FaultyStore.fault = fault
    try:
        yield
    finally:
        FaultyStore.heal()


def after(number: int, kinds: Iterable[str]) -> Fault:
    """After so many requests more, each meets with the next of ``kinds``; with nothing after the last of them."""
    first, left = FaultyStore.requests + number, iter(kinds)
    return lambda kind, path: next(left, None) if FaultyStore.requests > first else None


def sometimes(rng: random.Random, share: float) -> Fault:
    return lambda kind, path: rng.choice(PASSING) if rng.random() < share else None


def call(command: list[str], capsys: pytest.CaptureFixture[str]) -> Answer:
    capsys.readouterr()
    code = run(command)
    said = capsys.readouterr()
    assert "Traceback" not in said.err, said.err
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == (code in (BAD_INPUT, CRASHED)), said.err
    return code, said.out + said.err


def ended(workdir: str) -> Ended:
    store = files.as_path(workdir)
    records = [{k: v for k, v in r.items() if k not in TIMED} for r in read_records(store / "metrics.jsonl")]
    step = store / "checkpoints" / str(STEPS)
    assert check_step(step)
    return Ended(records, (step / ARRAYS).read_text(), (store / "hugging_face" / "model.safetensors").read_bytes())


class Attack:
    """One command under one kind of fault after another, each compared with what it makes of a store without them."""

    def __init__(self, recipe: Path, capsys: pytest.CaptureFixture[str], rng: random.Random):
        self._command = ["pretrain", f"--config={recipe}"]
        self._capsys, self._rng, self._number = capsys, rng, 0
        self.met: collections.Counter[str] = collections.Counter()
        before = FaultyStore.requests
        assert self._train(f"{URL}/whole") == DONE
        self._requests, self._whole = FaultyStore.requests - before, ended(f"{URL}/whole")

    def _train(self, workdir: str) -> int:
        if self._rng.random() < 0.5:  # as on another machine: nothing of the store is here
            for entry in files.cache_directory().iterdir():
                shutil.rmtree(entry)
        code, self.said = call([*self._command, f"--workdir={workdir}"], self._capsys)
        return code

    def run(self, name: str) -> None:
        """A run that meets with the faults ``name``, and goes on without them if it has ended."""
        self._number += 1
        workdir, rng = f"{URL}/run-{self._number}", self._rng
        when = rng.randrange(self._requests)
        codes = {"passing": [DONE], "sometimes": [DONE], "slow": [DONE], "lasting": [CRASHED], "refused": [BAD_INPUT]}
        fault: dict[str, Fault] = {
            "passing": after(when, rng.choices(PASSING, k=rng.randint(1, 8))),
            "sometimes": sometimes(rng, 0.2),
            "slow": after(0, itertools.repeat("slow")),
            "lasting": after(when, itertools.repeat(rng.choice(("503", "429", "silent", "reset")))),
            "refused": after(when, itertools.repeat(rng.choice(REFUSALS))),
        }
        with faults(fault[name]):
            code = self._train(workdir)
        told = (name, when, code, self.said[-2000:])
        assert code in codes[name] or (code == DONE and when > 0.9 * self._requests), told
        if code:
            assert URL in self.said, told
        for step in saved_steps(workdir):
            assert check_step(steps_folder(workdir) / str(step)), told
        self.met[f"{name}: {code}"] += 1
        if code:
            assert self._train(workdir) == DONE, (told, self.said)
        assert ended(workdir) == self._whole, told
        files.as_path(workdir).rmtree()


@pytest.mark.trust
def test_runs(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        rng = generator("runs on a store")
    attack = Attack(recipe, capsys, rng)
    for name, count in {"passing": 10, "sometimes": 6, "lasting": 8, "refused": 5, "slow": 1}.items():
        for _ in range(scaled(count)):
            attack.run(name)
    with capsys.disabled():
        print(f"\n{sum(attack.met.values())} runs on a store in trouble: {dict(attack.met)}")
