"""Says which NVIDIA cards this machine has, and why JAX does not use them. ``nvidia-smi`` comes with the driver.

JAX itself computes on the CPU, silently or with pages of text, where a driver is too old, a library is missing or a
variable hides the cards.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import jax

from bert_jax.errors import UserError, few, first_line
from bert_jax.program import INSTALL, say, size

_FILES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")  # one of these is there where a driver shows a card
_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
_DRIVERS = {"12": "525", "13": "580"}  # the first driver for each CUDA, by JAX's page on installation
_SECONDS = 20  # the longest time that nvidia-smi may take
_IN_A_CONTAINER = "in a container: start it with --gpus=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_HELD = 0.5  # share of a card's memory that other programs hold, from which a run says so


@dataclasses.dataclass(frozen=True)
class Card:
    """A card as ``nvidia-smi`` shows it; its memory, and what programs hold of it, in bytes (None: not shown)."""

    name: str
    memory: float | None
    held: float | None

    def __str__(self) -> str:
        if self.memory is None or self.held is None:
            return self.name
        return f"{self.name} ({size(self.held)} of {size(self.memory)} in use)"


@dataclasses.dataclass(frozen=True)
class Driver:
    """The NVIDIA driver of this machine.

    Attributes:
      cuda: the newest CUDA that the driver runs, such as "12.8"; "" if it is not known.
      trouble: why ``nvidia-smi`` names no cards; "" if it does.
    """

    cards: tuple[Card, ...] = ()
    version: str = ""
    cuda: str = ""
    trouble: str = ""

    def __str__(self) -> str:
        if self.trouble:
            return self.trouble
        cuda = f" for CUDA up to {self.cuda}" if self.cuda else ""
        return f"{', '.join(map(str, self.cards))}; driver {self.version}{cuda}"


def find_driver() -> Driver | None:
    """Return the NVIDIA driver and its cards; None if nothing on this machine looks like a card of NVIDIA."""
    program = shutil.which("nvidia-smi")
    if program is None:
        if not any(Path(file).exists() for file in _FILES):
            return None
        return Driver(trouble="there seems to be an NVIDIA card, and nvidia-smi is not there")
    asked = "--query-gpu=name,driver_version,memory.total,memory.used"
    table, page = _answer([program, asked, "--format=csv,noheader,nounits"]), _answer([program])
    rows = [[field.strip() for field in line.split(",")] for line in table.splitlines()]
    if not rows or any(len(row) != 4 for row in rows):
        return Driver(trouble=f"nvidia-smi fails: {' '.join((table or page or 'no answer').split())[:200]}")
    cuda = re.search(r"CUDA[\w ]* Version\s*:\s*(\d+\.\d+)", page)
    cards = tuple(Card(name, _mebibytes(memory), _mebibytes(held)) for name, _, memory, held in rows)
    return Driver(cards, rows[0][1], cuda[1] if cuda else "")


def _answer(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    return (done.stdout + done.stderr).strip()


def _mebibytes(text: str) -> float | None:
    return float(text) * 2**20 if re.fullmatch(r"\d+", text) else None


def why_unused(driver: Driver, said: str = "") -> str:
    """Return why JAX computes on the CPU although the machine has ``driver``, and what to do, in one line.

    ``said``: what JAX said of it, for a reason that is not known here.
    """
    if hidden := _hidden():
        return hidden
    if driver.trouble:
        return f"the driver does not answer; install it or start it, or {_IN_A_CONTAINER}"
    plugin = next((name for name in _PLUGINS if version_of(name)), None)
    if plugin is None:
        return f"JAX's CUDA plugin is not installed; {INSTALL['gpu']}"
    major = plugin.removeprefix("jax-cuda").removesuffix("-plugin")
    if driver.cuda and int(driver.cuda.partition(".")[0]) < int(major):
        return f"the driver is too old: {plugin} needs driver {_DRIVERS[major]} or newer; update the driver"
    if lacking := _lacking(plugin):
        return f"CUDA libraries are missing: {few(lacking, 3)}; {INSTALL['gpu']}"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return f"the driver's library libcuda.so.1 is not found; install it with the driver, or {_IN_A_CONTAINER}"
    if not any(Path(file).exists() for file in _FILES):
        return f"the driver shows no device file such as {_FILES[0]}; load the driver, or {_IN_A_CONTAINER}"
    if found := held(driver):
        return f"{found}; end them, for JAX needs some of it to begin"
    if said:
        return f"JAX says: {said}"
    return "JAX does not say why; TF_CPP_MIN_LOG_LEVEL=0 JAX_PLATFORMS=cuda before the same command shows what it tried"


def _hidden() -> str:
    """Return which variable keeps JAX from the cards, and what to do; otherwise ""."""
    platforms, visible = os.environ.get("JAX_PLATFORMS", ""), os.environ.get("CUDA_VISIBLE_DEVICES")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return f"JAX_PLATFORMS={platforms} leaves the card out; unset it to use the card"
    if visible is not None and (not visible.strip() or visible.startswith(("-", "NoDevFiles"))):
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides the card; unset it to use the card"
    return ""


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lacking(plugin: str) -> list[str]:
    """Return the packages of CUDA's libraries that a plugin names and that are not installed."""
    lines = [line for line in metadata.requires(plugin) or [] if "with-cuda" in line or "with_cuda" in line]
    named = [re.match(r"[\w.-]+", line) for line in lines]
    return [found[0] for found in named if found and not version_of(found[0])]


