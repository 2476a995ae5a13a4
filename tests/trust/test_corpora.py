"""Damages to corpora and cached plans: nobody trains on other rows without a word, nobody sees a traceback."""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.corpora import store
from bert_jax.corpora.manifest import DamagedError
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.store import Corpus
from bert_jax.errors import UserError
from bert_jax.rows.interfaces import TokenFacts
from bert_jax.rows.loader import Loader, LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests import toy
from tests.corpora.test_store import TOKENIZER, BuildConfig, build, random_source
from tests.trust.damage import damage_one, generator, scaled

CONFIGS = (RowsConfig(32, packing="packed"), RowsConfig(32, packing="bucketed"))
KINDS = ("shard", "index", "plan", "manifest.json", "shard", "index", "plan", "metadata")  # of files, taken in turns


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several shards a split, and the plans of two epochs."""
    folder = tmp_path_factory.mktemp("whole") / "corpus"
    build(random_source(120), TOKENIZER, folder, BuildConfig(0.2, 16, 1500, num_workers=1))
    rows_of(folder)
    return folder


def rows_of(folder: Path) -> str:
    """Hash of all that a run reads of a corpus: the rows of two epochs, its tokens and its identity."""
    corpus = Corpus(folder, cache_bytes=400)
    corpus.check_tokenizer(TOKENIZER)
    digest = hashlib.sha256(Mixture.alone(corpus).fingerprint.encode())
    for name in ("train", "heldout"):
        split = corpus.split(name)
        digest.update(split.read(np.zeros(1, np.int64), np.array([split.num_tokens])).tobytes())
        for config in CONFIGS:
            rows = SequenceRows(config, split, TokenFacts.of(TOKENIZER), seed=0, directory=folder)
            counts = [bucket.rows_per_epoch for bucket in rows.buckets] or [rows.rows_per_epoch]
            for part in np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1]):
                for epoch in (0, 1):
                    features = rows.rows(np.full(len(part), epoch), part)
                    digest.update(b"".join(features[name].tobytes() for name in sorted(features)))
    return digest.hexdigest()


def attempt(folder: Path, expected: str, name: str, large: bool) -> str:
    """What comes of reading a corpus whose file ``name`` is damaged; the shards of a ``large`` one are checked as they
    are read."""
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(store, "DIGESTED_BYTES", 0)
        return outcome_of(folder, expected, name)


def outcome_of(folder: Path, expected: str, name: str) -> str:
    try:
        return "same" if rows_of(folder) == expected else "silent"
    except UserError as error:
        return "refused" if name in str(error) and "\n" not in str(error) else f"not named: {error}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"


def kind_of(path: Path) -> str:
    if path.parent.name.startswith("epoch-"):
        return "plan"
    if ".array_record-" in path.name:
        return "shard"
    kinds = {"dataset_info.json": "metadata", "features.json": "metadata", "lock": "unread"}
    return "index" if path.suffix == ".npy" else kinds.get(path.name, path.name)


def attack(corpus: Path, scratch: Path, count: int, rng: random.Random) -> collections.Counter[tuple[str, str]]:
    """(kind of file, outcome) -> how often, of ``count`` damages, each to a copy of its own."""
    expected, outcomes = rows_of(corpus), collections.Counter[tuple[str, str]]()
    for number, kind in enumerate(itertools.islice(itertools.cycle(KINDS), count)):
        folder = scratch / "corpus"
        shutil.copytree(corpus, folder)
        done = damage_one(folder, rng, among=lambda path, kind=kind: kind_of(path) == kind)  # type: ignore[misc]
        outcome = attempt(folder, expected, done.rpartition("/")[2].rpartition(" ")[2], large=number // 4 % 2 == 1)
        print(f"{done}: {outcome}")
        outcomes[kind, outcome.partition(":")[0]] += 1
        shutil.rmtree(folder)
    return outcomes


def check(outcomes: collections.Counter[tuple[str, str]], count: int) -> None:
    assert outcomes.total() == count
    for (kind, outcome), times in sorted(outcomes.items()):
        print(f"{kind:<14} {outcome:<8} {times}")
    found = {kind: {outcome for other, outcome in outcomes if other == kind} for kind, _ in outcomes}
    assert found.pop("shard") <= {"refused", "same"}  # a shard is padded
    assert found.pop("manifest.json") <= {"refused", "same"}  # a space and a line break may change places
    assert found.pop("plan") == {"same"}  # made anew
    assert set.union(*found.values()) == {"refused"}


def test_some_damages(corpus: Path, tmp_path: Path) -> None:
    """The short part."""
    check(attack(corpus, tmp_path, 24, generator("corpora, some")), 24)


@pytest.mark.trust
def test_damages(corpus: Path, tmp_path: Path) -> None:
    count = scaled(150)
    check(attack(corpus, tmp_path, count, generator("corpora")), count)


@pytest.mark.trust
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_in_the_middle_of_an_epoch(
    corpus: Path, tmp_path: Path, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, config = Path(shutil.copytree(corpus, tmp_path / "corpus")), RowsConfig(32, kind="a")
    shard = folder / "corpus-train.array_record-00001-of-00002"
    split = Corpus(folder, cache_bytes=100).split("train")
    rows = SequenceRows(config, split, TokenFacts.of(TOKENIZER), seed=0, directory=folder)
    phases, specs = Phases((Phase(500, 2, 32, "a"),)), {"a": config.batch_spec()}
    block = np.array([Corpus(folder).manifest["splits"]["train"]["shards"][0]["num_tokens"] + 16 * 20])
    flip(shard, shard.read_bytes().index(split.read(block, np.array([16])).astype("<u2").tobytes()))
    batches = iter(Loader(lambda *_: rows, phases, 0, specs, LoaderConfig(workers, prefetch_batches=1)))
    with pytest.raises(DamagedError, match=f"{shard.name} is damaged"):
        list(batches)
    assert "Traceback" not in capfd.readouterr().err


# ---- The real command ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe with a corpus that is there."""
    folder = tmp_path_factory.mktemp("inputs")
    config = toy.recipe(toy.write_text(folder / "text.txt", documents=200), export=False, examples=())
    config["phases"]["phase1"]["num_steps"] = 60
    config["training"] |= {"eval_every_steps": 60}
    recipe = toy.write_recipe(folder / "building.json", config)
    assert run(["vocab", f"--config={recipe}", f"--output={folder / 'vocab.txt'}"]) == 0
    made = [f"--config.vocab.path={folder / 'vocab.txt'}", f"--output={folder / 'corpus'}"]
    assert run(["corpus", f"--config={recipe}", *made, "--config.corpus.part_bytes=4000"]) == 0
    config["vocab"]["path"] = str(folder / "vocab.txt")
    return {"folder": folder, "config": config}


