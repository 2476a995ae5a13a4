"""Predicts how long a step takes, from the compiled program and the rates of a chip."""

from __future__ import annotations

import collections
import dataclasses
import re

from bert_jax.planning.chips import Chip
from bert_jax.planning.collectives import Collective, Fabric, collective_of, collectives_in, start_of, total_collectives
from bert_jax.planning.costs import ASYNC_COPIES, Cost, cost_of
from bert_jax.planning.hlo import Computation, Instruction


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted seconds of one step on one device, and how they are spent."""

    seconds: float
    compute_seconds: float
    exposed_seconds: float
    bound: dict[str, float]  # limit ("products", "elementwise", "memory", "kernel starts") -> seconds
    products: float  # FLOPs of matrix products
    elementwise: float
    bytes: float
    collectives: tuple[Collective, ...]

    @property
    def intensity(self) -> float:
        """Return the number of FLOPs for each byte of main memory read or written."""
        return (self.products + self.elementwise) / max(self.bytes, 1.0)


def predict(program: Computation, on: Fabric) -> Prediction:
    """Return the prediction for a program, by walking through it once in the order of its schedule.

    An asynchronous collective or copy runs at the same time as the instructions between its start and its end; at its
    end, the program waits until it is complete.
    """
    step = _Step(on)
    step.walk(program, 1.0)
    compute, work = sum(step.bound.values()), step.work
    return Prediction(
        compute + step.exposed,
        compute,
        step.exposed,
        dict(step.bound),
        work.products,
        work.elementwise,
        work.bytes,
        tuple(total_collectives(step.collectives)),
    )


def seconds_of(work: Cost, chip: Chip) -> dict[str, float]:
    """Return limit of an instruction -> seconds, which add up to the time that the instruction takes.

    A TPU reads the next block from memory while it computes, so the slowest counts alone. On GPUs and CPUs the sum was
    nearer to the measured time of steps (README.md, "Two ways to count").
    """
    reached, elementwise = chip.reached, 0.0
    if chip.vector_ops:
        elementwise = (work.elementwise - work.transcendentals) / chip.vector_ops
        elementwise += work.transcendentals / (chip.transcendentals or chip.vector_ops)
    seconds = {
        "products": (work.bf16 / chip.matrix_flops["bf16"] + work.f32 / chip.matrix_flops["f32"]) / reached.products,
        "elementwise": elementwise,
        "memory": work.bytes / (chip.memory_bandwidth * reached.memory),
    }
    limits = {limit: each for limit, each in seconds.items() if each}
    if chip.platform == "tpu" and limits:
        slowest = max(limits, key=limits.__getitem__)
        return {slowest: limits[slowest]}
    return {**limits, "kernel starts": reached.kernel_seconds} if limits and reached.kernel_seconds else limits


class _Step:
    """The state of a walk through a program: one device's step so far.

    Attributes:
      work: the cost of all instructions so far.
      bound: limit -> the seconds of computation so far.
      exposed: seconds in which only communication ran.
      free: the times at which the network links and the asynchronous copies are free again.
      ends: the name of a start -> (the time at which the operation is complete, "network" or "memory").
    """

    def __init__(self, on: Fabric) -> None:
        self.on, self.work, self.exposed = on, Cost(), 0.0
        self.bound: dict[str, float] = collections.defaultdict(float)
        self.collectives: list[tuple[Collective, float]] = []
        self.free = {"network": 0.0, "memory": 0.0}
        self.ends: dict[str, tuple[float, str]] = {}

    @property
    def now(self) -> float:
        return sum(self.bound.values()) + self.exposed

    def walk(self, computation: Computation, times: float) -> None:
        """Advance over a computation, which runs ``times`` times in a step."""
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode == "while":
                self.walk(instruction.calls["body"], times * _trips(instruction))
            elif opcode in ("call", "conditional"):
                if instruction.called is not None:
                    self.walk(instruction.called, times)
            elif opcode.endswith("-done") or instruction.name.startswith("async-collective-done"):
                for start in map(start_of, instruction.operands):
                    self._wait(*self.ends.pop(start.name, (0.0, "memory")))
            else:
                self._run(instruction, times)

    def _run(self, instruction: Instruction, times: float) -> None:
        sent = [collective_of(inner, self.on) for inner in collectives_in(instruction)]
        if not sent or instruction.opcode == "fusion":
            work = cost_of(instruction)
            self.work = self.work.plus(work, times)
            limits = seconds_of(work, self.on.chip)
            if instruction.opcode in ASYNC_COPIES:
                self._begin("memory", times * limits.get("memory", 0.0), instruction.name)
                return
            for limit, seconds in limits.items():
                self.bound[limit] += times * seconds
        if sent:
            self.collectives += [(collective, times) for collective in sent]
            self._begin("network", times * sum(collective.seconds for collective in sent), instruction.name)
            if not (instruction.opcode.endswith("-start") or instruction.name.startswith("async-collective-start")):
                self._wait(*self.ends.pop(instruction.name))

    def _begin(self, lane: str, seconds: float, name: str) -> None:
        self.free[lane] = max(self.now, self.free[lane]) + seconds
        self.ends[name] = self.free[lane], lane

    def _wait(self, end: float, lane: str) -> None:
        seconds = max(0.0, end - self.now)
        if lane == "network":
            self.exposed += seconds
        else:
            self.bound[lane] += seconds


def _trips(loop: Instruction) -> int:
    """Return how many times the body of a loop runs.

    The number is the loop's annotation, or the constant that the loop's counter is compared with; 1 if both are
    unknown.
    """
    if match := re.search(r'known_trip_count[^}]*?"?n"?\s*[:=]\s*"?(\d+)', loop.attributes):
        return int(match[1])
    constants = [i for i in loop.calls["condition"].instructions if i.opcode == "constant"]
    whole = [i.text for i in constants if i.shape.startswith(("s", "u")) and i.text.lstrip("-").isdigit()]
    return max(map(int, whole), default=1)
