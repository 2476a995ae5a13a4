"""A full disk, and signals, while a command writes its output: it is whole or not there, and the same command mends.

The short parts in ``make test`` are tests/storage/test_files.py and test_signals.py of the single verbs.
"""

from __future__ import annotations

import collections
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.cluster.exit_codes import DONE, INTERRUPTED
from tests import hardships, toy
from tests.trust import damage, fuzzing, verbs
from tests.trust.fuzzing import Inputs

pytestmark = pytest.mark.trust

WRITERS = (
    *("predict", "evaluate", "prune", "features", "retrieve", "retrieve --squad", "export", "import", "grow", "trim"),
    "vocab",
)
DISK_BYTES = 64 * hardships.MIB


def tree(folder: Path) -> dict[str, bytes]:
    """Return the files below ``folder`` with their content; of those that name a time or a folder, the names alone."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    timed = ("README.md", "SHA256SUMS", "config.json", "run.json", "metadata", "COMMITTED")
    kept = {path: path.suffix in (".safetensors", ".txt", ".jsonl", ".parquet") or path.name == "out" for path in files}
    return {
        str(path.relative_to(folder)): path.read_bytes() if kept[path] and path.name not in timed else b""
        for path in files
        if "checkpoints" not in path.parts
    }


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk(name: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, ended = damage.generator(f"full disk, {name}"), collections.Counter[str]()
    (plain := tmp_path / "plain").mkdir()
    assert fuzzing.attempt(verbs.unchanged(name, inputs, plain), plain) == "done"
    wanted = tree(plain / "deep")
    size = sum(path.stat().st_size for path in (plain / "deep").rglob("*") if path.is_file())
    with hardships.small_disk(tmp_path / "disk", DISK_BYTES):
        for number in range(damage.scaled(6)):
            (folder := tmp_path / "disk" / str(number)).mkdir()
            command = verbs.unchanged(name, inputs, folder)
            (folder / "temporary").mkdir()
            monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
            hardships.resize(tmp_path / "disk", rng.randrange(size + 1))
            try:
                ended[fuzzing.attempt(command, folder)] += 1
            finally:
                hardships.resize(tmp_path / "disk", DISK_BYTES)
            if not list((folder / "deep").rglob("out*")):
                assert fuzzing.attempt(command, folder) == "done"
            assert tree(folder / "deep") == wanted
    print(f"{name}: {dict(ended)}")


@pytest.mark.parametrize("name", ["prune", "trim", "grow", "retrieve", "features"])
def test_signals(name: str, inputs: Inputs, tmp_path: Path) -> None:
    """At any moment, of a process of its own."""
    rng, ended = damage.generator(f"signals, {name}"), collections.Counter[str]()
    argv = [sys.executable, "-m", "bert_jax"]
    (plain := tmp_path / "plain").mkdir()
    command, begun = verbs.unchanged(name, inputs, plain), time.monotonic()
    subprocess.run([*argv, *command.argv], check=True, capture_output=True, env=toy.environment())
    wanted, seconds = tree(plain / "deep"), time.monotonic() - begun
    for number in range(damage.scaled(4)):
        (folder := tmp_path / str(number)).mkdir()
        command = verbs.unchanged(name, inputs, folder)
        sent = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        process = subprocess.Popen(
            [*argv, *command.argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=toy.environment()
        )
        time.sleep(rng.uniform(0.3, 1.1) * seconds)
        process.send_signal(sent)
        _, said = process.communicate(timeout=fuzzing.HANG_SECONDS)
        ended[f"{sent.name}: {process.returncode}"] += 1
        assert "Traceback" not in said, (sent, said[-2000:])
        assert process.returncode in (DONE, -sent, INTERRUPTED, 128 + sent), (sent, process.returncode, said)
        if (folder / "deep" / "out").exists() or (folder / "deep" / "out.parquet").exists():
            assert tree(folder / "deep") == wanted
        else:
            subprocess.run([*argv, *command.argv], check=True, capture_output=True, env=toy.environment())
            assert tree(folder / "deep") == wanted
    print(f"{name}: {dict(ended)}")
