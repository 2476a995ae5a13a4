"""Runs the work of a build: in this process, or with Apache Beam in worker processes of this machine or on a cluster.

Each element of the Beam pipeline describes a part of the source. The worker that gets an element reads that part and
writes the result to files. Nothing else passes between workers, so memory does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from bert_jax import catalogue
from bert_jax.cluster import signals
from bert_jax.corpora.parts import Part
from bert_jax.errors import UserError

Work = Callable[[Part], None]  # picklable; it writes files, and returns quickly if they exist already
POLL_SECONDS = 1.0
BYTES_WORTH_A_WORKER = 64 << 20  # the bytes of text that justify a worker process, which takes seconds to start


def run(
    work: Work,
    parts: Sequence[Part],
    num_workers: int = 0,
    beam_options: Sequence[str] = (),
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Do ``work`` for every part.

    Args:
      num_workers: processes on this machine. 0 means one per core, or fewer if there is little text. With 1 this
        process does the work, without Beam.
      beam_options: flags of a Beam runner (``--runner=DataflowRunner``, ...). If given, ``num_workers`` is ignored.
      tick: called about once a second and after the last part, to show progress.
    """
    num_bytes = sum(piece.num_bytes for part in parts for piece in part.pieces)
    worth = min(cores(), max(1, num_bytes // BYTES_WORTH_A_WORKER))
    workers = min(num_workers or worth, len(parts))
    if not beam_options and workers <= 1:
        for part in parts:
            work(part)
            tick()
        return
    with _ticking(tick):
        _run_beam(work, parts, workers, beam_options)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_beam(work: Work, parts: Sequence[Part], workers: int, beam_options: Sequence[str]) -> None:
    with _quiet(), tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        import apache_beam as beam
        from apache_beam.internal.cloudpickle import cloudpickle
        from apache_beam.options.pipeline_options import PipelineOptions

        runner, flags = (None, [*beam_options]) if beam_options else _local_runner(workers, Path(folder))
        _check_flags(flags)
        for module in catalogue.own_modules():  # workers cannot import it
            cloudpickle.register_pickle_by_value(module)
        try:
            with _watching(Path(folder)), beam.Pipeline(runner=runner, options=PipelineOptions(flags)) as pipeline:
                (
                    pipeline
                    | "Parts" >> beam.Create(list(parts))
                    | "Spread" >> beam.Reshuffle()  # otherwise a runner may fuse everything into one worker
                    | "Make" >> beam.Map(_Worker(work))
                )
        except Exception as error:
            if not beam_options or isinstance(error, UserError) or os.environ.get("BERT_JAX_TRACEBACK") == "1":
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"the Beam runner of config.corpus.beam_options failed: {lines[-1]}; BERT_JAX_TRACEBACK=1 shows where"
            ) from error


def _check_flags(flags: Sequence[str]) -> None:
    """Raise ``UserError`` for a flag that Beam does not know. Beam itself would ignore a misspelt flag."""
    from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

    class Parser(_BeamArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise UserError(f"config.corpus.beam_options: {message}")

    parser = Parser(add_help=False, allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        with contextlib.suppress(argparse.ArgumentError):  # two of Beam's classes of options may share a flag
            options._add_argparse_args(parser)
    unknown = parser.parse_known_args(list(flags))[1]
    if unknown:
        raise UserError(f"config.corpus.beam_options has {', '.join(unknown)}, which no Beam runner here knows")


def _local_runner(workers: int, folder: Path) -> tuple[Any, list[str]]:
    """Return Beam's runner for processes on this machine, and its flags.

    (Beam's default runner would download a program.) Files in ``folder`` record the process id of each worker and,
    when the worker ends, its exit code.
    """
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    # A worker would log only that it starts and ends; errors come back as exceptions. Only this process handles Ctrl-C.
    here = shlex.quote(str(folder))
    command = (
        f"exec 2>/dev/null; trap '' INT; {shlex.quote(sys.executable)} -m apache_beam.runners.worker.sdk_worker_main"
    )
    command += f"& echo $! > {here}/$$.pid; wait $!; echo $? > {here}/$$.code"
    environment = SubprocessSDKEnvironment.from_command_string(command_string=command)
    return FnApiRunner(default_environment=environment), [f"--direct_num_workers={workers}"]


@contextlib.contextmanager
def _watching(folder: Path) -> Iterator[None]:
    """Context manager that raises ``UserError`` if a worker process is killed while the block runs.

    If this process gets a signal to end, all workers are killed, because Beam would wait for them.
    """
    died: list[int] = []
    caller = threading.get_ident()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            codes = _numbers(folder, "*.code")
            if any(codes):
                died.extend(codes)
                if in_main:
                    signal.pthread_kill(caller, signal.SIGUSR2)  # nothing else interrupts a thread that waits in Beam
                return

    def tell(number: int, frame: FrameType | None) -> None:
        raise _WorkerDiedError

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGUSR2, tell) if in_main else None
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    workers = _Workers(folder, done)
    signals.hearers.append(workers)
    try:
        yield
    except (_WorkerDiedError, RuntimeError) as error:
        if not any(died):
            raise
        code = next(filter(None, died))
        raise UserError(
            f"a worker process of the build was killed (exit code {code}; 137 may be a lack of memory); the same"
            " command goes on with the parts that are missing, perhaps with a smaller config.corpus.num_workers"
        ) from error
    finally:
        signals.hearers.remove(workers)
        done.set()
        watcher.join()  # its signal must not arrive after the handler is removed
        if in_main:
            signal.signal(signal.SIGUSR2, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that silences Beam's logs and the tracebacks of its threads, which are not for users.

    Errors still come back as exceptions.
    """
    logging.disable(logging.CRITICAL)
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        threading.excepthook = hook


class _Workers:
    """Kills the worker processes when this process gets a signal to end."""

    saves = False

    def __init__(self, folder: Path, done: threading.Event) -> None:
        self._folder, self._done = folder, done

    def hear(self, number: int) -> bool:
        """Kill all workers. The next build continues from the parts that they have finished."""
        self._done.set()
        for worker in _numbers(self._folder, "*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        return False


def _numbers(folder: Path, pattern: str) -> list[int]:
    return [int(text) for path in folder.glob(pattern) if (text := path.read_text().strip())]


class _WorkerDiedError(BaseException):
    """Raised if a worker process was killed. A ``BaseException``, so that Beam does not handle it as its own error."""


class _Worker:
    """Callable that does ``work`` for one part in a worker process."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, part: Any) -> None:
        os.environ["RAYON_NUM_THREADS"] = "1"  # there is already one process per core
        self._work(Part(*part))


@contextlib.contextmanager
def _ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Context manager that calls ``tick`` every ``POLL_SECONDS``, and once more if the block ends without an error."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            tick()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    tick()
