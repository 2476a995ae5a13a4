"""The commands of paper.md run as they stand, at a tenth of their steps, with one seed and three values of a list."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from bert_jax.cli import main
from bert_jax.recipes import recipes
from tests import toy
from tests.docs import pages

PAGE = Path(__file__).with_name("paper.md")
SHARED = pages.ROOT.parent / "shared" / "data"
COMMANDS = {
    workdir: words
    for words in pages.commands(PAGE.read_text(encoding="utf-8"))
    for workdir in (word.removeprefix("--workdir=") for word in words if word.startswith("--workdir="))
}


def test_equal_flops_are_equal() -> None:
    sizes = recipes.load("sizes:L2_H64").phases, recipes.load("sizes:L2_H64_flops").phases
    steps = [sum(phase.num_steps for phase in phases.values()) for phases in sizes]
    assert steps == [1200, 7530]  # 6.27 times: 12 layers * width^2 and 0.15 of a vocabulary of 4,096 a token


def test_the_page_names_every_run_once() -> None:
    assert len(COMMANDS) == len(re.findall(r"^ +bert-jax ", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page calls DATA, ZH and PROSE."""
    sources = ("conll2003_ner", "glue", "zh_chnsenticorp", "zh_modern_prose")
    if missing := [name for name in sources if not (SHARED / name).exists()]:
        pytest.skip(f"no ../shared/data/{', '.join(missing)}")
    root = tmp_path_factory.mktemp("paper")
    for name, of in (("DATA", "conll2003_ner"), ("ZH", "zh_chnsenticorp")):
        (root / name).mkdir()
        for file in (SHARED / of).glob("*.xz"):
            (root / name / file.name).write_bytes(file.read_bytes())
    for name in ("SST-2", "STS-B"):
        (root / "DATA" / name).mkdir()
        for file in (SHARED / "glue" / name).glob("*.tsv*"):
            (root / "DATA" / name / file.name).write_bytes(file.read_bytes())
    with tarfile.open(SHARED / "zh_modern_prose" / "zh_modern_prose.tar.xz") as archive:
        texts = [member for member in archive.getmembers() if member.name.endswith("target.txt")][:200]
        (root / "PROSE").mkdir()
        for i, member in enumerate(texts):
            (root / "PROSE" / f"{i}.txt").write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
    return root


def tenth(words: list[str]) -> list[str]:
    """Return a command with a tenth of its steps and epochs, one seed, and at most three values of each list."""

    def shorter(word: str) -> str:
        if word.startswith("--finetune="):
            return re.sub(r"--epochs=([\d.]+)", lambda match: f"--epochs={float(match[1]) / 10}", word)
        flag, _, value = word.partition("=")
        if flag == "--epochs":
            return f"{flag}={float(value) / 10}"
        if flag == "--finetune_steps":
            return f"{flag}=" + ",".join(str(int(step) // 10) for step in value.split(",")[:3])
        if flag in ("--variants", "--vary"):
            key, equals, values = value.rpartition("=")
            return f"{flag}={key}{equals}" + ",".join(values.split(",")[:3])
        return f"{flag}={int(value) // 10}" if re.search(r"[-_]steps$", flag) else word

    typed, short = {word.partition("=")[0] for word in words}, [shorter(word) for word in words]
    if words[0] == "sweep":
        return [*short, "--seeds=0"]
    config = recipes.load(next(word.removeprefix("--config=") for word in words if word.startswith("--config=")))
    steps = {f"--config.phases.{name}.num_steps": phase.num_steps // 10 for name, phase in config.phases.items()}
    steps |= {"--config.schedule.warmup_steps": 10, "--config.training.eval_every_steps": 60}
    steps |= {"--config.training.eval_rows": 128, "--config.checkpoints.every_steps": 20}
    more = [f"{flag}={value}" for flag, value in steps.items() if flag not in typed]
    return [*short, *more, *(["--seeds=0"] if words[0] == "ablate" else [])]


@pytest.mark.heavy
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("workdir", COMMANDS)
def test_a_command_runs(
    workdir: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = tenth(COMMANDS[workdir])
    for init in (word.removeprefix("--init=") for word in words if word.startswith("--init=")):
        if not Path(init).exists():  # this test runs alone
            steps = ["--config.phases.phase1.num_steps=60", "--config.phases.phase2.num_steps=30"]
            steps += ["--config.schedule.warmup_steps=10", "--config.model.max_length=128"]
            assert main.run(["pretrain", "--config=sizes", *steps, f"--workdir={init}"]) == 0
    assert main.run(words) == 0
    if words[0] == "pretrain":
        return
    said = capsys.readouterr().out
    assert re.search(r"runs: .* of them done already", said)
    assert main.run(words) == 0
    assert "about" not in capsys.readouterr().out.splitlines()[0], "all is done, and nothing is left"
    table, picture = (Path(workdir) / name for name in ("table.json", "picture.svg"))
    assert "svg" in picture.read_text()
    assert json.loads(table.read_text())["command"].startswith("bert-jax ")


@pytest.mark.heavy
def test_a_kill_in_the_middle_of_a_grid_repeats_nothing_that_was_done(folder: Path) -> None:
    words = [*tenth(COMMANDS["runs/clm"]), "--seeds=0", "--workdir=runs/killed"]
    begin = [sys.executable, "-m", "bert_jax", *words]
    root, log = folder / "runs" / "killed", folder / "killed.log"
    with log.open("w") as out:
        process = subprocess.Popen(begin, cwd=folder, stdout=out, stderr=out, env=toy.environment())
        deadline = time.monotonic() + 900
        while not (root / "clm_mlm-seed0" / "checkpoints" / "20").exists() and process.poll() is None:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (root / "mlm-seed0" / "finished.json").exists(), log.read_text()
    done = {path: path.stat().st_mtime_ns for path in (root / "mlm-seed0").rglob("*") if path.is_file()}
    begun = (root / "clm_mlm-seed0" / "metrics.jsonl").read_text()
    subprocess.run(begin, cwd=folder, check=True, capture_output=True, env=toy.environment())
    assert done.items() <= {path: path.stat().st_mtime_ns for path in (root / "mlm-seed0").rglob("*")}.items()
    steps = [json.loads(line) for line in (root / "clm_mlm-seed0" / "metrics.jsonl").read_text().splitlines()]
    trained = [record["step"] for record in steps if record["split"] == "train"]
    assert trained == sorted(set(trained)), begun
