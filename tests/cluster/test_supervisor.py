"""``--restarts``: what is started again, and what is not; stand-ins for runs.

``tests/training/test_resume.py`` kills a run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cluster import supervisor
from bert_jax.cluster.exit_codes import BAD_INPUT, DONE, INTERRUPTED, PEER_LOST
from bert_jax.cluster.signals import TOLD_TO_END


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of ``bert-jax``: ends with the codes in ``codes``, one after the other."""
    stand_in = tmp_path / "bert_jax"
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text("")
    (stand_in / "__main__.py").write_text(
        "import pathlib, sys\n"
        f"path = pathlib.Path({str(tmp_path / 'codes')!r})\n"
        "first, *rest = path.read_text().split()\n"
        "path.write_text(' '.join(rest))\n"
        "sys.exit(int(first))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *TOLD_TO_END)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    yield tmp_path / "codes"
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("codes", "code", "left"),
    [
        ("1 76 75 0 0", DONE, "0"),
        ("76 2 0", BAD_INPUT, "0"),
        ("1 1 1 76 0", PEER_LOST, "0"),  # three restarts, no more
        ("0 1", DONE, "1"),
        ("75 75 1 75 75 76 75 0", DONE, ""),  # ended on request is not a crash
    ],
)
def test_what_is_started_again(
    counted: Path, capfd: pytest.CaptureFixture[str], codes: str, code: int, left: str
) -> None:
    counted.write_text(codes)
    assert supervisor.supervise(["pretrain"], 3, wait_seconds=0) == code
    assert counted.read_text() == left
    assert ("restart 1 of 3" in capfd.readouterr().err) == (codes != "0 1")


def test_a_signal_while_it_starts_one_is_passed_on(counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (counted.parent / "bert_jax" / "__main__.py").write_text("import time; time.sleep(60)")
    popen = subprocess.Popen

    def signalled_meanwhile(*args: Any, **kwargs: Any) -> Any:
        child = popen(*args, **kwargs)
        signal.raise_signal(signal.SIGTERM)
        return child

    monkeypatch.setattr(subprocess, "Popen", signalled_meanwhile)
    begun = time.monotonic()
    assert supervisor.supervise(["pretrain"], 3, wait_seconds=0) == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 50


def test_ctrl_c_is_passed_on_as_sigterm_once_and_nothing_is_started_again(
    counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal sends Ctrl-C to the run as well, which a second one would end at once."""
    (counted.parent / "bert_jax" / "__main__.py").write_text(
        "import pathlib, signal, sys, time\n"
        f"path = pathlib.Path({str(counted)!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(1))\n"
        "path.write_text('heard')\n"
        "time.sleep(60)\n"
    )
    popen = subprocess.Popen

    def interrupted_later(*args: Any, **kwargs: Any) -> Any:
        child = popen(*args, **kwargs)
        while not counted.exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupted_later)
    assert supervisor.supervise(["pretrain"], 3, wait_seconds=60) == INTERRUPTED


def test_ctrl_c_while_it_waits_to_start_one_again(counted: Path) -> None:
    counted.write_text("1 0")
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    assert supervisor.supervise(["pretrain"], 3, wait_seconds=60) == INTERRUPTED
    assert time.monotonic() - begun < 50
    assert counted.read_text() == "0"
