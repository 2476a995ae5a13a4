"""Does the work of a build: in this process, in processes of this machine, or with Apache Beam on a cluster.

A worker gets a shard of the source. It reads that text and writes the result to files. Nothing else passes between
workers, so memory does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NoReturn

import cloudpickle

from bert_jax.cluster import signals
from bert_jax.corpora.source import Shard
from bert_jax.errors import UserError
from bert_jax.parts import catalogue

Work = Callable[[Shard], Any]  # picklable; it writes files, and returns quickly if they exist already
_BYTES_WORTH_A_WORKER = 64 << 20  # the bytes of text that justify a worker process, which takes seconds to start


def run(
    work: Work,
    shards: Sequence[Shard],
    num_workers: int = 0,
    beam_options: Sequence[str] = (),
    done: Callable[[Shard], None] = lambda shard: None,
) -> None:
    """Do ``work`` for every shard.

    Args:
      num_workers: processes on this machine. 0 means one per core, or fewer if there is little text. With 1 this
        process does the work.
      beam_options: flags of a Beam runner (``--runner=DataflowRunner``, ...). If given, ``num_workers`` is ignored.
      done: called with each shard that is done, to show progress; not with Beam.
    """
    num_bytes = sum(piece.num_bytes for shard in shards for piece in shard.pieces)
    worth = min(_cores(), max(1, num_bytes // _BYTES_WORTH_A_WORKER))
    workers = min(num_workers or worth, len(shards))
    if beam_options:
        _run_beam(work, shards, beam_options)
    elif workers > 1:
        _run_processes(work, shards, workers, done)
    else:
        for shard in shards:
            work(shard)
            done(shard)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_processes(work: Work, shards: Sequence[Shard], workers: int, done: Callable[[Shard], None]) -> None:
    """Do the work in processes of this machine, which end with this function, also after an error."""
    for module in catalogue.own_modules():  # workers cannot import it
        cloudpickle.register_pickle_by_value(module)
    context, before = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _begin, (cloudpickle.dumps(work),))
    processes: list[Any] = []
    try:
        with signals.shield():
            futures = {pool.submit(_do, shard): shard for shard in shards}
            processes = [process for process in multiprocessing.active_children() if process not in before]
        for future in concurrent.futures.as_completed(futures):
            future.result()
            done(futures[future])
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process of the build was killed, perhaps for a lack of memory; the same command goes on with what"
            " is missing, perhaps with a smaller config.corpus.num_workers"
        ) from error
    finally:
        for process in processes:
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin(work: bytes) -> None:
    """Prepare a worker process: it prints nothing, leaves Ctrl-C to its parent, and ends with its parent."""
    global _load
    _load = functools.cache(lambda: cloudpickle.loads(work))
    os.environ["RAYON_NUM_THREADS"] = "1"  # there is already one process per core
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for number in (signal.SIGINT, *signals.TOLD_TO_END):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signals.end_with_parent()


_load: Callable[[], Work]  # in a worker process: returns the work


def _do(shard: Shard) -> None:
    _load()(shard)


def _run_beam(work: Work, shards: Sequence[Shard], flags: Sequence[str]) -> None:
    import apache_beam as beam
    from apache_beam.internal.cloudpickle import cloudpickle as beam_pickle
    from apache_beam.options.pipeline_options import PipelineOptions

    with _quiet():
        _check_flags(flags)
        for module in catalogue.own_modules():  # workers cannot import it
            beam_pickle.register_pickle_by_value(module)
        try:
            with beam.Pipeline(options=PipelineOptions([*flags])) as pipeline:
                (
                    pipeline
                    | "Shards" >> beam.Create(list(shards))
                    | "Spread" >> beam.Reshuffle()  # otherwise a runner may fuse everything into one worker
                    | "Make" >> beam.Map(functools.partial(_do_in_beam, work))
                )
        except Exception as error:
            if isinstance(error, UserError) or os.environ.get("BERT_JAX_TRACEBACK") == "1":
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"the Beam runner of config.corpus.beam_options failed: {lines[-1]}; BERT_JAX_TRACEBACK=1 shows where"
            ) from error


def _do_in_beam(work: Work, shard: Any) -> None:
    """Do ``work`` for one shard in a worker of Beam, which may pass the shard as a plain tuple."""
    os.environ["RAYON_NUM_THREADS"] = "1"  # there is already one process per core
    work(Shard(*shard))


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
