"""Fine-tunings with a teacher whose soft targets are kept: killed, and with damaged files, they end alike."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path

import pytest

from bert_jax.cluster.exit_codes import BAD_INPUT, DONE
from tests.tasks import toy_tasks
from tests.trust import test_kills
from tests.trust.damage import damage_one, generator, scaled
from tests.trust.test_kills import Whole, assert_same

pytestmark = pytest.mark.trust


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run that learned from another."""
    folder = tmp_path_factory.mktemp("taught")
    train, training = {"num_epochs": 10, "batch_size": 8}, {"logs_per_evaluation": 6}
    recipe = toy_tasks.write_toy(folder, "classification", 48, 16, train, training=training, export=True)
    assert toy_tasks.finetune(folder, workdir="teacher") == 0
    flags = (
        f"--data={folder}",
        f"--config.teacher.init={folder / 'teacher'}",
        f"--config.vocab.path={folder / 'teacher' / 'vocab.txt'}",
        "--config.teacher.cached=True",
        "--config.teacher.soft.temperature=2.0",
    )
    return test_kills.make_whole(recipe, folder / "whole", 1, "finetune", flags)


def test_kills_of_a_taught_run(whole: Whole, tmp_path: Path) -> None:
    test_kills.attacks(whole, tmp_path, scaled(8), "taught fine-tuning")


def test_damages_of_a_taught_run(whole: Whole, tmp_path: Path) -> None:
    """Its soft targets are computed again, a damaged step is set aside; what cannot be mended is said in one line."""
    rng, ended = generator("damages of a taught run"), collections.Counter[str]()
    for number in range(scaled(8)):
        workdir = Path(shutil.copytree(whole.run, tmp_path / f"run-{number}"))
        if number % 2:
            newest = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name))
            done = damage_one(newest, rng, among=lambda path: path.parent.name == "d")
        else:  # the run begins anew, beside what the teacher said
            shutil.rmtree(workdir / "checkpoints")
            done = damage_one(workdir, rng, among=lambda path: path.name.startswith("teacher_"))
        [(code, said)] = whole.start(workdir).end()
        assert "Traceback" not in said, (done, said)
        ended[f"{'step' if number % 2 else 'soft targets'}: {done.split()[0]}: {code}"] += 1
        if number % 2:
            assert (code, said.count("error: ")) in ((DONE, 0), (BAD_INPUT, 1)), (done, said)
        else:
            assert code == DONE, (done, said)
            assert_same(whole, workdir)
    print(dict(ended))
