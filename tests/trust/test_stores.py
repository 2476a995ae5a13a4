"""A store that answers 503, slowly, not at all: a command on it ends as one that met no trouble, or in one line.

What passes is waited out. What lasts ends the command with a code after which a launcher starts it again, what is
refused with one after which it does not; either way the same command goes on later, to the same bits.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import itertools
import shutil
import time
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

import fsspec
import pytest

from bert_jax.checkpoints.integrity import ARRAYS, check_step
from bert_jax.checkpoints.restoring import saved_steps, steps_folder
from bert_jax.cli.main import run
from bert_jax.cluster.exit_codes import BAD_INPUT, CRASHED, DONE
from bert_jax.reporting.run_log import read_records
from bert_jax.storage import files, remote, retries
from bert_jax.workdir import lease
from tests import toy
from tests.storage.faulty import PASSING, URL, FaultyStore
from tests.training.gang import TIMED
from tests.trust import fake_gcs
from tests.trust.damage import generator, scaled
from tests.trust.fake_gcs import FakeGcs

STEPS = 12
LASTING = ("503", "429", "silent", "reset")
CODES = {"passing": DONE, "sometimes": DONE, "slow": DONE, "lasting": CRASHED, "refused": BAD_INPUT}
RUNS = {"passing": 8, "sometimes": 5, "lasting": 7, "refused": 4, "slow": 1}
READINGS = {"passing": 6, "sometimes": 3, "lasting": 5, "refused": 3, "slow": 1}  # of each command that reads


@dataclasses.dataclass(frozen=True)
class Store:
    """Where faults come from, and the URL of the bucket that meets with them."""

    url: str
    faulty: type[FaultyStore] | FakeGcs


@pytest.fixture(scope="module", params=["fsspec", "gcsfs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One that lies in this process, and one that gcsfs asks over HTTP, where that is installed."""
    with toy.one_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "FIRST_WAIT", 0.002)
        patch.setattr(retries, "LONGEST_WAIT", 0.02)
        patch.setattr(retries, "GIVEN_UP_SECONDS", 0.2)
        patch.setattr(lease, "SILENCE_SECONDS", 1.0)  # of a run that could not let go, in this very process
        patch.setattr(lease, "BEAT_SECONDS", 60.0)  # else the clock says how many requests there are
        patch.setattr(lease, "LOOK_SECONDS", 0.05)
        patch.setenv("BERT_JAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        if request.param == "fsspec":
            patch.setenv(retries.SECONDS, "0.5")
            yield Store(URL, FaultyStore)
            files.as_path(URL).rmtree()
            return
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it asks Google itself what kind of bucket it is
        retry = pytest.importorskip("gcsfs.retry")
        quickly = types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 1000))
        with fake_gcs.serving() as served:
            patch.setattr(retry, "asyncio", quickly)
            patch.setattr(remote, "SILENT_SECONDS", 0.3)
            patch.setenv(retries.SECONDS, "2")
            patch.setenv("STORAGE_EMULATOR_HOST", served.url)
            patch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
            yield Store("gs://bucket", served)


