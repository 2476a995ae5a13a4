"""An NVIDIA card that JAX does not use is said in one line: which card, why, and what to do."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from bert_jax.errors import UserError
from bert_jax.training import cards

PAGE = "| NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: {cuda}     |"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a program nvidia-smi on PATH, and into a folder the packages that are installed beside ours."""
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cards, "_FILES", (str(tmp_path / "nvidia0"),))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))

    def make(
        row: str = "NVIDIA H100 80GB HBM3, {driver}, 81559, 512", driver: str = "570.86.15", cuda: str = "12.8", code=0
    ) -> None:
        program = tmp_path / "nvidia-smi"
        page, row = PAGE.format(driver=driver, cuda=cuda), row.format(driver=driver)
        program.write_text(f'#!/bin/sh\ncase "$1" in --query*) echo "{row}";; *) echo "{page}";; esac\nexit {code}\n')
        program.chmod(0o755)

    return make


def install(folder: Path, name: str, *needs: str) -> None:
    found = folder / "packages" / f"{name.replace('-', '_')}-1.0.dist-info"
    found.mkdir(parents=True)
    lines = "".join(f"Requires-Dist: {need}\n" for need in needs)
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")


def why() -> str:
    driver = cards.find_driver()
    assert driver is not None
    return cards.why_unused(driver)


def test_a_machine_without_a_card_says_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cards, "_FILES", (str(tmp_path / "nvidia0"),))
    assert cards.find_driver() is None
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    cards.say_what_is_unused()
    assert capsys.readouterr().err == ""
    (tmp_path / "nvidia0").touch()
    assert "nvidia-smi is not there" in str(cards.find_driver())


def test_the_card_its_memory_and_its_driver_are_named(machine):
    machine()
    said = "NVIDIA H100 80GB HBM3 (512.00 MiB of 79.65 GiB in use); driver 570.86.15 for CUDA up to 12.8"
    assert str(cards.find_driver()) == said
    machine("NVIDIA GB10, {driver}, [N/A], [N/A]")
    assert str(cards.find_driver()) == "NVIDIA GB10; driver 570.86.15 for CUDA up to 12.8"
    machine("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9)
    assert str(cards.find_driver()).startswith("nvidia-smi fails: NVIDIA-SMI has failed because it couldn't")
    assert "the driver does not answer" in why()


def test_each_reason_is_found(machine, tmp_path, monkeypatch):
    """From the settings of the user to the memory of the card; each reason is removed before the next is looked for."""
    machine(driver="470.82.01", cuda="11.4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert why() == "JAX_PLATFORMS=cpu leaves the card out; unset it to use the card"
    monkeypatch.delenv("JAX_PLATFORMS")
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert why() == f"CUDA_VISIBLE_DEVICES={hidden!r} hides the card; unset it to use the card"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(cards, "_PLUGINS", ("jax-cuda12-made-up", "jax-cuda12-plugin"))
    assert why().startswith("JAX's CUDA plugin is not installed; pip install 'jax[cuda12]'")
    install(tmp_path, "jax-cuda12-plugin", 'nvidia-made-up-cu12>=12; extra == "with-cuda"')
    assert why() == "the driver is too old: jax-cuda12-plugin needs driver 525 or newer; update the driver"
    machine("NVIDIA H100 80GB HBM3, {driver}, 81559, 80000")
    assert why().startswith("CUDA libraries are missing: nvidia-made-up-cu12; pip install")
    install(tmp_path, "nvidia-made-up-cu12")
    assert why().startswith("the driver's library libcuda.so.1 is not found")
    monkeypatch.setattr(cards.ctypes, "CDLL", lambda name: None)
    assert why().startswith("the driver shows no device file")
    (tmp_path / "nvidia0").touch()
    assert why().startswith("other programs hold the memory of NVIDIA H100 80GB HBM3 (78.12 GiB of 79.65 GiB in use)")
    machine()
    assert "TF_CPP_MIN_LOG_LEVEL=0" in why()


def test_a_run_says_it_first(machine, monkeypatch, capsys):
    machine()
    cards.say_what_is_unused()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("on the CPU, although this machine has NVIDIA H100 80GB HBM3 (512.00 MiB of")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # the user's choice needs no word
    cards.say_what_is_unused()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cards.say_what_is_unused()
    assert capsys.readouterr().err == ""


def test_memory_that_others_hold_is_said_before_jax_prints_pages(machine, tmp_path, monkeypatch, capsys):
    def backend() -> str:
        print("pages of the allocator", file=sys.stderr)
        return "gpu"

    machine("NVIDIA H100 80GB HBM3, {driver}, 81559, 60000")
    install(tmp_path, "jax-cuda12-plugin")
    monkeypatch.setattr(jax, "default_backend", backend)
    cards.say_what_is_unused()
    first, pages = capsys.readouterr().err.splitlines()
    assert first.startswith("other programs hold the memory of NVIDIA H100 80GB HBM3 (58.59 GiB of 79.65 GiB in use)")
    assert first.endswith("(nvidia-smi lists them): this run may find too little of it")
    assert pages == "pages of the allocator"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    cards.say_what_is_unused()
    assert capsys.readouterr().err == "pages of the allocator\n"


def test_what_jax_says_is_kept_off_the_screen_and_told_in_our_line(machine, tmp_path, monkeypatch, capsys, caplog):
    def backend() -> str:
        try:
            raise RuntimeError("cuInit(0) failed: error 999")
        except RuntimeError:
            logging.getLogger("jax._src.xla_bridge").exception("Jax plugin configuration error")
        return "cpu"

    machine()
    install(tmp_path, "jax-cuda13-plugin")
    machine(cuda="13.0")
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(cards.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(jax, "default_backend", backend)
    cards.say_what_is_unused()
    assert capsys.readouterr().err.endswith("for CUDA up to 13.0: JAX says: cuInit(0) failed: error 999\n")
    assert caplog.records == []


def test_a_card_that_is_asked_for_and_not_there_ends_the_run(tmp_path, monkeypatch):
    """JAX itself goes on with the CPU here, or ends with an assertion without words."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cards, "_FILES", ())
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    with pytest.raises(UserError, match="JAX_PLATFORMS=cuda,cpu asks for an NVIDIA card, and JAX finds none"):
        cards.say_what_is_unused()


def test_the_platform_cuda_without_a_card_is_one_line(tmp_path):
    script = "from bert_jax.training import cards; cards.say_what_is_unused()"
    environment = {"JAX_PLATFORMS": "cuda", "PATH": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("bert_jax.errors.UserError: JAX_PLATFORMS=cuda asks for an NVIDIA card, and JAX finds none")
