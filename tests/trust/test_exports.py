"""Damages to exports: none is imported as another model, and none ends with a traceback."""

from __future__ import annotations

import collections
import hashlib
import itertools
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interchange import tensors
from bert_jax.interchange.card import CARD
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.tensors import WEIGHTS
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.reporting import status
from tests import toy
from tests.features.test_features import CONFIG, TOKENIZER
from tests.interchange.heads import HEADS, params_of
from tests.trust.damage import DAMAGES, damage_one, generator, scaled

CHANGES = {kind: DAMAGES[kind] for kind in ("flip_bit", "swap_bytes", "zero_page")}  # that lengths do not tell


def export(root: Path, name: str, shard_bytes: int = 10**9) -> Path:
    params = params_of(HEADS[name], CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "MAX_SHARD_BYTES", shard_bytes)
        export_model(TrainedModel("", params, CONFIG, TOKENIZER, HEADS[name]), root / name, "card")
    return root / name


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A model in one file, one in several, and one with labels."""
    root = tmp_path_factory.mktemp("exports")
    return [export(root, "pretraining"), export(root, "masked_lm", 20_000), export(root, "tagging")]


def bits_of(folder: Path) -> str:
    """Hash of all that an import makes of a folder."""
    found = import_model(folder)
    facts = repr([found.config, found.head, found.tokenizer.sha256, found.tokenizer.lowercase, found.report.missing])
    digest = hashlib.sha256(facts.encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(found.params):
        digest.update(jax.tree_util.keystr(path).encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()


def attempt(folder: Path, expected: str, name: str) -> str:
    """What comes of importing an export whose file ``name`` is damaged."""
    try:
        return "same" if bits_of(folder) == expected else "silent"
    except UserError as error:
        return "refused" if name in str(error) and "\n" not in str(error) else f"not named: {error}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"


def attack(exports: list[Path], scratch: Path, count: int, rng: random.Random) -> collections.Counter[tuple[str, str]]:
    """(file, outcome) -> how often, of ``count`` damages, each to a copy of its own."""
    expected = {export: bits_of(export) for export in exports}
    outcomes = collections.Counter[tuple[str, str]]()
    kinds = itertools.cycle((DAMAGES, CHANGES))
    for export, kind in itertools.islice(zip(itertools.cycle(exports), kinds, strict=False), count):
        folder = Path(shutil.copytree(export, scratch / "model"))
        done = damage_one(folder, rng, kind)
        name = done.split(" ")[1]
        outcome = attempt(folder, expected[export], name)
        print(f"{export.name}: {done}: {outcome}")
        outcomes["weights" if name.endswith(".safetensors") else name, outcome.partition(":")[0]] += 1
        shutil.rmtree(folder)
    return outcomes


def check(outcomes: collections.Counter[tuple[str, str]], count: int) -> None:
    assert outcomes.total() == count
    for (name, outcome), times in sorted(outcomes.items()):
        print(f"{name:<30} {outcome:<8} {times}")
    for name, outcome in outcomes:
        harmless = name in (CARD, "SHA256SUMS")  # the card is for people; a list may lack a name
        assert outcome == "refused" or (harmless and outcome == "same")


def test_some_damages(tmp_path: Path) -> None:
    """The short part."""
    check(attack([export(tmp_path, "masked_lm", 20_000)], tmp_path, 12, generator("exports, some")), 12)


@pytest.mark.trust
def test_damages(exports: list[Path], tmp_path: Path) -> None:
    count = scaled(50)
    check(attack(exports, tmp_path, count, generator("exports")), count)


# ---- The real command ---------------------------------------------------------------------------------------------

KILLED_AT = """
import os, pathlib, signal, sys

replace, name = os.replace, sys.argv.pop(1)

def replaced(source, target):
    if pathlib.Path(target).name == name and not str(source).endswith(".replaced"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

if name:
    os.replace = replaced
from bert_jax.cli.main import run
sys.exit(run())
"""


def command(*arguments: str, killed_at: str = "") -> subprocess.CompletedProcess[str]:
    """``bert-jax``, which is killed when it renames something to ``killed_at``."""
    return subprocess.run(
        [sys.executable, "-c", KILLED_AT, killed_at, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.trust
@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "vocab.txt"])
def test_the_command_ends_with_one_line(exports: list[Path], tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(exports[0], tmp_path / "model"))
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    done = command("import", f"--input={folder}", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {folder}: {name} is damaged: its sha256 differs from SHA256SUMS; ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("finished")
    config = toy.recipe(toy.write_text(folder / "text.txt"), examples=())
    recipe = toy.write_recipe(folder / "recipe.json", config)
    assert command("pretrain", f"--config={recipe}", f"--workdir={folder / 'run'}").returncode == 0
    return folder


PLACES = ("hugging_face.new", "hugging_face.replaced", "hugging_face", "exported.json", "report.html")


@pytest.mark.trust
@pytest.mark.parametrize("place", PLACES)
def test_killed_in_its_export_the_same_command_finishes(finished: Path, tmp_path: Path, place: str) -> None:
    workdir = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    (workdir / "exported.json").write_text('{"step": 1}')  # so that the newest step is exported in its place
    flags = ("pretrain", f"--config={finished / 'recipe.json'}", f"--workdir={workdir}")
    assert command(*flags, killed_at=place).returncode == -signal.SIGKILL
    assert status.read(workdir)["state"] == "stopped"
    there = workdir / ("hugging_face.replaced" if place == "hugging_face" else "hugging_face")
    assert bits_of(there) == bits_of(finished / "run" / "hugging_face")
    assert command(*flags).returncode == 0
    assert status.read(workdir)["state"] == "finished"
    assert bits_of(workdir / "hugging_face") == bits_of(finished / "run" / "hugging_face")
    assert not list(workdir.glob("hugging_face.*"))
