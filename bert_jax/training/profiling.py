"""Records a trace of a few steps (``--profile=FIRST:LAST``) that TensorBoard, XProf or Perfetto opens.

Of a trace of GPUs it also says how the time of a step splits: products, attention, other kernels, communication, idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import jax

from bert_jax.cluster import distributed
from bert_jax.errors import UserError, first_line
from bert_jax.reporting.observer import Observer
from bert_jax.reporting.profiled_steps import TIMES, ProfiledSteps, split_in_words
from bert_jax.storage import files
from bert_jax.storage.replacing import replaced_directory

FOLDER = "profile"  # in the workdir; a log directory for TensorBoard and XProf


class Profiler:
    """Traces the steps ``profiled``, if any, into ``workdir/profile``. A trace is there whole, or not at all.

    It is written to the cache first. The first process of a job traces what it and its devices do. If a trace cannot be
    made, a line says so, and the run goes on. As a context manager it ends a trace that is not complete, without
    keeping it.
    """

    def __init__(self, profiled: ProfiledSteps | None, observer: Observer, first_step: int):
        self._steps, self._observer = profiled or ProfiledSteps(0, 0), observer  # no step has the number 0
        self._open = contextlib.ExitStack()  # of the folder that the trace is written to first
        self._folder: Path | None = None  # that folder, while the profiler runs
        self._annotation: Any = None
        if profiled is not None and profiled.first <= first_step:
            observer.note(f"{profiled.in_words}: begun before this start, at step {first_step:,}, so not traced by it")

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            with contextlib.suppress(RuntimeError, ValueError, OSError):
                jax.profiler.stop_trace()
            self._folder = None
            self._observer.note(f"the run ended within {self._steps.in_words}: no trace is kept")
        self._open.close()

    def before(self, step: int, state: Any) -> None:
        """Start the trace if ``step`` is the first to trace. ``state``: the state before the step."""
        if step == self._steps.first:
            jax.block_until_ready(state)  # so that no earlier step is in the trace
            with self._observer.during("profiling"):
                self._start()
        if self._folder is not None:
            self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=step)
            self._annotation.__enter__()

    def after(self, step: int, state: Any) -> None:
        """Write the trace if ``step`` is the last to trace. ``state``: the state after the step."""
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None
        if step == self._steps.last:
            jax.block_until_ready(state)
            with self._observer.during("profiling"):
                if self._folder is not None:
                    self._finish(self._folder)
                distributed.wait("profiled")  # the other processes wait here, and not within a step

    def _start(self) -> None:
        if not distributed.is_first():
            return
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every Python call would fill the trace, and slow the steps
        try:
            folder = self._open.enter_context(files.scratch("profile"))
            jax.profiler.start_trace(folder, create_perfetto_trace=True, profiler_options=options)
            self._folder = folder
        except (UserError, OSError, RuntimeError) as error:
            self._without(error)

    def _finish(self, folder: Path) -> None:
        """Stop the profiler, and put what it has written into the workdir."""
        self._folder = None
        name = f"steps_{self._steps.first}_to_{self._steps.last}"
        target = files.as_path(self._observer.workdir) / FOLDER / "plugins" / "profile" / name
        try:
            jax.profiler.stop_trace()
            with replaced_directory(target) as whole:
                for file in folder.glob("plugins/profile/*/*"):
                    shutil.copyfile(file, whole / file.name)
            times = self._times(folder)
        except (UserError, OSError, RuntimeError, ValueError) as error:
            self._without(error)
            return
        finally:
            self._open.close()
        logdir = os.fspath(files.as_path(self._observer.workdir) / FOLDER)
        self._observer.note(
            f"trace of {self._steps.in_words}: {target}; open it with xprof --logdir={logdir}, with tensorboard "
            f"--logdir={logdir} (and its profile plugin), or drop its perfetto_trace.json.gz on ui.perfetto.dev"
        )
        if times:
            self._observer.note(split_in_words(self._steps.in_words, times))

    def _times(self, folder: Path) -> dict[str, float] | None:
        """Return how the time of a step on a GPU splits, and keep it for the report; None without a GPU."""
        number, times = self._steps.last - self._steps.first + 1, None
        for trace in folder.glob("plugins/profile/*/*.xplane.pb"):
            times = times_of_trace(jax.profiler.ProfileData.from_file(os.fspath(trace)), number)
        if times:
            record = {"steps": self._steps.in_words, "milliseconds": times}
            files.write_text(files.as_path(self._observer.workdir) / TIMES, json.dumps(record))
        return times

    def _without(self, error: Exception) -> None:
        self._observer.note(f"no trace of {self._steps.in_words}: {first_line(error)}; the run goes on")


# ---- How the time of traced steps on a GPU splits --------------------------------------------------------------------

_Kind = Literal["products", "attention", "communication", "other kernels"]

# Names of kernels, the first that fits: of cuDNN and of ours, of NCCL, of cuBLAS and of XLA.
_KERNELS: tuple[tuple[_Kind, re.Pattern[str]], ...] = (
    ("attention", re.compile(r"attention|flash|fmha|sdpa", re.IGNORECASE)),
    ("communication", re.compile(r"nccl|nvshmem", re.IGNORECASE)),
    ("products", re.compile(r"gemm|gemv|nvjet|cutlass|cublas|xmma|splitk", re.IGNORECASE)),
)
_COLLECTIVE = re.compile(r"all-reduce|all-gather|reduce-scatter|all-to-all|collective")


def kind_of(kernel: str, hlo_op: str = "") -> _Kind:
    """Return what a kernel computes. ``hlo_op``: the instruction that ran it, which is unknown in a command buffer."""
    found = next((kind for kind, names in _KERNELS if names.search(kernel)), None)
    return found or ("communication" if _COLLECTIVE.match(hlo_op) else "other kernels")


def times_of_trace(data: Any, num_steps: int) -> dict[str, float] | None:
    """Return the milliseconds of a step on the first GPU of a trace, by kind, and "idle"; None without a GPU.

    They add up to the time from the start of the first kernel to the end of the last. Communication counts where it
    runs alone.

    Args:
      data: a ``jax.profiler.ProfileData``.
      num_steps: the number of steps in the trace.
    """
    planes = sorted((plane for plane in data.planes if plane.name.startswith("/device:GPU:")), key=lambda p: p.name)
    for plane in planes:
        streams = [line for line in plane.lines if line.name.startswith("Stream")]
        events = [
            (event.start_ns, event.end_ns, kind_of(event.name, str(dict(event.stats).get("hlo_op", ""))))
            for line in streams
            for event in line.events
        ]
        if events:
            return {kind: ns / num_steps / 1e6 for kind, ns in _split(events).items()}
    return None


def _split(events: list[tuple[float, float, _Kind]]) -> dict[str, float]:
    """Return the nanoseconds of each kind and "idle". Time in which several kernels run counts once."""
    computing = _alone(event for event in events if event[2] != "communication")
    busy, span = sum(_alone(events).values()), max(end for _, end, _ in events) - min(start for start, *_ in events)
    communication = busy - sum(computing.values())
    return {**computing, **({"communication": communication} if communication else {}), "idle": span - busy}


def _alone(events: Iterable[tuple[float, float, _Kind]]) -> dict[str, float]:
    """Return the nanoseconds in which each kind runs and no kernel that started before it."""
    found, until = dict.fromkeys(("products", "attention", "other kernels"), 0.0), 0.0
    for start, end, kind in sorted(events):
        found[kind] = found.get(kind, 0.0) + max(0.0, end - max(start, until))
        until = max(until, end)
    return found
