"""Runs train steps, each compiled when it is first needed, and collects the metrics of windows of steps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.cluster import distributed
from bert_jax.records import Sum
from bert_jax.reporting.observer import Observer
from bert_jax.rows.phases import Phase
from bert_jax.task import Task, summary_of, tasks_of
from bert_jax.training import malloc
from bert_jax.training.state import TrainState


class Steps:
    """Runs train steps. The step for a kind of batch is compiled when the first batch of that kind comes.

    The host may run ahead of the devices, but only by as many steps as the devices do in a second or two. So the host
    is only a few steps ahead, and a host that waits long for a step waits because of a stall.
    """

    AHEAD_SECONDS, MOST = 1.0, 64  # the seconds, and the most steps, between two waits for the devices

    def __init__(self, jitted: Callable[[str, Phase], Any], observer: Observer):
        """Take ``jitted``, a function that returns the jitted train step of a kind of batch, in a phase."""
        self._jitted, self._observer = jitted, observer
        self._compiled: dict[str, Any] = {}
        self._every, self._since = 1, 0  # steps between two waits, and steps since the last wait
        self._mark: jax.Array | None = None  # ready when the devices have done the step that the host had reached
        self._marked = 0.0

    def run(self, step: int, phase: Phase, kind: str, state: TrainState, frozen: Any, batch: Any) -> TrainState:
        """Return the state after ``step`` of ``phase``; the devices may not have computed it yet.

        ``state`` is donated.
        """
        first = kind not in self._compiled
        if first:
            with self._observer.during("compiling"):
                self._compiled[kind] = compile_program(self._jitted(kind, phase), state, frozen, batch)
        distributed.at(step, "first step" if first else "training")  # it also sets up communication
        state = self._compiled[kind](state, frozen, batch)
        self._since += 1
        if first:
            jax.block_until_ready(state)
            self._every, self._since, self._mark, self._marked = 1, 0, None, time.monotonic()
        elif self._since >= self._every:
            self._wait(state)
        return state

    def _wait(self, state: TrainState) -> None:
        """Wait until the devices have done the step that the host had reached at the last wait."""
        if self._mark is not None:
            self._mark.block_until_ready()
        now = time.monotonic()
        if now - self._marked < self.AHEAD_SECONDS / 2:
            self._every = min(2 * self._every, self.MOST)
        elif now - self._marked > 2 * self.AHEAD_SECONDS:
            self._every = max(self._every // 2, 1)
        self._mark = jnp.copy(state.step.addressable_data(0))  # a copy: the state itself is donated to the next step
        self._since, self._marked = 0, now


def compile_program(jitted: Any, *arguments: Any) -> Any:
    """Return a jitted function compiled for ``arguments``, after fitting malloc to the memory that it takes at once."""
    program = jitted.lower(*arguments).compile()
    memory = program.memory_analysis()
    if memory is not None and memory.temp_size_in_bytes >= malloc.LARGE:
        malloc.keep_small_blocks()
    return program


@dataclasses.dataclass
class Window:
    """The steps since metrics were last read, with the clocks at that time."""

    training_seconds: float
    wait_seconds: float
    steps: int = 0
    flops: float = 0.0

    def add(self, flops: float) -> None:
        """Count a step that has cost ``flops`` FLOPs."""
        self.steps += 1
        self.flops += flops

    def metrics(
        self, means: dict[str, float], training_seconds: float, wait_seconds: float, peak_flops: float
    ) -> dict[str, float]:
        """Return the means over the window with its rates; ``tokens`` is replaced by ``tokens_per_second``.

        ``step_seconds`` is the mean of the window's steps, waiting for input included: when a window ends, the devices
        have done its last step. Single steps run asynchronously, so their times are not known.
        """
        seconds = max(training_seconds - self.training_seconds, 1e-9)
        return means | {
            "tokens_per_second": means.pop("tokens") * self.steps / seconds,
            "step_seconds": seconds / self.steps,
            "mfu": self.flops / seconds / peak_flops,
            "input_wait_seconds": wait_seconds - self.wait_seconds,
        }


def means_of(task: Task, sums: dict[str, Sum]) -> dict[str, float]:
    """Return means over the steps of a window, with ``tokens`` per step, and the number of skipped steps if not 0.

    If all steps were skipped, only the learning rate is known. Metrics of kinds of which no batch came are left out.
    """
    steps, sound = (int(sums[name].count) for name in ("learning_rate", "gradient_norm"))
    means = summary_of(tasks_of(task).values(), sums) | {"tokens": float(sums["tokens"].value) / max(sound, 1)}
    if not sound:
        unknown = dict.fromkeys((*means, "loss", "gradient_norm"), math.nan)
        means = unknown | {"learning_rate": means["learning_rate"]}
    return means | ({"skipped_steps": steps - sound} if steps > sound else {})
