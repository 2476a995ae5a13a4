"""Looks at this machine for ``bert-jax doctor``: what is installed, which devices answer, how much room there is.

Only another process imports jax itself, and is ended if it does not answer: the driver of an accelerator may wait for
ever, and a broken installation must be reported like everything else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import bert_jax
from bert_jax.errors import OF_MACHINE
from bert_jax.inspection.check import Check
from bert_jax.program import INSTALL, size
from bert_jax.storage import files
from bert_jax.training import cards, compile_cache
from bert_jax.training.malloc import host_bytes

NAME = "bert-jax"
SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
_ACCELERATORS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin")
_LITTLE_DISK = 5 * 2**30
# What each extra of setup.cfg is for. Extras for people who change the package itself are not shown.
EXTRAS = {
    "tpu": "TPUs, and plans for them",
    "gpu": "NVIDIA GPUs",
    "plan-gpu": "plans for NVIDIA GPUs, without a GPU",
    "wikipedia": "MediaWiki dumps as text",
    "datasets": "datasets of the Hugging Face Hub",
    "segment": "the words of Chinese text",
    "retrieval": "BM25 beside a search by meaning",
    "cmrc": "scores of CMRC 2018",
    "generation": "scores of written texts",
    "gcs": "paths gs://",
    "s3": "paths s3://",
    "wandb": "the logger wandb",
    "mlflow": "the logger mlflow",
    "trackio": "the logger trackio",
}

# Asks for the devices, then times products. Each answer is a line, so that a product that fails hides no device.
_QUERY = """
import json, jax
devices = jax.devices()
limit = (devices[0].memory_stats() or {}).get("bytes_limit")
print(json.dumps([jax.default_backend(), len(devices), devices[0].device_kind, limit]), flush=True)
from bert_jax.planning.chips import of_device
from bert_jax.planning.peak_rates import matmul_rate
chip = of_device(devices[0].device_kind)
peaks = chip.matrix_flops if chip else {}
rates = {name: matmul_rate(devices[0], name) for name in ("bfloat16", "float32")}
print(json.dumps([rates, {"bfloat16": peaks.get("bf16"), "float32": peaks.get("f32")}]))
"""


def examine(device_seconds: float) -> list[Check]:
    """Return a ``Check`` for each thing that was looked at. A "bad" thing keeps training from starting.

    Args:
      device_seconds: how long devices may take to answer.
    """
    needed, answer, driver = _requirements(), _ask(device_seconds), cards.find_driver()
    return [
        _ours(needed),
        Check(
            "python", "ok", f"{platform.python_version()} in {sys.prefix}, on {platform.system()} {platform.machine()}"
        ),
        _packages([r for r in needed or [] if _of(r, "")]),
        _plugins(),
        _devices(answer),
        *_driver(driver, answer),
        *_products(answer),
        _memory(),
        *_disk(),
        *_compiled(answer),
        *(_extra(name, needs) for name in EXTRAS if (needs := [r for r in needed or [] if _of(r, name)])),
    ]


def _requirements(name: str = NAME) -> list[Requirement] | None:
    """Return the requirements of a package and its extras; None if the package is not installed."""
    try:
        return [Requirement(text) for text in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return None


def _ours(needed: list[Requirement] | None) -> Check:
    found = f"{bert_jax.__version__} in {Path(bert_jax.__file__).parent}"
    if needed is None:
        return Check(NAME, "note", found, "not installed, so extras are not known; pip install it (make env)")
    return Check(NAME, "ok", found)


def _packages(needed: list[Requirement]) -> Check:
    """Return the versions of the packages that matter most; "bad" if a needed package is missing or too old."""
    shown = ", ".join(f"{name} {cards.version_of(name) or 'missing'}" for name in SHOWN)
    named = [r.name for r in needed]
    wrong = [r for r in (*needed, *(Requirement(name) for name in SHOWN if name not in named)) if _lacks(r)]
    if not wrong:
        return Check("packages", "ok", shown)
    names = ", ".join(r.name for r in wrong)
    return Check("packages", "bad", shown, f"missing or too old: {names}; {_install(wrong)}")


def _lacks(requirement: Requirement) -> bool:
    """Return whether a package, or a package that its named extras need, is missing or too old."""
    version = cards.version_of(requirement.name)
    if version is None or not requirement.specifier.contains(version, prereleases=True):
        return True
    nested = _requirements(requirement.name) or [] if requirement.extras else []
    return any(_lacks(r) for extra in requirement.extras for r in nested if _of(r, extra))


def _of(requirement: Requirement, extra: str) -> bool:
    """Return whether a requirement belongs to an extra, or, if ``extra`` is "", is always needed on this machine."""
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return always if not extra else not always and marker is not None and marker.evaluate({"extra": extra})


def _install(requirements: list[Requirement]) -> str:
    names = (f"{r.name}{'[' + ','.join(sorted(r.extras)) + ']' if r.extras else ''}{r.specifier}" for r in requirements)
    return "pip install " + " ".join(f"'{name}'" if set("[]<>=!~") & set(name) else name for name in names)


def _plugins() -> Check:
    found = {name: version for name in _ACCELERATORS if (version := cards.version_of(name))}
    text = ", ".join(f"{name} {version}" for name, version in found.items()) or "none: jax computes on the CPU"
    if unused := _unused_hardware(found):
        return Check("accelerators", "note", text, unused)
    return Check("accelerators", "ok", text)


def _unused_hardware(plugins: dict[str, str]) -> str:
    """Return what to install for an accelerator that this machine has and jax has no plug-in for, otherwise ""."""
    if Path("/dev/nvidia0").exists() and not any("cuda" in name for name in plugins):
        return f"this machine has an NVIDIA GPU; to use it: {INSTALL['gpu']}"
    if (Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists()) and "libtpu" not in plugins:
        return f"this machine seems to have TPUs; to use them: {INSTALL['tpu']}"
    return ""


@dataclasses.dataclass(frozen=True)
class _Answer:
    """The answer of jax in another process about its devices, and about products on the first; "" or {}: no answer.

    Attributes:
      trouble: the check that says why jax named no devices.
    """

    backend: str = ""
    count: int = 0
    kind: str = ""
    memory: float | None = None
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)  # dtype -> FLOP/s
    peaks: Mapping[str, float | None] = dataclasses.field(default_factory=dict)  # by the data sheet
    trouble: Check | None = None
    last_words: str = ""


def _ask(limit: float) -> _Answer:
    """Return the answer of a process that is ended after ``limit`` seconds."""
    code, said, error = _run(_QUERY, limit)
    found = [values for line in said.splitlines() if (values := _as_json(line))]
    last = _last_words(error) or f"exit code {code}"
    if found:
        rates, peaks = found[1] if len(found) > 1 else ({}, {})
        backend, count, kind, memory = found[0]
        return _Answer(backend, count, kind, memory, rates, peaks, last_words="no answer" if code is None else last)
    if code is None:
        advice = (
            "another process may hold them, or a slice of several hosts waits until every host asks; ask again with "
            "--device_seconds=300, or JAX_PLATFORMS=cpu for the CPU alone"
        )
        return _Answer(trouble=Check("devices", "bad", f"no answer in {limit:g} s{_platforms()}", advice))
    fix = "mend that, or set JAX_PLATFORMS=cpu"
    if last == "AssertionError":  # jax says nothing where none of the platforms is there
        last, fix = "it finds none of these platforms", "unset JAX_PLATFORMS, or name a platform that is there"
    return _Answer(trouble=Check("devices", "bad", f"jax fails{_platforms()}: {last}", fix))


def _last_words(error: str) -> str:
    """Return the line of a traceback that says what failed. A message of JAX may go on for pages."""
    lines = error.strip().splitlines()
    named = [line for line in lines if any(words in line for words in OF_MACHINE)]
    return (named or lines or [""])[-1].strip()[:300]


def _as_json(line: str) -> list[Any]:
    with contextlib.suppress(ValueError):
        return found if isinstance(found := json.loads(line), list) else []
    return []


def _platforms() -> str:
    asked = os.environ.get("JAX_PLATFORMS")
    return f" (JAX_PLATFORMS={asked})" if asked else ""


def _devices(answer: _Answer) -> Check:
    if answer.trouble:
        return answer.trouble
    room = f", {size(answer.memory)} each" if answer.memory else ""
    topology = f"; for plan: --topology=cpu:{answer.count}" if answer.backend == "cpu" else ""
    found = f"{answer.count} x {answer.kind}, platform {answer.backend}{room}{_platforms()}{topology}"
    return Check("devices", "ok", found)


def _driver(driver: cards.Driver | None, answer: _Answer) -> list[Check]:
    """Return the NVIDIA cards of this machine with their driver, and why jax does not use them."""
    if driver is None:
        return []
    used = answer.backend not in ("", "cpu")
    unused = "" if used else f"jax does not use it: {cards.why_unused(driver)}"
    advice = unused or cards.held(driver)
    return [Check("nvidia", "note" if advice else "ok", str(driver), advice)]


def _products(answer: _Answer) -> list[Check]:
    """Return how fast the first device multiplies, beside its data sheet."""
    if answer.trouble:
        return []
    if not answer.rates:
        bad = answer.backend != "cpu"  # of a CPU, memory may be free again when training begins
        advice = "end other programs on the device (nvidia-smi lists them)" if bad else "free the machine's memory"
        found = f"a large product fails: {answer.last_words}"
        return [Check("products", "bad" if bad else "note", found, advice)]
    shares = {name: peak and rate / peak for name, rate in answer.rates.items() for peak in [answer.peaks.get(name)]}
    text = ", ".join(
        f"{name} {rate / 1e12:,.3g} TFLOP/s{f' ({shares[name]:.0%} of the data sheet)' if shares[name] else ''}"
        for name, rate in answer.rates.items()
    )
    slow = answer.backend == "gpu" and answer.rates["bfloat16"] < 1.5 * answer.rates["float32"]
    advice = "this card has no fast bfloat16: --config.model.dtype=float32" if slow else ""
    return [Check("products", "note" if advice else "ok", text, advice)]


def _compiled(answer: _Answer) -> list[Check]:
    """Return where compiled programs are kept, and how many there are. Programs for a CPU are not kept."""
    if answer.backend in ("", "cpu"):
        return []
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(files.cache_directory() / compile_cache.FOLDER)
    kept = [path.stat().st_size for path in Path(folder).glob("*-cache") if path.is_file()]
    found = f"{len(kept)} programs, {size(sum(kept))}, in {folder}" if kept else f"none yet, will be in {folder}"
    return [Check("compiled", "ok", found)]


def _run(script: str, limit: float) -> tuple[int | None, str, str]:
    """Return (exit code, stdout, stderr) of a Python script; the code is None if it was ended after ``limit`` s."""
    # The output goes to files, because a grandchild that survives could keep a pipe open for ever.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        # Without the filter's note an exception comes last.
        env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_TRACEBACK_FILTERING": "off"}
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=out, stderr=errors, env=env, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the kernel: leave it behind
                    process.wait(5)
        return code, _read(out), _read(errors)


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def _memory() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = f"{cores} processor cores, {size(host_bytes())} of memory"
    return Check("memory", "ok", found)


def _disk() -> list[Check]:
    """Return findings on the disk of the current folder, and on the cache and its disk."""
    free, cache = shutil.disk_usage(".").free, files.cache_directory()
    found = f"{size(free)} free in the current folder"
    little = free < _LITTLE_DISK
    advice = "a checkpoint of bert_base takes 1.3 GB; put the workdir on another disk" if little else ""
    disk = Check("disk", "note" if little else "ok", found, advice)
    there = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        advice = "name a folder of yours in BERT_JAX_CACHE; without it plans of epochs are made anew in each run"
        return [disk, Check("cache", "note", f"{cache} cannot be written", advice)]
    return [disk, Check("cache", "ok", f"{cache}, {size(shutil.disk_usage(there).free)} free")]


def _extra(name: str, needed: list[Requirement]) -> Check:
    if missing := [requirement for requirement in needed if _lacks(requirement)]:
        return Check(f"extra {name}", "note", f"not installed; for {EXTRAS[name]}", _install(missing))
    versions = ", ".join(f"{r.name} {cards.version_of(r.name)}" for r in needed)
    return Check(f"extra {name}", "ok", f"{versions}; for {EXTRAS[name]}")
