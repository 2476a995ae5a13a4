"""Mutated configs and input files: every command works, or says one line and leaves nothing behind."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.configuration import build
from bert_jax.models.encoders import bert
from bert_jax.objectives import mlm_nsp
from bert_jax.runs import pretraining
from tests import toy
from tests.tasks import toy_tasks
from tests.trust import damage, fuzzing

ORIGINAL = Path(__file__).resolve().parents[1] / "interchange" / "original"  # a checkpoint of TensorFlow
SQUAD = (
    '{"data": [{"title": "t", "paragraphs": [{"context": "the cat sees the river", "qas": [{"id": "1", "question":'
    ' "who?", "answers": [{"text": "cat", "answer_start": 4}], "is_impossible": false}]}]}]}'
)
CONLL = "-DOCSTART- -X- O\n\nthe DT O\ncat NN I-PER\n\nriver NN B-LOC\nhere RB O\n\n" * 3
RECIPE = """from ml_collections import ConfigDict
import json

def get_config(size: str = "32"):
    config = ConfigDict(json.loads(r'''{config}'''))
    config.model.hidden_size = int(size)
    return config
"""


PHASE = {"num_steps": 8, "batch_size": 8, "max_length": 32}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What every case starts from: a tiny run that has ended, and whole files of every format."""

    folder: Path
    pretrain: dict[str, Any]
    finetune: dict[str, Any]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("inputs")
    config = toy.recipe(toy.write_text(folder / "text.txt"), phases={"phase1": PHASE})
    recipe = toy.write_recipe(folder / "recipe.json", config)
    assert run(["pretrain", f"--config={recipe}", f"--workdir={folder / 'run'}"]) == 0
    config["vocab"]["path"] = str(folder / "run" / "vocab.txt")
    config["corpus"] = {"path": str(folder / "run" / "corpus")}
    toy_tasks.write_toy(folder, "classification", train=32, dev=16)
    finetune = toy_tasks.recipe("classification")
    finetune["vocab"]["path"] = config["vocab"]["path"]
    return Inputs(folder, whole(config), finetune)


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with every key that a component has, also those whose default stands."""
    tree = dataclasses.asdict(build(pretraining.PretrainingSettings, config, "config"))
    model = {f.name: f.default for f in dataclasses.fields(bert.Config) if f.name != "vocab_size"}
    objective = dataclasses.asdict(mlm_nsp.Config())
    return {**tree, "model": model | config["model"], "objective": objective | config["objective"]}


def config_values(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    config, what = fuzzing.mutated_config(inputs.pretrain, rng)
    recipe = fuzzing.write_json(folder / "recipe.json", config)
    new = folder / "new"
    return fuzzing.attempt(["pretrain", f"--config={recipe}", f"--workdir={new}"], what, new)


def overrides(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    recipe = fuzzing.write_json(folder / "recipe.json", inputs.pretrain)
    path = ".".join(rng.choice(sorted(fuzzing.leaves(inputs.pretrain))))
    flag = f"--config.{path}={rng.choice(fuzzing.VALUES)}"
    new = folder / "new"
    return fuzzing.attempt(["pretrain", f"--config={recipe}", f"--workdir={new}", flag], flag[:80], new)


def finetune_values(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    config, what = fuzzing.mutated_config(inputs.finetune, rng)
    recipe = fuzzing.write_json(folder / "recipe.json", config)
    new = folder / "new"
    argv = ["finetune", f"--config={recipe}", f"--data={inputs.folder}", f"--workdir={new}"]
    return fuzzing.attempt(argv, what, new)


def recipe_file(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    text = fuzzing.write_json(folder / "recipe.json", inputs.pretrain).read_text()
    path = folder / rng.choice(["recipe.json", "recipe.py"])
    content = (text if path.suffix == ".json" else RECIPE.replace("{config}", text)).encode()
    path.write_bytes(fuzzing.mutated_bytes(content, rng))
    return fuzzing.attempt(["pretrain", f"--config={path}", f"--workdir={folder / 'new'}"], path.name)


def vocabulary(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    path = folder / "vocab.txt"
    path.write_bytes(fuzzing.mutated_bytes((inputs.folder / "run" / "vocab.txt").read_bytes(), rng))
    return fuzzing.attempt(["tokenize", f"--vocab={path}", "the cat sees", "a dog"], "vocab.txt")


def examples(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    table = "text\tlabel\n" + "".join(f"the cat {n} sees\t{n % 2}\n" for n in range(12))
    lines = (inputs.folder / "train.jsonl").read_bytes()
    form, task, raw = rng.choice(
        [
            ("delimited", "classification", table.encode()),
            ("jsonl", "classification", lines),
            ("conll", "tagging", CONLL.encode()),
            ("squad_json", "span_qa", SQUAD.encode()),
        ]
    )
    for name in ("train", "dev"):
        (folder / name).write_bytes(fuzzing.mutated_bytes(raw, rng) if rng.random() < 0.7 else raw)
    config = inputs.finetune | {
        "task": {"name": task},
        "data": {"format": form, "splits": {"train": "train", "dev": "dev"}, "overlap": "warn"},
    }
    if form == "conll":
        config["data"] |= {"columns": {"words": 0, "tags": 2}}
    recipe = fuzzing.write_json(folder / "recipe.json", config)
    argv = ["finetune", f"--config={recipe}", f"--data={folder}", f"--workdir={folder / 'new'}"]
    return fuzzing.attempt(argv, form, folder / "new")


def model_folder(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    """A Hugging Face directory, or a checkpoint of TensorFlow, one file of which is mutated."""
    source = rng.choice([inputs.folder / "run" / "hugging_face", ORIGINAL])
    copied = folder / "model"
    shutil.copytree(source, copied)
    path = rng.choice(sorted(p for p in copied.iterdir() if p.is_file() and p.suffix != ".md"))
    path.write_bytes(fuzzing.mutated_bytes(path.read_bytes(), rng))
    cased = ["--lowercase=true"] if source == ORIGINAL else []
    argv = ["import", f"--input={copied}", f"--workdir={folder / 'new'}", *cased]
    return fuzzing.attempt(argv, f"{source.name}/{path.name}", folder / "new")


def run_file(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    """A file that a run keeps about itself, and each command that reads it."""
    copied = folder / "run"
    shutil.copytree(inputs.folder / "run", copied)
    names = ["run.json", "status.json", "metrics.jsonl", "baselines.json", "examples.json", "exported.json"]
    path = copied / rng.choice([name for name in names if (copied / name).exists()])
    path.write_bytes(fuzzing.mutated_bytes(path.read_bytes(), rng))
    verb = rng.choice(["status", "report", "pretrain"])
    flags = [f"--config={fuzzing.write_json(folder / 'recipe.json', inputs.pretrain)}"] if verb == "pretrain" else []
    return fuzzing.attempt([verb, f"--workdir={copied}", *flags], f"{verb} {path.name}")


def text(inputs: Inputs, rng: random.Random, folder: Path) -> str:
    """Text to learn a vocabulary from, in several forms."""
    source, name, raw = rng.choice(
        [
            ("text_files", "a.txt", (inputs.folder / "text.txt").read_bytes()),
            ("jsonl", "a.jsonl", b'{"text": "The cat sees it. A dog likes bread."}\n' * 9),
            ("mediawiki", "a.xml", WIKI.encode()),
        ]
    )
    (folder / name).write_bytes(fuzzing.mutated_bytes(raw, rng))
    argv = ["vocab", "--config=bert_base", f"--config.corpus.source={source}", "--config.vocab.size=80"]
    argv += [f"--config.corpus.options.paths={folder / name}", f"--output={folder / 'new.txt'}"]
    return fuzzing.attempt(argv, name, folder / "new.txt")


WIKI = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
<page><title>Cat</title><ns>0</ns><id>1</id><revision><id>2</id><text>'''Cats''' see [[river|rivers]]. They sleep.
</text></revision></page></mediawiki>
"""
CASES: dict[str, tuple[Callable[[Inputs, random.Random, Path], str], int]] = {  # -> how many of 5,000
    "config_values": (config_values, 1500),
    "overrides": (overrides, 500),
    "finetune_values": (finetune_values, 800),
    "recipe_file": (recipe_file, 300),
    "vocabulary": (vocabulary, 500),
    "examples": (examples, 500),
    "model_folder": (model_folder, 400),
    "run_file": (run_file, 300),
    "text": (text, 200),
}