def pretrain(folder: Path, config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    recipe = toy.write_recipe(folder / "recipe.json", config)
    command = ["pretrain", f"--config={recipe}", f"--workdir={folder / 'run'}"]
    return subprocess.run(
        [sys.executable, "-m", "bert_jax", *command], capture_output=True, text=True, timeout=240, check=False
    )


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.fixture
def config(inputs: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A recipe whose corpus is a copy of its own."""
    shutil.copytree(inputs["folder"] / "corpus", tmp_path / "corpus")
    return inputs["config"] | {"corpus": {**inputs["config"]["corpus"], "path": str(tmp_path / "corpus")}}


FILES = ("corpus-train.array_record-00000-of-*", "heldout.sentence_offsets.npy", "manifest.json")


@pytest.mark.trust
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", FILES)
def test_the_command_ends_with_one_line(config: dict[str, Any], tmp_path: Path, name: str, workers: int) -> None:
    [path] = (tmp_path / "corpus").glob(name)
    flip(path, 200)
    done = pretrain(tmp_path, config | {"loader": {"num_workers": workers}})
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert path.name in error
    print(error)


@pytest.mark.trust
def test_the_command_makes_a_damaged_plan_anew(config: dict[str, Any], tmp_path: Path) -> None:
    def figures() -> list[dict[str, Any]]:
        lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        timed = ("time", "tokens_per_second", "step_seconds", "mfu", "input_wait_seconds")
        return [{name: value for name, value in line.items() if name not in timed} for line in lines]

    assert pretrain(tmp_path, config).returncode == 0
    expected = figures()
    plans = sorted((tmp_path / "corpus").glob("plans/*/epoch-00000/sequences"))
    for plan in plans:
        flip(plan, 400)
    shutil.rmtree(tmp_path / "run")
    done = pretrain(tmp_path, config)
    assert done.returncode == 0
    assert done.stderr.count("is damaged or of another run; it is made anew") == len(plans) == 2
    assert figures() == expected
