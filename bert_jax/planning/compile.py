"""Compiles exactly the train step of a run, from array shapes alone, for devices that need not be present."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from typing import Any

import jax

from bert_jax.rows.phases import Phase, Phases
from bert_jax.task import Task
from bert_jax.training import lanes
from bert_jax.training import mesh as meshes
from bert_jax.training.experiment import Experiment

# By default CUB sorts 16,384 numbers and more, and XLA asks a card how much memory the sort takes. No card is here.
_WITHOUT_CARD = {"xla_gpu_enable_cub_radix_sort": False}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
    """The bytes of each device's memory while a step runs, by use. The new state takes the place of the old state.

    Attributes:
      carried: what a batch hands on to the next (``BatchTask.memory``).
      temporaries: activations, gradients and everything else that lives only within a step; the compiler reuses their
        space.
      padding: the bytes that the layout of the arguments adds to the bytes of their elements.
      outputs: the bytes of results that do not take the place of an argument.
    """

    parameters: int
    optimizer: int
    frozen: int
    batch: int
    carried: int = 0
    padding: int = 0
    temporaries: int = 0
    outputs: int = 0
    program: int = 0

    @property
    def state(self) -> int:
        """Return the bytes that stay in memory from step to step."""
        return self.parameters + self.optimizer + self.frozen + self.carried

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiled train step of a phase.

    Attributes:
      text: the optimized program; "" if the compiler gave up for lack of memory.
      split: whether parameters are split over the rows' devices, as ``training.sharded_update`` has it.
      refused_bytes: if the compiler gave up, the bytes that it said it would have needed; otherwise 0.
      flops, bytes: the compiler's own analysis, which counts the body of a loop once.
    """

    seconds: float
    memory: Memory
    split: bool
    text: str = ""
    refused_bytes: int = 0
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def needed_bytes(self) -> int:
        return self.refused_bytes or self.memory.total


def costliest_kind(task: Task, phase: Phase) -> str:
    """Return the kind of a phase's batches that takes the most FLOPs a row."""
    kinds = [kind for kind in task.batch_specs if kind.partition("/")[0] == phase.kind]
    return max(kinds, key=task.flops_per_row.__getitem__)


def compile_phase(task: Task, experiment: Experiment, phase: Phase, devices: list[Any]) -> Compiled:
    """Compile the train step of the costliest kind of a phase, just as ``training.loop`` does on real devices."""
    start, kind = time.perf_counter(), costliest_kind(task, phase)
    mesh = experiment.make_mesh(devices)
    initial = experiment.initial_state(task, mesh)
    if own := lanes.of_run(task, Phases((phase,))):  # the phase may be tried with other batches than the run has
        initial = dataclasses.replace(initial, memory=own)
    state, frozen = initial.shapes
    batch = meshes.abstract_batch(task.batch_specs[kind], phase.batch_size, mesh)
    memory = Memory(
        parameters=bytes_of(state.params),
        optimizer=bytes_of(dataclasses.replace(state, params=(), memory={})),
        frozen=bytes_of(frozen),
        batch=bytes_of(batch),
        carried=bytes_of(state.memory),
    )
    split = meshes.is_split(state.params)
    with meshes.activations(mesh), jax.default_device(devices[0] if devices[0].platform == "gpu" else None):
        # Pallas kernels ask the default device for which GPU they are compiled.
        lowered = experiment.jitted_step(task, kind, phase, state).lower(state, frozen, batch)
        try:
            program = lowered.compile(_WITHOUT_CARD if devices[0].platform == "gpu" else None)
        except jax.errors.JaxRuntimeError as error:
            refused = out_of_memory(str(error), memory.total)
            if refused is None:
                raise
            return Compiled(time.perf_counter() - start, memory, split, refused_bytes=refused)
    seconds, stats, analysis = time.perf_counter() - start, program.memory_analysis(), program.cost_analysis() or {}
    if stats is not None:
        memory = dataclasses.replace(
            memory,
            padding=max(0, stats.argument_size_in_bytes - memory.state - memory.batch),
            temporaries=stats.temp_size_in_bytes,
            outputs=max(0, stats.output_size_in_bytes - stats.alias_size_in_bytes),
            program=stats.generated_code_size_in_bytes,
        )
    flops, moved = float(analysis.get("flops", 0.0)), float(analysis.get("bytes accessed", 0.0))
    return Compiled(seconds, memory, split, program.as_text(), flops=flops, bytes=moved)


def bytes_of(tree: Any) -> int:
    """Return the bytes that one device holds of a tree of abstract arrays."""
    leaves = jax.tree.leaves(tree)
    return sum(int(leaf.dtype.itemsize) * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves)


def out_of_memory(message: str, arguments: int = 0) -> int | None:
    """Return the bytes that a program would need, as the compiler says when they exceed the memory.

    Return 1 if the message says only that there is too little memory, and None if it is about any other failure.

    Args:
      message: the text of the compiler's error.
      arguments: the bytes of the arguments, which the compiler does not count as temporaries.
    """
    if "RESOURCE_EXHAUSTED" not in message and "out of memory" not in message.lower():
        return None
    for pattern, beside in ((r"temporaries \(([\d.]+)([KMGT]?)", arguments), (r"[Uu]sed ([\d.]+)([KMGT]?)i?B? of", 0)):
        if found := re.search(pattern, message):
            return int(float(found[1]) * _UNITS[found[2]]) + beside
    return 1
