"""Strict JAX on eight CPU devices, programs that are compiled once, and the door to optional real data."""

import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import pytest
from absl import flags

from tests import costs, toy

COMPILED = "BERT_JAX_TESTS_COMPILED"  # the folder of compiled programs
_PROGRAMS: dict[str, Any] = {}  # key of jax's cache -> the program that a worker keeps, and how long it compiled
SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="the file for the processor seconds of each folder of tests")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--costs"):
        config.pluginmanager.register(costs.Costs(path))
    if COMPILED not in os.environ:  # workers of pytest-xdist inherit it
        folder = os.environ[COMPILED] = tempfile.mkdtemp(prefix="bert_jax_tests_")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(autouse=True, scope="session")
def _heard_interrupt() -> None:
    """A shell that runs pytest in the background has it ignore Ctrl-C, and what a test starts would ignore it too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _parsed_flags() -> None:
    """Grain's worker processes read absl flags, which pytest never parses."""
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(autouse=True, scope="session")
def _strict_jax() -> None:
    import jax

    jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True, scope="session")
def _compiled_once() -> Iterator[None]:
    """What one worker has compiled, both read. Commands that tests start compile for themselves: they may be killed.

    jax writes into its cache in place, so that the other worker could read half of a program. It would read a program
    anew for every run that needs the program: a worker keeps what it has compiled or read to the end of a test file.
    """
    import jax
    from jax._src import compilation_cache
    from jax._src.lru_cache import LRUCache

    read, write = compilation_cache.get_executable_and_time, compilation_cache.put_executable_and_time

    def put(self: LRUCache, key: str, value: bytes) -> None:
        part = Path(self.path, f"{key}.{os.getpid()}")
        part.write_bytes(value)
        part.rename(Path(self.path, f"{key}-cache"))

    def get(key: str, *how: Any) -> Any:
        if key not in _PROGRAMS:
            program, seconds = read(key, *how)
            if program is None:
                return None, None
            _PROGRAMS[key] = program, seconds
        return _PROGRAMS[key]

    def keep(key: str, name: str, program: Any, backend: Any, seconds: int) -> None:
        _PROGRAMS[key] = program, seconds
        write(key, name, program, backend, seconds)

    jax.config.update("jax_compilation_cache_dir", os.environ[COMPILED])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LRUCache, "put", put)
        patch.setattr(compilation_cache, "get_executable_and_time", get)
        patch.setattr(compilation_cache, "put_executable_and_time", keep)
        yield


@pytest.fixture(autouse=True, scope="session")
def _rare_collections() -> None:
    """What is imported stays: Python's collector need not visit it again and again while JAX traces."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="session")
def _rates_measured_once() -> Iterator[None]:
    """Every run, and every plan for a CPU, would measure the same machine anew: for 0.2 s, or for several seconds."""
    from bert_jax.planning import peak_rates

    with pytest.MonkeyPatch.context() as patch:
        for measured in (peak_rates.matmul_rate, peak_rates.memory_bandwidth, peak_rates.elementwise_rates):
            patch.setattr(peak_rates, measured.__name__, functools.cache(measured))
        yield


@pytest.fixture
def one_device() -> Iterator[None]:
    """``toy.one_device`` for a test; fixtures of wider scope find all eight."""
    with toy.one_device():
        yield


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled() -> Iterator[None]:
    """What one file compiled is of no use to the next, and would add up to gigabytes."""
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    _PROGRAMS.clear()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No file of a user is loaded, as in a new process; nor is one after the returned function was called."""
    from bert_jax.parts import catalogue

    def forget() -> None:
        for name in ("_trusted", "_names"):
            monkeypatch.setattr(catalogue, name, {})

    forget()
    return forget


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """``shared_data("en_books")`` is that folder of real data; the test is skipped, by name, where it is not there."""

    def find(name: str) -> Path:
        if not (SHARED / name).exists():
            pytest.skip(f"needs the data folder ../shared/data/{name}")
        return SHARED / name

    return find