@pytest.fixture(scope="module")
def recipe(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recipe of a short run whose vocabulary and corpus lie on the store."""
    folder = tmp_path_factory.mktemp("inputs")
    config = toy.recipe(
        toy.write_text(folder / "text.txt"),
        phases={"phase1": {"num_steps": STEPS, "batch_size": 8, "max_length": 32}},
        training={"log_every_steps": 1, "eval_every_steps": 6, "eval_rows": 8, "loggers": ()},
        checkpoints={"every_steps": 4},
        examples=(),
    )
    built = toy.write_recipe(folder / "building.json", config)
    vocab, corpus = f"{store.url}/vocab.txt", f"{store.url}/corpus"
    assert run(["vocab", f"--config={built}", f"--output={vocab}"]) == DONE
    assert run(["corpus", f"--config={built}", f"--config.vocab.path={vocab}", f"--output={corpus}"]) == DONE
    config["vocab"]["path"], config["corpus"]["path"] = vocab, corpus
    return toy.write_recipe(folder / "recipe.json", config)


class Attack:
    """Commands under one kind of faults after another.

    Attributes:
      met: how often a command that met with a kind of faults ended with a code.
    """

    def __init__(self, store: Store, capsys: pytest.CaptureFixture[str]):
        with capsys.disabled():
            self._rng = generator(f"trouble of {store.url}")
        self._store, self._capsys = store, capsys
        self.met: collections.Counter[str] = collections.Counter()

    def call(self, *command: str) -> tuple[int, str]:
        """(exit code, what was printed) of a command, of which all but bugs is allowed."""
        if self._rng.random() < 0.5:  # as on another machine: nothing of the store is here
            for entry in files.cache_directory().iterdir():
                shutil.rmtree(entry)
        self._capsys.readouterr()
        code = run(list(command))
        self.printed, self.said = self._capsys.readouterr()
        errors = [line for line in self.said.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in self.said, self.said
        assert len(errors) == (code in (BAD_INPUT, CRASHED)), (code, self.printed, self.said)
        assert all(self._store.url in line for line in errors), errors
        return code, self.printed

    def requests(self, *command: str) -> int:
        """How many requests a command makes that meets with no fault."""
        before = self._store.faulty.requests
        assert self.call(*command)[0] == DONE, self.said
        return self._store.faulty.requests - before

    def faulted(self, name: str, requests: int, *command: str) -> tuple[int, str]:
        """``call`` while the store is in trouble, from one of so many ``requests`` on."""
        rng, when = self._rng, self._rng.randrange(requests)
        kinds: dict[str, Iterable[str | None]] = {
            "passing": rng.choices(PASSING, k=rng.randint(1, 8)),
            "sometimes": (rng.choice(PASSING) if rng.random() < 0.2 else None for _ in itertools.count()),
            "slow": itertools.repeat("slow"),
            "lasting": itertools.repeat(rng.choice(LASTING)),
            "refused": itertools.repeat("403"),
        }
        first, left, met = self._store.faulty.requests + when, iter(kinds[name]), list[str]()

        def fault(kind: str, path: str) -> str | None:
            if self._store.faulty.requests <= first and name not in ("sometimes", "slow"):
                return None
            found = next(left, None)
            met.extend([found] if found else [])
            return found

        self._store.faulty.fault = fault
        try:
            code, printed = self.call(*command)
        finally:
            self._store.faulty.heal()
        time.sleep(retries.GIVEN_UP_SECONDS)  # until the store is asked again
        # The last requests, which write the last word of a status and let go of a lease, end no run.
        done = code == DONE and (not met or when > 0.9 * requests)
        assert code == CODES[name] or done, (name, when, len(met), code, self.said)
        self.met[f"{name if met else 'over before'}: exit code {code}"] += 1
        return code, printed


def ended(workdir: str) -> tuple[object, ...]:
    """What a run leaves that is to be the same without trouble: records, sha256 of the last state's arrays, export."""
    folder = files.as_path(workdir)
    records = [{k: v for k, v in r.items() if k not in TIMED} for r in read_records(folder)]
    step = folder / "checkpoints" / str(STEPS)
    check_step(step)
    return records, (step / ARRAYS).read_text(), (folder / "hugging_face" / "model.safetensors").read_bytes()


@pytest.mark.trust
def test_runs(store: Store, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attack, whole = Attack(store, capsys), f"{store.url}/whole"
    requests = attack.requests("pretrain", f"--config={recipe}", f"--workdir={whole}")
    for number, name in enumerate(of_each(RUNS)):
        workdir = f"{store.url}/run-{number}"
        command = ("pretrain", f"--config={recipe}", f"--workdir={workdir}")
        code, _ = attack.faulted(name, requests, *command)
        for step in saved_steps(workdir):
            check_step(steps_folder(workdir) / str(step))
        if code != DONE:
            assert attack.call(*command)[0] == DONE, attack.said
        assert ended(workdir) == ended(whole), (name, attack.said)
        files.as_path(workdir).rmtree()
    report(attack, "pretrain", capsys)


@pytest.mark.trust
def test_readings(store: Store, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``checkpoint verify``, ``corpus --verify`` and ``export``."""
    attack, whole = Attack(store, capsys), f"{store.url}/read"
    assert attack.call("pretrain", f"--config={recipe}", f"--workdir={whole}")[0] == DONE, attack.said
    for command in (("checkpoint", "verify", f"--workdir={whole}"), ("corpus", f"--verify={store.url}/corpus")):
        requests, wanted = attack.requests(*command), attack.printed
        for name in of_each(READINGS):
            code, printed = attack.faulted(name, requests, *command)
            assert printed == wanted if code == DONE else wanted.startswith(printed), printed
    folder = files.as_path(store.url)
    requests = attack.requests("export", f"--workdir={whole}", f"--output={store.url}/exported")
    for number, name in enumerate(of_each(READINGS)):
        command = ("export", f"--workdir={whole}", f"--output={store.url}/exported-{number}")
        if attack.faulted(name, requests, *command)[0] != DONE:
            assert not files.is_whole(folder / f"exported-{number}")
            assert attack.call(*command)[0] == DONE, attack.said
        for file in ("model.safetensors", files.MARKER):
            assert (folder / f"exported-{number}" / file).read_bytes() == (folder / "exported" / file).read_bytes()
    report(attack, "commands that read", capsys)


def of_each(counts: dict[str, int]) -> Iterator[str]:
    return itertools.chain.from_iterable([name] * scaled(count) for name, count in counts.items())


def report(attack: Attack, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"{what}: {attack.met.total()} met with trouble: {dict(attack.met)}")
