"""Predicts how long a step takes, from the compiled program and the peak rates of a chip."""

from __future__ import annotations

import dataclasses
import re

from bert_jax.planning import collectives, costs
from bert_jax.planning.collectives import Collective, Fabric
from bert_jax.planning.costs import Cost
from bert_jax.planning.hlo import Computation, Instruction, Module
from bert_jax.training.chips import Chip


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted seconds of one step on one device, and how they are spent."""

    seconds: float
    compute_seconds: float
    exposed_seconds: float
    bound: dict[str, float]  # what limits it ("products", "elementwise", "memory", "kernel starts") -> seconds
    products: float  # FLOPs of matrix products
    elementwise: float
    bytes: float
    collectives: tuple[Collective, ...]

    @property
    def intensity(self) -> float:
        """Return the number of FLOPs for each byte of main memory read or written."""
        return (self.products + self.elementwise) / max(self.bytes, 1.0)


def predict(module: Module, on: Fabric) -> Prediction:
    """Return the prediction for a program, by walking through it once.

    A fusion takes max(products / peak, elementwise / peak, bytes / bandwidth). On a GPU, where rates that were reached
    are known, products and elementwise work of a kernel wait for each other, and each kernel takes time to start. An
    asynchronous collective or copy runs at the same time as the instructions between its start and its end; at its end,
    the program waits until it is complete.
    """
    clock = _Clock(module, on)
    clock.walk(module.entry, 1.0)
    return Prediction(
        clock.now,
        clock.compute,
        clock.exposed,
        clock.bound,
        sum(clock.work.products.values()),
        clock.work.elementwise,
        clock.work.bytes,
        tuple(collectives.table(clock.collectives)),
    )


def _limits(cost: Cost, chip: Chip) -> dict[str, float]:
    """Return what limits an instruction -> seconds, which add up to the time that it takes."""
    reached = chip.reached
    products = sum(flops / chip.matrix_flops[dtype] for dtype, flops in cost.products.items()) / reached.products
    slow = cost.transcendentals if chip.transcendentals else 0.0
    elementwise = (cost.elementwise - slow) / chip.vector_ops if chip.vector_ops else 0.0
    elementwise += slow / chip.transcendentals if chip.transcendentals else 0.0
    elementwise /= reached.elementwise
    memory = cost.bytes / _bandwidth(chip)
    if not reached.kernel_seconds:
        seconds = {"products": products, "elementwise": elementwise, "memory": memory}
        limit = max(seconds, key=lambda name: seconds[name])
        return {limit: seconds[limit]}
    computing = {"products": products, "elementwise": elementwise}
    limits = computing if products + elementwise > memory else {"memory": memory}
    return {**limits, "kernel starts": reached.kernel_seconds} if any(limits.values()) else {}


def _bandwidth(chip: Chip) -> float:
    return chip.memory_bandwidth * chip.reached.memory


@dataclasses.dataclass
class _Clock:
    """The simulated time on one device as a program is walked through in the order of its schedule.

    Attributes:
      now: seconds since the step began.
      network: the time at which the network links are free again.
      memory: the time at which all asynchronous memory copies so far are complete.
      work: the cost of all instructions so far.
      compute: seconds of computation.
      bound: the same seconds, broken down by what limits the computation.
      exposed: seconds in which only communication ran.
      ends: for each asynchronous operation, its end and whether it is communication.
    """

    module: Module
    on: Fabric
    now: float = 0.0
    network: float = 0.0
    memory: float = 0.0
    work: Cost = dataclasses.field(default_factory=Cost)
    compute: float = 0.0
    bound: dict[str, float] = dataclasses.field(default_factory=dict)
    exposed: float = 0.0
    collectives: list[tuple[Collective, float]] = dataclasses.field(default_factory=list)
    ends: dict[str, tuple[float, bool]] = dataclasses.field(default_factory=dict)

    def walk(self, computation: Computation, times: float) -> None:
        """Advance over a computation, which runs ``times`` times in a step."""
        for instruction in computation.instructions:
            if instruction.opcode == "while":
                body = self.module.computations[instruction.computation("body")]
                self.walk(body, times * _trips(self.module, instruction))
            elif instruction.opcode in ("call", "conditional"):
                if callee := self.module.callee(instruction):
                    self.walk(callee, times)
            elif instruction.opcode.endswith("-done") or instruction.name.startswith("async-collective-done"):
                self._wait(computation, instruction)
            elif sends := collectives.within(self.module, computation, instruction):
                self._communicate(computation, instruction, sends, times)
            elif instruction.opcode in costs.ASYNC_COPIES:
                self._copy(costs.cost(self.module, computation, instruction), instruction.name, times)
            else:
                self._compute(costs.cost(self.module, computation, instruction), times)

    def _compute(self, cost: Cost, times: float) -> None:
        for limit, seconds in _limits(cost, self.on.chip).items():
            self._busy(limit, times * seconds)
        self.work += cost * times

    def _busy(self, limit: str, seconds: float) -> None:
        if seconds:
            self.now += seconds
            self.compute += seconds
            self.bound[limit] = self.bound.get(limit, 0.0) + seconds

    def _communicate(
        self,
        computation: Computation,
        instruction: Instruction,
        sends: list[tuple[Computation, Instruction]],
        times: float,
    ) -> None:
        sent = [collectives.collective_of(where, inner, self.on) for where, inner in sends]
        self.collectives += [(collective, times) for collective in sent]
        if instruction.opcode == "fusion":
            self._compute(costs.cost(self.module, computation, instruction), times)
        begins = max(self.now, self.network)
        self.network = begins + times * sum(collective.seconds for collective in sent)
        if instruction.opcode.endswith("-start") or instruction.name.startswith("async-collective-start"):
            self.ends[instruction.name] = (self.network, True)
        else:
            self.exposed += self.network - self.now
            self.now = self.network

    def _copy(self, cost: Cost, name: str, times: float) -> None:
        self.work += cost * times
        self.memory = max(self.now, self.memory) + times * cost.bytes / _bandwidth(self.on.chip)
        self.ends[name] = (self.memory, False)

    def _wait(self, computation: Computation, instruction: Instruction) -> None:
        """Advance to the end of the asynchronous operation that ``instruction`` waits for."""
        for name in dict.fromkeys(collectives.start_of(computation, operand) for operand in instruction.operands):
            end, is_network = self.ends.pop(name, (0.0, False))
            if end <= self.now:
                continue
            if is_network:
                self.exposed += end - self.now
                self.now = end
            else:
                self._busy("memory", end - self.now)


def _trips(module: Module, instruction: Instruction) -> int:
    """Return how many times the body of a loop runs.

    The number is the loop's annotation, or the constant that the loop's counter is compared with; 1 if both are
    unknown.
    """
    if match := re.search(r'known_trip_count[^}]*?"?n"?\s*[:=]\s*"?(\d+)', instruction.attributes):
        return int(match[1])
    condition = module.computations[instruction.computation("condition")]
    constants = [i for i in condition.instructions if i.opcode == "constant" and i.shape.startswith(("s", "u"))]
    whole = [i.operand_text for i in constants]
    return max((int(text) for text in whole if text.lstrip("-").isdigit()), default=1)
