"""Larger batches: advice on how to change a recipe, by rules from the literature, and time and price by arithmetic.

The source of each rule is stated. Test the advice with a short run: the rules may not fit a recipe.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from bert_jax.catalogue import name_of
from bert_jax.planning.plan import PhasePlan, Plan
from bert_jax.training.chips import Chip
from bert_jax.training.experiment import Experiment
from bert_jax.training.optimizers import adamw
from bert_jax.training.optimizers import lamb as lambs

RULE = "computation grows with the batch, communication does not"  # for time and price

# Rules for LAMB: the peak rate is proportional to the square root of the batch size, and the warm-up's share of the
# steps is proportional to the batch size. Source: You et al. 2020, "Large Batch Optimization for Deep Learning:
# Training BERT in 76 minutes", who trained BERT-large by these rules with batches of 512 to 32,768, without tuning.
# The starting point is google-research/albert, README.md, "Pre-training Instructions": batch 4,096, rate 0.00176
# (5 / (2^1.5 x 1000)), warm-up of 3,125 of 125,000 steps.
LAMB_AT, LAMB_RATE, LAMB_WARMUP = 4096, 5 / (2**1.5 * 1e3), 1 / 40
_LAMB_RANGE = (512, 32_768)
_LAMB_FROM = 1024  # up to this batch size (4 x BERT's) the recipe's optimizer is kept; our own choice


@dataclasses.dataclass(frozen=True)
class Advice:
    """Advice for one phase with a larger batch.

    Attributes:
      warmup_steps: the warm-up at the beginning of the phase. If 0, the rate goes on from the end of the phase before.
      b1, b2, eps: settings of ``config.optimizer``. If None, the recipe's value is kept.
    """

    phase: str
    batch_size: int
    num_steps: int
    optimizer: str
    learning_rate: float
    warmup_steps: int
    rule: str
    b1: float | None = None
    b2: float | None = None
    eps: float | None = None


def suggested_factor(experiment: Experiment, chip: Chip, num_devices: int) -> int:
    """Return the factor by which batches must grow so that devices compute at least as long as they communicate.

    The factor is a power of two. With data parallelism, and gradients of matrices summed in bfloat16, each device needs
    a batch of (peak FLOP/s / bandwidth of one ring-shaped axis) positions (jax-ml/scaling-book, training.md, "Data
    Parallelism": 2,550 on v5p).
    """
    first = experiment.phases.phases[0]
    positions = max(chip.matrix_flops.values()) / chip.axis_bandwidth
    wanted = positions * num_devices / (first.batch_size * first.max_length)
    return 2 ** max(0, math.ceil(math.log2(wanted)))


def advise(experiment: Experiment, factor: int) -> list[Advice]:
    """Return advice for every phase on multiplying the batch size by ``factor`` and dividing the steps by ``factor``.

    The total number of rows does not change.
    """
    return [_of_phase(experiment, index, factor) for index in range(len(experiment.phases.phases))]


def _of_phase(experiment: Experiment, index: int, factor: int) -> Advice:
    phase, schedule = experiment.phases.phases[index], experiment.schedule
    batch, steps = phase.batch_size * factor, max(1, round(phase.num_steps / factor))
    adam, rate = experiment.optimizer, schedule.peak_learning_rate
    name = name_of(type(adam).__module__)
    warmup = round(schedule.warmup(experiment.phases.num_steps) / factor) if index == 0 else 0
    if factor == 1:
        return Advice(phase.kind, batch, steps, name, rate, warmup, "the recipe's own")
    if not isinstance(adam, adamw.Optimizer):
        return Advice(phase.kind, batch, steps, name, rate, warmup, "no rule is known for this optimizer: try rates")
    if batch > _LAMB_FROM:
        rate, share = lamb(batch)
        rule = "rate by the root of the batch, warm-up by the batch (You et al. 2020), from those of ALBERT at 4,096"
        if batch > _LAMB_RANGE[1]:
            rule += "; held at those for 32,768, the largest batch the rules were tried with"
        return Advice(phase.kind, batch, steps, "lamb", rate, round(share * steps), rule)
    rate *= math.sqrt(factor)
    if isinstance(adam, lambs.Optimizer):
        rule = "rate by the root of the batch (You et al. 2020), warm-up over as many rows"
        return Advice(phase.kind, batch, steps, name, rate, warmup, rule)
    rule = "rate, betas and epsilon by the root of the batch (Malladi et al. 2022), warm-up over as many rows"
    return Advice(phase.kind, batch, steps, name, rate, warmup, rule, *_betas(adam, factor))


def _betas(adam: adamw.Optimizer, factor: int) -> tuple[float | None, float | None, float | None]:
    """Return (b1, b2, eps) of Adam for a batch ``factor`` times as large, each None if the rule gives a negative beta.

    This is the square root scaling rule of Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient
    Algorithms": the moments average over as many rows as before.
    """
    b1, b2 = 1 - factor * (1 - adam.b1), 1 - factor * (1 - adam.b2)
    if min(b1, b2) < 0:
        return None, None, None
    return round(b1, 9), round(b2, 9), adam.eps / math.sqrt(factor)


def lamb(batch: int) -> tuple[float, float]:
    """Return (peak rate, share of the steps that warm up) for a batch size.

    The batch size is first clipped to ``_LAMB_RANGE``.
    """
    times = min(max(batch, _LAMB_RANGE[0]), _LAMB_RANGE[1]) / LAMB_AT
    return LAMB_RATE * math.sqrt(times), LAMB_WARMUP * times


CAVEATS = (
    "These are rules of thumb; a short trial of two or three rates is worth its price.",
    "The rate grows with the root of the batch, not in proportion: the linear rule (Goyal et al. 2017) is one for SGD "
    "(Malladi et al. 2022).",
    "Beyond a critical batch more rows a step save ever fewer steps (McCandlish et al. 2018; Shallue et al. 2019), and "
    "as many rows no longer reach the same loss: compare held-out losses by rows seen, not by steps. The critical "
    "batch grows while the loss falls, so the later phase bears the larger one.",
    "LAMB or AdamW is disputed for large batches: with AdamW You et al. 2020 no longer reached their target at about "
    '16,384; Nado et al. 2021 ("A Large Batch Optimizer Reality Check") found tuned Adam as good as LAMB.',
    "With LAMB each phase warms up again (You et al. 2020, mixed-batch training). A recipe has one clock for all its "
    "phases: make the later phase a run of its own, with --init=WORKDIR of the first.",
)


class LargerBatch(NamedTuple):
    """The ``plan`` of a run with the same number of rows in batches ``factor`` times as large, computed by arithmetic.

    Attributes:
      micro_batches: the number by phase with which the activations fit into memory, by arithmetic; None if none does.
    """

    factor: int
    plan: Plan
    micro_batches: dict[str, int | None]


def larger_batches(plan: Plan, factor: int, whole_batches: bool = False) -> list[LargerBatch]:
    """Return estimates for batches of 1, 2, 4 ... ``factor`` times the size, from the compiled steps of ``plan``.

    The time of a step's computation grows with the batch; the time of its communication does not.

    Args:
      whole_batches: whether the objective reads whole batches, which allows no micro-batches.
    """
    factors = [2**level for level in range(factor.bit_length()) if 2**level < factor]
    return [_larger(plan, number, whole_batches) for number in (*factors, factor)]


def _larger(plan: Plan, factor: int, whole: bool) -> LargerBatch:
    micro_batches = {phase.phase.kind: _micro_batches(phase, plan, factor, whole) for phase in plan.phases}
    phases = tuple(_phase(phase, factor) for phase in plan.phases)
    every = max(1, round(plan.save_every_steps / factor))
    return LargerBatch(factor, dataclasses.replace(plan, phases=phases, save_every_steps=every), micro_batches)


def _phase(planned: PhasePlan, factor: int) -> PhasePlan:
    of, prediction = planned.phase, planned.prediction
    steps = max(1, round(of.num_steps / factor))
    phase = dataclasses.replace(of, batch_size=of.batch_size * factor, num_steps=steps)
    if prediction is not None:
        seconds = factor * (prediction.seconds - prediction.exposed_seconds) + prediction.exposed_seconds
        prediction = dataclasses.replace(prediction, seconds=seconds)
    return dataclasses.replace(planned, phase=phase, prediction=prediction)


def _micro_batches(planned: PhasePlan, plan: Plan, factor: int, whole: bool) -> int | None:
    memory = planned.compiled.memory
    of_rows = planned.compiled.needed_bytes - memory.state  # at most this grows with the rows that are computed at once
    rows = planned.phase.batch_size * factor // (plan.mesh["data"] * plan.mesh["fsdp"])
    number = planned.micro_batches
    while memory.state + of_rows * factor * planned.micro_batches / number > plan.chip.memory_bytes:
        number *= 2
        if whole or rows % number:
            return None
    return number
