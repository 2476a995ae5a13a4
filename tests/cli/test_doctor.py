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
    rates = '[{"bfloat16": 4e14, "float32": 4e14}, {"bfloat16": 4.59e14, "float32": null}]'
    answer = f"""print('noise'); print('["tpu", 4, "TPU v5", 34359738368]'); print('{rates}')"""
    monkeypatch.setattr(doctor, "_QUERY", answer)


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
    assert found["products"]["found"] == "bfloat16 400 TFLOP/s (87% of the data sheet), float32 400 TFLOP/s"


def test_kept_programs_are_counted(capsys: pytest.CaptureFixture[str], quick: None, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    assert examined(capsys)[1]["compiled"]["found"].startswith("none yet")
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "jit_step-1a-cache").write_bytes(b"12345")
    (tmp_path / "compiled" / "jit_step-1a-atime").touch()
    assert examined(capsys)[1]["compiled"]["found"] == f"1 programs, 5 B, in {tmp_path / 'compiled'}"


def test_a_card_that_jax_does_not_use_is_a_note(capsys, monkeypatch, tmp_path) -> None:
    """Beside it the devices that answer; a product that fails is one more note."""
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "Tesla T4, 535.1, 15360, 14000"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(doctor, "_QUERY", "print('[\"cpu\", 1, \"cpu\", null]'); raise MemoryError('no room')")
    code, found = examined(capsys)
    assert (code, found["nvidia"]["verdict"], found["products"]["verdict"]) == (0, "note", "note")
    assert found["nvidia"]["found"] == "Tesla T4 (13.67 GiB of 15.00 GiB in use); driver 535.1"
    assert found["nvidia"]["advice"].startswith("jax does not use it: CUDA_VISIBLE_DEVICES='' hides the card")
    assert found["products"]["found"] == "a large product fails: MemoryError: no room"
    full = """print('["gpu", 1, "NVIDIA H200", 1e11]', flush=True)
class XlaRuntimeError(RuntimeError): pass
error = XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\\nFree: 0")
error.add_note("For simplicity, JAX has removed its internal frames from the traceback of the following exception.")
raise error"""
    monkeypatch.setattr(doctor, "_QUERY", full)
    code, found = examined(capsys)
    assert (code, found["products"]["verdict"]) == (1, "bad")
    assert found["products"]["found"].endswith("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")
    assert run(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("verdict: training cannot start: products\n")
    slow = 'print(\'["gpu", 1, "Tesla T4", null]\'); print(\'[{"bfloat16": 4e12, "float32": 8e12}, {}]\')'
    monkeypatch.setattr(doctor, "_QUERY", slow)
    _, found = examined(capsys)
    assert found["nvidia"]["advice"].startswith("other programs hold the memory of Tesla T4")
    assert found["products"]["advice"] == "this card has no fast bfloat16: --config.model.dtype=float32"
    assert run(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("pretrain --config=modernbert_gpu --workdir=runs/gpu\n")


def test_platforms_that_are_not_there_are_one_line(capsys, monkeypatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    code, found = examined(capsys)
    assert code == 1
    assert found["devices"]["found"] == "jax fails (JAX_PLATFORMS=cuda): it finds none of these platforms"


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
