"""Predicts how long a step takes, from the compiled program and the peak rates of a chip."""

from __future__ import annotations

import dataclasses
import re

from bert_jax.planning import collectives, costs
from bert_jax.planning.collectives import Collective, Fabric
from bert_jax.planning.costs import Cost
from bert_jax.planning.hlo import Computation, Instruction, Module
from bert_jax.training.chips import Chip

_ASYNC_COPIES = ("copy-start", "slice-start")


@dataclasses.dataclass
class Clock:
    """The simulated time on one device as its program is walked through in the order of the schedule.

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

    now: float = 0.0
    network: float = 0.0
    memory: float = 0.0
    work: Cost = dataclasses.field(default_factory=Cost)
    compute: float = 0.0
    bound: dict[str, float] = dataclasses.field(default_factory=dict)
    exposed: float = 0.0
    collectives: list[tuple[Collective, float]] = dataclasses.field(default_factory=list)
    ends: dict[str, tuple[float, bool]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted seconds of one step on one device, and how they are spent."""

    seconds: float
    compute_seconds: float
    exposed_seconds: float
    bound: dict[str, float]  # what limits the computation ("products", "elementwise", "memory") -> seconds
    products: float  # FLOPs of matrix products
    elementwise: float
    bytes: float
    collectives: tuple[collectives.CollectiveTotal, ...]

    @property
    def intensity(self) -> float:
        """Return the number of FLOPs for each byte of main memory read or written."""
        return (self.products + self.elementwise) / max(self.bytes, 1.0)


def predict(module: Module, on: Fabric) -> Prediction:
    """Return the prediction for a program, by walking through it once.

    A fusion takes max(products / peak, elementwise / peak, bytes / bandwidth). An asynchronous collective or copy runs
    at the same time as the instructions between its start and its end; at its end, the program waits until it is
    complete.
    """
    clock = Clock()
    _walk(module, module.entry, on, clock, 1.0)
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


def seconds_of(cost: Cost, chip: Chip) -> dict[str, float]:
    """Return the seconds that a cost takes at each peak rate of a chip, if that rate were the only limit."""
    products = sum(flops / chip.matrix_flops[dtype] for dtype, flops in cost.products.items())
    slow = cost.transcendentals if chip.transcendentals else 0.0
    elementwise = (cost.elementwise - slow) / chip.vector_ops if chip.vector_ops else 0.0
    elementwise += slow / chip.transcendentals if chip.transcendentals else 0.0
    return {"products": products, "elementwise": elementwise, "memory": cost.bytes / chip.memory_bandwidth}


def _walk(module: Module, computation: Computation, on: Fabric, clock: Clock, times: float) -> None:
    """Advance the clock over a computation, which runs ``times`` times in a step."""
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            _loop(module, instruction, on, clock, times)
        elif instruction.opcode in ("call", "conditional"):
            for name in _branches(instruction):
                _walk(module, module.computations[name], on, clock, times)
        elif instruction.opcode in _ASYNC_COPIES:
            _copy(module, computation, instruction, on.chip, clock, times)
        elif instruction.opcode.endswith("-done") or instruction.name.startswith("async-collective-done"):
            _wait(computation, instruction, clock)
        elif found := collectives.within(module, computation, instruction):
            _communicate(module, computation, instruction, found, on, clock, times)
        else:
            _compute(costs.cost(module, computation, instruction), on.chip, clock, times)


def _compute(cost: Cost, chip: Chip, clock: Clock, times: float) -> None:
    needed = seconds_of(cost, chip)
    limit = max(needed, key=lambda name: needed[name])
    if needed[limit]:
        clock.now += times * needed[limit]
        clock.compute += times * needed[limit]
        clock.bound[limit] = clock.bound.get(limit, 0.0) + times * needed[limit]
    clock.work += cost * times


def _communicate(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    found: list[tuple[Computation, Instruction]],
    on: Fabric,
    clock: Clock,
    times: float,
) -> None:
    sent = [collectives.measured(where, inner, on) for where, inner in found]
    clock.collectives += [(collective, times) for collective in sent]
    if instruction.opcode == "fusion":
        _compute(costs.cost(module, computation, instruction), on.chip, clock, times)
    begins = max(clock.now, clock.network)
    clock.network = begins + times * sum(collective.seconds for collective in sent)
    if instruction.opcode.endswith("-start") or instruction.name.startswith("async-collective-start"):
        clock.ends[instruction.name] = (clock.network, True)
    else:
        clock.exposed += clock.network - clock.now
        clock.now = clock.network


def _copy(
    module: Module, computation: Computation, instruction: Instruction, chip: Chip, clock: Clock, times: float
) -> None:
    cost = costs.cost(module, computation, instruction)
    clock.work += cost * times
    clock.memory = max(clock.now, clock.memory) + times * cost.bytes / chip.memory_bandwidth
    clock.ends[instruction.name] = (clock.memory, False)


def _wait(computation: Computation, instruction: Instruction, clock: Clock) -> None:
    """Advance ``clock`` to the end of the asynchronous operation that ``instruction`` waits for."""
    for name in dict.fromkeys(collectives.start_of(computation, operand) for operand in instruction.operands):
        end, is_network = clock.ends.pop(name, (0.0, False))
        if end > clock.now:
            if is_network:
                clock.exposed += end - clock.now
            else:
                clock.compute += end - clock.now
                clock.bound["memory"] = clock.bound.get("memory", 0.0) + end - clock.now
            clock.now = end


def _loop(module: Module, instruction: Instruction, on: Fabric, clock: Clock, times: float) -> None:
    body = module.computations[instruction.computation("body")]
    _walk(module, body, on, clock, times * trips(module, instruction))


def trips(module: Module, instruction: Instruction) -> int:
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


def _branches(instruction: Instruction) -> list[str]:
    """Return the computation that a call runs, or the first branch of a conditional, as a list of names."""
    for attribute in ("to_apply", "branch_computations", "true_computation"):
        if text := instruction.attribute(attribute):
            return [re.findall(r"%?([\w.\-]+)", text)[0]]
    return []
