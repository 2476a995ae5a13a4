"""200 SIGKILLs at random moments: what is started again until it is done ends as one that was never cut, bit for bit.

The short part in ``make test`` is tests/training/test_resume.py and test_processes.py.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cluster.exit_codes import DONE, PEER_LOST
from bert_jax.reporting import status
from tests.tasks import toy_tasks
from tests.training import gang
from tests.training.gang import Gang
from tests.trust.damage import generator, scaled

pytestmark = pytest.mark.trust

STEPS, EVERY = 60, 6  # of the run, and from evaluation to evaluation
ENDS = 6  # kills of one run after its last step
MADE = ("metrics.jsonl", "run.json", "status.json", "report.html", "checkpoints")


@dataclass(frozen=True)
class Whole:
    """A run that was never cut."""

    recipe: Path
    run: Path
    count: int
    verb: str = "pretrain"
    flags: tuple[str, ...] = ()
    begins: float = 0.0  # seconds from the start to the first step
    ends: float = 0.0  # from the last step to the end

    def start(self, run: Path) -> Gang:
        return Gang(self.recipe, run, self.count, self.flags, self.verb)


def make_whole(recipe: Path, run: Path, count: int, verb: str = "pretrain", flags: tuple[str, ...] = ()) -> Whole:
    whole, begun = Whole(recipe, run, count, verb, flags), time.monotonic()
    job = whole.start(run)
    job.reach(1)
    first = time.monotonic()
    job.reach(STEPS)
    last = time.monotonic()
    ended = job.end()
    assert [code for code, _ in ended] == [DONE] * count, ended
    return Whole(recipe, run, count, verb, flags, first - begun, time.monotonic() - last)


def last_step(run: Path) -> int:
    return max((record["step"] for record in gang.records(run)), default=0)


def is_saving(run: Path) -> bool:
    return any("tmp" in path.name for path in run.glob("**/checkpoints/*"))


def is_evaluating(run: Path) -> bool:
    """The step before an evaluation is logged, the evaluation is not."""
    records = gang.records(run)
    return bool(records) and records[-1]["split"] == "train" and records[-1]["step"] % EVERY == 0


def moment(whole: Whole, run: Path, rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """What is to be hit next, and whether the time has come."""
    begun, before = time.monotonic(), last_step(run)
    if before == STEPS:
        begins, ends = whole.begins, whole.ends
        due = begun + rng.uniform(begins / 2, begins + ends)
        return "end", lambda: time.monotonic() >= due
    kind = rng.choice(["start", "step", "save", "evaluation"])
    if kind == "start":
        due = begun + rng.uniform(0, whole.begins)
        return kind, lambda: time.monotonic() >= due
    goal = min(before + rng.randint(1, 6), STEPS)
    now = {"step": lambda run: True, "save": is_saving, "evaluation": is_evaluating}[kind]
    return kind, lambda: last_step(run) >= STEPS or (last_step(run) >= goal and now(run))


def strike(job: Gang, due: Callable[[], bool], victims: list[int]) -> bool:
    """Kill the ``victims`` when it is due; whether all processes ran until then."""
    deadline = time.monotonic() + 180
    while not due():
        if any(process.poll() is not None for process in job.processes):
            return False
        assert time.monotonic() < deadline, job.end(seconds=1)
        time.sleep(0.002)
    if any(process.poll() is not None for process in job.processes):
        return False
    for victim in victims:
        job.send(victim, signal.SIGKILL)
    return True


def attack(whole: Whole, run: Path, kills: int, rng: random.Random) -> Counter[str]:
    """Kill a run up to ``kills`` times, start it again until it is done, and compare; what was hit how often."""
    hit: Counter[str] = Counter()
    while hit.total() < kills and hit["end"] < ENDS:
        kind, due = moment(whole, run, rng)
        lost = rng.randrange(whole.count)
        # Before all are there the others would only wait for the one that is lost: a machine that holds all of them.
        victims = list(range(whole.count)) if kind == "start" else [lost]
        job = whole.start(run)
        struck = strike(job, due, victims)
        ended = job.end()
        if not struck:
            assert {code for code, _ in ended} == {DONE}, (kind, ended)
            break
        hit[kind] += 1
        for number, (code, said) in enumerate(ended):
            assert "Traceback" not in said, (kind, lost, said)
            if number not in victims:
                assert code == PEER_LOST or (kind == "end" and code == DONE), (kind, lost, said)
    ended = whole.start(run).end()
    assert [code for code, _ in ended] == [DONE] * whole.count, ended
    assert_same(whole, run)
    return hit


def assert_same(whole: Whole, run: Path) -> None:
    """Log, parameters and export, to the bit; and no litter."""
    assert gang.records(run) == gang.records(whole.run)
    gang.assert_same_model(run, whole.run)
    compared = ["hugging_face/model.safetensors", "predictions_dev.jsonl", "results.json"]
    for name in (name for name in compared if (whole.run / name).exists()):
        assert (run / name).read_bytes() == (whole.run / name).read_bytes(), name
    found, wanted = ({path.name for path in folder.iterdir()} for folder in (run, whole.run))
    assert found == wanted
    assert found >= set(MADE)
    for folder in ("checkpoints", "hugging_face"):
        found, wanted = ({path.name for path in (side / folder).glob("*")} for side in (run, whole.run))
        assert found == wanted
    assert status.read(run)["state"] == "finished"


def attacks(whole: Whole, folder: Path, kills: int, name: str, at_once: int = 1) -> None:
    """``kills`` in all, of as many runs as it takes."""
    rng = generator(name)

    def line(number: int, wanted: int, seed: str) -> Counter[str]:
        own, hit, runs = random.Random(seed), Counter[str](), 0
        while hit.total() < wanted:
            hit += attack(whole, folder / f"{number}-{runs}", wanted - hit.total(), own)
            runs += 1
        return hit + Counter(runs=runs)

    shares = [len(range(number, kills, at_once)) for number in range(at_once)]
    begun = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(line, n, share, f"{rng.random()}") for n, share in enumerate(shares) if share]
        hit: Counter[str] = sum((job.result() for job in jobs), Counter())
    runs = hit.pop("runs")
    print(f"{name}: {hit.total()} kills ({dict(hit)}) of {runs} runs in {time.monotonic() - begun:.0f} s, all the same")
    assert hit.total() == kills


def pretraining(folder: Path) -> Path:
    cadence: dict[str, Any] = {"log_every_steps": 1, "eval_every_steps": EVERY, "eval_rows": 40}
    return gang.make_inputs(folder, num_steps=STEPS, every_steps=2, training=cadence, export=True)


@pytest.mark.parametrize(("count", "kills"), [(1, 130), (2, 50)])
def test_pretraining(tmp_path: Path, count: int, kills: int) -> None:
    flags = ("--config.mesh={'data': 1, 'fsdp': -1}",) if count > 1 else ()
    whole = make_whole(pretraining(tmp_path), tmp_path / "whole", count, flags=flags)
    attacks(whole, tmp_path, scaled(kills), f"{count} processes", at_once=3 - count)


def test_fine_tuning(tmp_path: Path) -> None:
    """The best evaluation so far, which is kept beside the newest step, is killed too."""
    train, training = {"num_epochs": 10, "batch_size": 8}, {"logs_per_evaluation": 6}
    model = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1}
    recipe = toy_tasks.write_toy(tmp_path, "tagging", 48, 16, train, model=model, training=training, export=True)
    whole = make_whole(recipe, tmp_path / "whole", 1, "finetune", (f"--data={tmp_path}",))
    attacks(whole, tmp_path, scaled(20), "fine-tuning", at_once=2)