def fuzz(name: str, count: int, rng: random.Random, inputs: Inputs, tmp_path: Path) -> None:
    case, _ = CASES[name]
    ended: collections.Counter[str] = collections.Counter()
    wrong = []
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        here = sorted(os.listdir())
        try:
            ended[case(inputs, rng, folder)] += 1
            assert sorted(os.listdir()) == here, f"case {number} left {sorted(os.listdir())} where it ran"
            assert not list(folder.rglob("*.tmp")), f"case {number} left {list(folder.rglob('*.tmp'))}"
        except AssertionError as error:
            wrong.append(str(error))
        shutil.rmtree(folder)
    print(f"{name}: {count} cases: {dict(ended)}")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize("name", CASES)
def test_a_few(name: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzing.stop_before_training(monkeypatch)
    monkeypatch.chdir(tmp_path_of(tmp_path))
    fuzz(name, 8, random.Random(f"a few/{name}"), inputs, tmp_path)


def tmp_path_of(tmp_path: Path) -> Path:
    """Return a folder to run in that stays empty."""
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


@pytest.mark.trust
@pytest.mark.parametrize("name", CASES)
def test_five_thousand(name: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzing.stop_before_training(monkeypatch)
    monkeypatch.chdir(tmp_path_of(tmp_path))
    fuzz(name, damage.scaled(CASES[name][1]), damage.generator(f"fuzz {name}"), inputs, tmp_path)


@pytest.mark.trust
def test_a_hundred_through_the_real_command(inputs: Inputs, tmp_path: Path) -> None:
    rng = damage.generator("fuzz of the real command")
    for number in range(damage.scaled(100)):
        folder = tmp_path / str(number)
        folder.mkdir()
        config, what = fuzzing.mutated_config(inputs.pretrain, rng)
        recipe = fuzzing.write_json(folder / "recipe.json", config)
        argv = ["pretrain", f"--config={recipe}", f"--workdir={folder / 'new'}"]
        done = subprocess.run(
            fuzzing.fresh(argv), capture_output=True, text=True, errors="replace", check=False, timeout=300
        )
        assert done.returncode in fuzzing.CODES, (what, done.returncode, done.stderr[-1500:])
        assert "Traceback" not in done.stderr, (what, done.stderr[-1500:])
        if done.returncode:
            assert done.stderr.strip().splitlines()[-1].startswith("error: "), (what, done.stderr[-500:])
            assert not (folder / "new").exists(), (what, sorted((folder / "new").iterdir()))