def held(driver: Driver) -> str:
    """Return who holds the memory, where other programs hold much of every card; otherwise ""."""
    shares = [card.held / card.memory for card in driver.cards if card.held is not None and card.memory]
    if not shares or min(shares) < _HELD:
        return ""
    return f"other programs hold the memory of {driver.cards[0]} (nvidia-smi lists them)"


@contextlib.contextmanager
def _heard() -> Iterator[list[logging.LogRecord]]:
    """Context manager: collect the log of JAX about its platforms, which may have a traceback, and do not print it."""
    records: list[logging.LogRecord] = []
    logger = logging.getLogger("jax._src.xla_bridge")

    def keep(record: logging.LogRecord) -> bool:
        records.append(record)
        return False

    logger.addFilter(keep)
    try:
        yield records
    finally:
        logger.removeFilter(keep)


def say_what_is_unused() -> None:
    """Say in one line if JAX does not use a card of this machine, or if other programs hold the card's memory.

    Call this before anything else uses JAX's devices, because JAX itself then holds most of the memory.

    Raises:
      UserError: ``JAX_PLATFORMS`` asks for a card, and JAX finds none.
    """
    driver, asked = find_driver(), os.environ.get("JAX_PLATFORMS", "")
    # Said before JAX looks at the card, because JAX itself prints pages where it finds too little memory.
    if driver and (found := held(driver)) and not _hidden() and any(map(version_of, _PLUGINS)):
        say(f"{found}: this run may find too little of it")
    with _heard() as records:
        try:
            backend = jax.default_backend()
        except AssertionError:  # JAX found none of the platforms, and gives no message
            backend = "cpu"
        except RuntimeError:
            if driver:
                say(f"this machine has {driver}: {why_unused(driver)}")
            raise
    said = next((first_line(r.exc_info[1]) for r in records if r.exc_info and r.exc_info[1]), "")
    if backend != "cpu":
        return
    if asked.partition(",")[0] in ("cuda", "gpu"):
        why = (
            why_unused(driver, said)
            if driver
            else f"there is neither nvidia-smi nor a device file; to use the CPU unset it, {_IN_A_CONTAINER}"
        )
        raise UserError(f"JAX_PLATFORMS={asked} asks for an NVIDIA card, and JAX finds none: {why}")
    if driver and not asked:
        say(f"on the CPU, although this machine has {driver}: {why_unused(driver, said)}")
