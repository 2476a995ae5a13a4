"""``sweep`` and ``ablate``: killed in any cell, told to end, on a full disk, with damaged files: the same table."""

from __future__ import annotations

import collections
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cluster.exit_codes import BAD_INPUT, DONE
from bert_jax.experiments.grid import CELL, RESULTS
from tests import hardships, toy
from tests.trust import damage, formats, fuzzing, verbs
from tests.trust.fuzzing import Inputs

pytestmark = pytest.mark.trust

DISK_BYTES = 64 * hardships.MIB


def arguments(verb: str, inputs: Inputs, folder: Path, workdir: Path) -> list[str]:
    """Return the arguments of a grid of several cells."""
    argv = [text for text in verbs.unchanged(verb, inputs, folder).argv if not text.startswith("--workdir=")]
    return [*argv, f"--workdir={workdir}"]


def command(argv: Sequence[str]) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "bert_jax", *argv]
    out = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(program, text=True, env=toy.environment(), **out)  # type: ignore[call-overload,no-any-return]


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=fuzzing.HANG_SECONDS)
    assert "Traceback" not in said, said[-3000:]
    return process.returncode, said


def table(workdir: Path) -> Any:
    """Return what the grid found, without the command that found it."""
    found = json.loads((workdir / "table.json").read_text())
    found.pop("command", None)
    return found


@pytest.fixture(scope="module", params=["sweep", "ablate"])
def whole(request: pytest.FixtureRequest, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a grid that nothing happened to; its name is the verb."""
    folder = tmp_path_factory.mktemp("grids") / request.param
    (folder / "inputs").mkdir(parents=True)
    code, said = end(command(arguments(request.param, inputs, folder / "inputs", folder / "run")))
    assert code == DONE, said
    return folder


def test_signals_in_any_cell(whole: Path, inputs: Inputs, tmp_path: Path) -> None:
    rng, ended = damage.generator(f"signals in {whole.name}"), collections.Counter[str]()
    argv = arguments(whole.name, inputs, whole / "inputs", tmp_path / "run")
    cells = [path.parent.name for path in (whole / "run").rglob(RESULTS)]
    for _ in range(damage.scaled(6)):
        process, cell = command(argv), rng.choice(cells)
        mark = tmp_path / "run" / cell / rng.choice(["", CELL, "run.json", "checkpoints", RESULTS])
        while process.poll() is None and not mark.exists():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(sent := rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        code, said = end(process)
        ended[f"{sent.name}: {code}"] += 1
        assert code != BAD_INPUT, said
    code, said = end(command(argv))
    assert code == DONE, said
    assert table(tmp_path / "run") == table(whole / "run")
    assert not list((tmp_path / "run").rglob("*.tmp"))
    print(f"{whole.name}: {dict(ended)}")


def test_damaged_files_of_cells(whole: Path, inputs: Inputs, tmp_path: Path) -> None:
    """The grid's own files, and those of the runs in its cells."""
    rng, ended = damage.generator(f"damages of {whole.name}"), collections.Counter[str]()
    of_grid = (CELL, RESULTS, "table.json", "table.md", "report.html", "picture.svg")
    for number in range(damage.scaled(16)):
        workdir = Path(shutil.copytree(whole / "run", tmp_path / str(number)))
        if number % 2:
            done = damage.damage_one(workdir, rng, among=lambda path: path.name in of_grid)
        else:
            path = rng.choice(sorted(path for path in workdir.rglob("*.json") if path.name in of_grid))
            path.write_bytes(formats.mutated(path.read_bytes(), rng))
            done = f"mutated {path.relative_to(workdir)}"
        code, said = end(command(arguments(whole.name, inputs, whole / "inputs", workdir)))
        ended[f"{done.split()[0]}: {code}"] += 1
        if code == DONE:
            assert table(workdir) == table(whole / "run"), done
        else:
            assert (code, said.count("error: ")) == (BAD_INPUT, 1), (done, said)
        shutil.rmtree(workdir)
    print(f"{whole.name}: {dict(ended)}")


def test_a_full_disk(whole: Path, inputs: Inputs, tmp_path: Path) -> None:
    rng, ended = damage.generator(f"full disk, {whole.name}"), collections.Counter[str]()
    size = sum(path.stat().st_size for path in (whole / "run").rglob("*") if path.is_file())
    with hardships.small_disk(tmp_path / "disk", DISK_BYTES):
        argv = arguments(whole.name, inputs, whole / "inputs", tmp_path / "disk" / "run")
        for _ in range(damage.scaled(3)):
            hardships.resize(tmp_path / "disk", rng.randrange(size // 2))
            code, said = end(command(argv))
            hardships.resize(tmp_path / "disk", DISK_BYTES)
            ended[str(code)] += 1
            assert code == DONE or "o space left on device" in said, said
        code, said = end(command(argv))
        assert code == DONE, said
        assert table(tmp_path / "disk" / "run") == table(whole / "run")
    print(f"{whole.name}: {dict(ended)}")
