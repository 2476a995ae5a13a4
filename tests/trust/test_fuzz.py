"""Mutated configs and input files: every command works, or says one line and leaves nothing behind."""

from __future__ import annotations

import argparse
import collections
import importlib
import os
import random
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bert_jax.cli import main
from bert_jax.cli.main import run
from tests.trust import damage, formats, fuzzing, verbs
from tests.trust.fuzzing import Command, Inputs

ORIGINAL = Path(__file__).resolve().parents[1] / "interchange" / "original"  # a checkpoint of TensorFlow


def config_values(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    config, what = fuzzing.mutated_config(inputs.pretrain, rng)
    recipe = fuzzing.write_json(folder / "recipe.json", config)
    return Command(["pretrain", f"--config={recipe}", f"--workdir={folder / 'new'}"], what)


def overrides(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    recipe = fuzzing.write_json(folder / "recipe.json", inputs.pretrain)
    path = ".".join(rng.choice(sorted(fuzzing.leaves(inputs.pretrain))))
    flag = f"--config.{path}={rng.choice(fuzzing.VALUES)}"
    return Command(["pretrain", f"--config={recipe}", f"--workdir={folder / 'new'}", flag], flag[:80])


def finetune_values(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    config, what = fuzzing.mutated_config(inputs.finetune, rng)
    recipe = fuzzing.write_json(folder / "recipe.json", config)
    return Command(["finetune", f"--config={recipe}", f"--data={inputs.folder}", f"--workdir={folder / 'new'}"], what)


def recipe_file(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    text = fuzzing.write_json(folder / "recipe.json", inputs.pretrain).read_text()
    path = folder / rng.choice(["recipe.json", "recipe.py"])
    content = (text if path.suffix == ".json" else formats.RECIPE.replace("{config}", text)).encode()
    path.write_bytes(fuzzing.mutated_bytes(content, rng))
    return Command(["pretrain", f"--config={path}", f"--workdir={folder / 'new'}"], path.name)


def hugging_face(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    return model_folder(inputs.run / "hugging_face", rng, folder)


def original(_: Inputs, rng: random.Random, folder: Path) -> Command:
    return model_folder(ORIGINAL, rng, folder)


def model_folder(source: Path, rng: random.Random, folder: Path) -> Command:
    """Return the import of a model's folder, one file of which is mutated."""
    copied = folder / "model"
    shutil.copytree(source, copied)
    path = rng.choice(sorted(p for p in copied.iterdir() if p.is_file() and p.suffix != ".md"))
    path.write_bytes(fuzzing.mutated_bytes(path.read_bytes(), rng))
    cased = ["--lowercase=true"] if source == ORIGINAL else []
    argv = ["import", f"--input={copied}", f"--workdir={folder / 'new'}", *cased]
    return Command(argv, f"{source.name}/{path.name}")


def run_file(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    """A file that a run keeps about itself, and each command that reads it."""
    copied = folder / "run"
    shutil.copytree(inputs.folder / "run", copied)
    kept = "run status metrics baselines examples exported profile"
    names = [f"{name}.json{'l' * (name == 'metrics')}" for name in kept.split()]
    path = copied / rng.choice([name for name in names if (copied / name).exists()])
    path.write_bytes(fuzzing.mutated_bytes(path.read_bytes(), rng))
    verb = rng.choice(["status", "report", "pretrain"])
    flags = [f"--config={fuzzing.write_json(folder / 'recipe.json', inputs.pretrain)}"] if verb == "pretrain" else []
    return Command([verb, f"--workdir={copied}", *flags], f"{verb} {path.name}")


def special_file(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    """A pipe, a device, a folder or a link in the place of a file of a model, a corpus or a run."""
    recipe = fuzzing.write_json(folder / "recipe.json", inputs.pretrain)
    finetune = fuzzing.write_json(folder / "finetune.json", inputs.finetune)
    source, *verb = rng.choice(
        [
            (inputs.run / "hugging_face", "import", "--input={}", f"--workdir={folder / 'new'}"),
            (
                inputs.run / "hugging_face",
                "retrieve",
                "--workdir={}",
                f"--corpus={inputs.folder / 'text.txt'}",
                "--query=a",
            ),
            (ORIGINAL, "import", "--input={}", f"--workdir={folder / 'new'}", "--lowercase=true"),
            (inputs.run, "fill-mask", "--workdir={}", "the [MASK]"),
            (inputs.run, "export", "--workdir={}", f"--output={folder / 'new'}"),
            (inputs.run, "checkpoint", "verify", "--workdir={}"),
            (inputs.run, "inspect", "--corpus={}/corpus"),
            (inputs.run, "report", "--workdir={}"),
            (inputs.run, "pretrain", f"--config={recipe}", f"--workdir={folder / 'new'}", "--init={}"),
            (inputs.run, "pretrain", f"--config={recipe}", "--workdir={}"),
            (inputs.tuned, "predict", "--workdir={}", "a film"),
            (inputs.tuned, "finetune", f"--config={finetune}", f"--data={inputs.folder}", "--workdir={}"),
            (inputs.narrow, "grow", "--init={}", "--size=tiny", f"--output={folder / 'new'}"),
        ]
    )
    shutil.copytree(source, copied := folder / "copied")
    path = rng.choice(sorted(path for path in copied.rglob("*") if path.is_file()))
    path.unlink()
    kind = rng.choice(["pipe", "device", "folder", "dangling link", "link to itself", "socket"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.symlink_to({"device": "/dev/zero", "dangling link": "nowhere", "link to itself": path.name}[kind])
    argv = [text.replace("{}", str(copied)) for text in verb]
    finds = verb[0] in ("checkpoint", "inspect")
    return Command(argv, f"{verb[0]} with a {kind} for {path.relative_to(copied)}", finds)


Case = Callable[[Inputs, random.Random, Path], Command]
CASES: dict[str, tuple[Case, int]] = {  # -> how many of 5,000
    "config_values": (config_values, 700),
    "overrides": (overrides, 300),
    "finetune_values": (finetune_values, 400),
    "recipe_file": (recipe_file, 300),
    "vocabulary": (formats.vocabulary, 400),
    "examples": (formats.examples, 600),
    "hugging_face": (hugging_face, 200),
    "original": (original, 200),
    "run_file": (run_file, 300),
    "text": (formats.text, 500),
    "lexicon": (formats.lexicon, 100),
    "readers": (verbs.one_of(list(verbs.READERS)), 300),
    "encoders": (verbs.one_of(list(verbs.ENCODERS)), 120),
    "tuned": (verbs.one_of(list(verbs.TUNED)), 80),
    "runs": (verbs.one_of([name for name in verbs.RUNS if name not in ("plan", "doctor")]), 250),
    "special_file": (special_file, 250),
}
# Others: 8. None of what trains for too long, nor of files that differ from machine to machine (times, hosts, weights).
FEW = {
    "text": 4,
    "lexicon": 4,
    "readers": 4,
    "encoders": 2,
    "tuned": 0,
    "run_file": 0,
    "hugging_face": 0,
    "runs": 0,
    "special_file": 0,
}


def fuzz(name: str, count: int, rng: random.Random, inputs: Inputs, tmp_path: Path) -> None:
    case, _ = CASES[name]
    ended: collections.Counter[str] = collections.Counter()
    wrong = []
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = case(inputs, rng, folder)
        try:
            ended[fuzzing.attempt(command, folder)] += 1
            named = {text.partition("=")[2] for text in command.argv}  # such as "7", where --output=7 was written
            assert not set(os.listdir()) - named, f"case {number} left {sorted(os.listdir())} where it ran"
            assert not list(folder.rglob("*.tmp")), f"case {number} left {list(folder.rglob('*.tmp'))}"
        except AssertionError as error:
            wrong.append(str(error))
        for path in (folder, *Path().iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(f"{name}: {count} cases: {dict(ended)}")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize("name", [name for name in CASES if FEW.get(name, 8)])
def test_a_few(name: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzing.stop_before_training(monkeypatch)
    fuzz(name, FEW.get(name, 8), random.Random(f"a few/{name}"), inputs, tmp_path)


@pytest.mark.trust
@pytest.mark.parametrize("name", CASES)
def test_five_thousand(name: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(count for _, count in CASES.values()) == 5000
    _ = inputs.tuned if name in ("tuned", "special_file") else inputs.run  # trained before training is taken out
    fuzzing.stop_before_training(monkeypatch)
    fuzz(name, damage.scaled(CASES[name][1]), damage.generator(f"fuzz {name}"), inputs, tmp_path)


SLOW = ("predict", "evaluate", "prune", "preflight", "ablate")  # have more to do before they come to their paths


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.trust if name in SLOW else ()) for name in verbs.ALL]
)
def test_a_path_that_is_a_pipe_or_a_device(
    name: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, or left as it is: nothing is read from it, and nothing written in its place."""
    _ = inputs.tuned if name in verbs.TUNED else inputs.run
    fuzzing.stop_before_training(monkeypatch)
    monkeypatch.setattr(fuzzing, "HANG_SECONDS", 120)
    for flag in verbs.ALL[name].paths.split():
        for kind in ("pipe", "device"):
            (folder := tmp_path / f"{flag}-{kind}").mkdir()
            command = verbs.unchanged(name, inputs, folder)
            [before] = [text for text in command.argv if text.startswith(f"--{flag}=")] or [""]
            path = tmp_path / f"{flag}-{kind}{Path(before.partition('=')[2]).suffix}"
            path = path.with_name(f"strange-{path.name}")
            os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
            argv = [*(text for text in command.argv if text != before), f"--{flag}={path}"]
            if flag == "verify":
                argv = ["corpus", f"--verify={path}"]
            ended = fuzzing.attempt(
                Command(argv, f"{name} --{flag} is a {kind}", command.finds or name == "preflight"), folder
            )
            assert ended == "refused" or command.finds, f"{name} --{flag}: a {kind} is {ended}"
            assert path.is_fifo() or path.is_symlink()


def test_every_verb_and_path_is_tried() -> None:
    """``verbs.ALL`` has each verb, and each of its flags that is called like a path of another verb."""
    paths = {path for verb in verbs.ALL.values() for path in verb.paths.split()}
    for verb, module in main.verbs().items():
        parser = argparse.ArgumentParser()
        importlib.import_module(f"bert_jax.cli.{module}").add_arguments(parser)
        flags = {name[2:] for action in parser._actions for name in action.option_strings if name.startswith("--")}
        own = {flag for name, one in verbs.ALL.items() if name.split()[0] == verb for flag in one.paths.split()}
        assert own == flags & paths, verb


@pytest.mark.trust
def test_what_is_mutated_works_before(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each format, and each verb, as no mutation has touched it: else every refusal would be of something else."""
    makers: list[Callable[[Path], Command]] = [
        *(lambda folder, s=sample: formats.tuning(s, inputs, folder, bytes, {}) for sample in formats.SAMPLES),
        *(
            lambda folder, n=name, v=verb: formats.reading(n, v, inputs, folder, folder / "new")
            for name in formats.sources(inputs)
            for verb in ("vocab", "corpus", "pretrain")
        ),
        *(
            lambda folder, n=name, v=verb: formats.splitting(n, v, inputs, folder, bytes)
            for name in inputs.vocabularies
            for verb in ("tokenize", "pretrain")
        ),
        lambda folder: formats.building_with(formats.LEXICON, inputs, folder),
        *(lambda folder, n=name: verbs.unchanged(n, inputs, folder) for name in verbs.ALL),
    ]
    _ = inputs.tuned  # trained before training is taken out
    fuzzing.stop_before_training(monkeypatch)
    refused = []
    for number, make in enumerate(makers):
        (folder := tmp_path / str(number)).mkdir()
        command = make(folder)
        if fuzzing.attempt(command, folder) == "refused":
            capsys.readouterr()
            run(command.argv)
            refused.append(f"{command.what}: {capsys.readouterr().err}")
        shutil.rmtree(folder)
    assert not refused, "\n".join(refused)


@pytest.mark.trust
def test_fifty_runs_through_the_real_command(inputs: Inputs, tmp_path: Path) -> None:
    rng = damage.generator("fuzz of the real command")
    really([config_values], damage.scaled(50), rng, inputs, tmp_path)


@pytest.mark.trust
def test_fifty_other_verbs_through_the_real_command(inputs: Inputs, tmp_path: Path) -> None:
    """Every verb in turn: its flags, and the files that it reads."""
    rng = damage.generator("fuzz of the other real commands")
    cases = [
        *(verbs.one_of([name]) for name in verbs.ALL),
        formats.examples,
        hugging_face,
        original,
        run_file,
        formats.text,
    ]
    really(rng.sample(cases, len(cases)), damage.scaled(50), rng, inputs, tmp_path)


def really(cases: Sequence[Case], count: int, rng: random.Random, inputs: Inputs, tmp_path: Path) -> None:
    """Run ``count`` commands, of each of the ``cases`` in turn, in processes of their own."""
    ended: collections.Counter[str] = collections.Counter()
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = cases[number % len(cases)](inputs, rng, folder)
        while not command.is_for_a_process:
            command = cases[number % len(cases)](inputs, rng, folder)
        ended[fuzzing.attempt_in_a_process(command, folder)] += 1
    print(f"{count} real commands: {dict(ended)}")
