"""``bert-jax doctor``: what this machine has, and that nothing keeps it from answering."""

from __future__ import annotations

import configparser
import json
import os
from importlib import metadata
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.machine import doctor

ROOT = Path(__file__).resolve().parents[2]
FOR_DEVELOPERS = {"test", "parity", "bench"}


def examined(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return (exit code, finding by name)."""
    code = run(["doctor", "--json", *flags])
    record = json.loads(capsys.readouterr().out)
    assert record["ready"] == (code == 0)
    return code, {finding["name"]: finding for finding in record["findings"]}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices answer at once."""
    monkeypatch.setattr(doctor, "_QUERY", "print('noise'); print('[\"tpu\", 4, \"TPU v5\", 34359738368]')")


def test_this_machine_can_train(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert run(["doctor"]) == 0
    said = capsys.readouterr()
    assert said.err == "asking jax for its devices, for at most 60 s\n"
    lines = said.out.splitlines()
    [devices] = [line for line in lines if line.split()[1] == "devices"]
    assert "x cpu, platform cpu (JAX_PLATFORMS=cpu); for plan: --topology=cpu:" in devices
    assert f"jax {metadata.version('jax')}, jaxlib {metadata.version('jaxlib')}, flax" in said.out
    assert lines[-2] == "verdict: ready"
    assert lines[-1].endswith("pretrain --config=quickstart --workdir=runs/quickstart")
    assert all(line.split()[0] in ("ok", "note") for line in lines[:-2])


def test_the_memory_of_devices_is_said(capsys: pytest.CaptureFixture[str], quick: None) -> None:
    code, found = examined(capsys)
    assert code == 0
    assert found["devices"]["found"].startswith("4 x TPU v5, platform tpu, 32.00 GiB each")


def test_devices_that_do_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process that asks is ended; everything else is said all the same."""
    asked = tmp_path / "pid"
    script = f"import os, time; open({str(asked)!r}, 'w').write(str(os.getpid())); time.sleep(900)"
    monkeypatch.setattr(doctor, "_QUERY", script)
    code, found = examined(capsys, "--device_seconds=2")
    assert code == 1
    assert found["devices"]["verdict"] == "bad"
    assert found["devices"]["found"].startswith("no answer in 2 s")
    assert "--device_seconds=300" in found["devices"]["advice"]
    assert found["disk"]["verdict"] != "bad"
    if asked.exists():  # on a busy machine it may be ended before it writes
        with pytest.raises(ProcessLookupError):
            os.kill(int(asked.read_text()), 0)


def test_jax_that_fails_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_QUERY", "raise RuntimeError('jaxlib is too old')")
    assert run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "jax fails" in said
    assert "RuntimeError: jaxlib is too old; mend that" in said
    assert "verdict: training cannot start: devices" in said
    assert "next:" not in said


def test_a_missing_package_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    there = metadata.version

    def version(name: str) -> str:
        if name in ("flax", "gcsfs", "libtpu"):
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "sentencepiece" else there(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    code, found = examined(capsys)
    assert code == 1
    assert "flax missing" in found["packages"]["found"]
    assert found["packages"]["advice"].endswith("flax, sentencepiece; pip install flax 'sentencepiece>=0.2.3'")
    assert (found["extra gcs"]["verdict"], found["extra gcs"]["advice"]) == ("note", "pip install gcsfs")
    assert (found["extra tpu"]["verdict"], found["extra tpu"]["advice"]) == ("note", "pip install 'jax[tpu]'")


def test_a_cache_that_cannot_be_written_is_a_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick: None
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "file" / "cache"))
    code, found = examined(capsys)
    assert (code, found["cache"]["verdict"]) == (0, "note")


def test_every_extra_is_shown() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    base = set(setup["options"]["install_requires"].split())
    extras = {name for name, needed in setup["options.extras_require"].items() if not set(needed.split()) <= base}
    assert set(doctor.EXTRAS) == extras - FOR_DEVELOPERS
