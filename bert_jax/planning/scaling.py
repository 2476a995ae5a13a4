"""What to change in a recipe when the machine, and with it the batch, grows: rules of the literature, each with its
source. None of them replaces a trial."""

from __future__ import annotations

import dataclasses
import math

from bert_jax.planning.chips import Chip
from bert_jax.training.loop import Experiment

# You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", table 4 (BERT-large with
# LAMB, untuned): sequences of a batch -> (peak rate, share of the steps that warm up). The rate grows with the root of
# the batch, the share with the batch.
LAMB_TABLE = {
    512: (5 / (2**3.0 * 1e3), 1 / 320),
    1024: (5 / (2**2.5 * 1e3), 1 / 160),
    2048: (5 / (2**2.0 * 1e3), 1 / 80),
    4096: (5 / (2**1.5 * 1e3), 1 / 40),
    8192: (5 / (2**1.0 * 1e3), 1 / 20),
    16384: (5 / (2**0.5 * 1e3), 1 / 10),
    32768: (5 / 1e3, 1 / 5),
}
LAMB_FROM = 1024  # sequences a batch: up to here the published AdamW, beyond it LAMB


@dataclasses.dataclass(frozen=True)
class Advice:
    """Of one phase at a larger batch. ``warmup_steps``: at its beginning; 0 goes on where the last one ended."""

    phase: str
    batch_size: int
    num_steps: int
    optimizer: str
    learning_rate: float
    warmup_steps: int
    rule: str


def suggested_factor(experiment: Experiment, chip: Chip, num_devices: int) -> int:
    """By how much, a power of two, the batches would grow for devices to compute at least as long as they communicate.

    With data parallelism that takes peak FLOP/s over link bandwidth (both ways) positions a device
    (jax-ml/scaling-book, training.md, "data parallelism": 2,550 on v5p).
    """
    first = experiment.phases.phases[0]
    positions = max(chip.matrix_flops.values()) / (2 * chip.link_bandwidth)
    wanted = positions * num_devices / (first.batch_size * first.max_length)
    return 2 ** max(0, math.ceil(math.log2(wanted)))


def advise(experiment: Experiment, factor: int) -> list[Advice]:
    """Every phase with ``factor`` times the rows a batch and as many fewer steps, so that as many rows are seen."""
    return [_of_phase(experiment, index, factor) for index in range(len(experiment.phases.phases))]


def _of_phase(experiment: Experiment, index: int, factor: int) -> Advice:
    phase, schedule = experiment.phases.phases[index], experiment.schedule
    batch, steps = phase.batch_size * factor, max(1, round(phase.num_steps / factor))
    warmup = round(schedule.warmup_steps / factor) if index == 0 else 0
    if batch > LAMB_FROM:
        rate, share = lamb(batch)
        warmup = round(share * steps)
        rule = "LAMB, rate as the root of the batch and warm-up as the batch (You et al. 2020, table 4)"
        if batch > max(LAMB_TABLE):
            rule += "; beyond its largest batch, 32,768, so the table's end is given"
        return Advice(phase.kind, batch, steps, "lamb", rate, warmup, rule)
    rate = schedule.peak_learning_rate * math.sqrt(factor)
    rule = "the recipe's own" if factor == 1 else "rate as the root of the batch (Krizhevsky 2014; Malladi et al. 2022)"
    return Advice(phase.kind, batch, steps, experiment.optimizer.kind, rate, warmup, rule)


def lamb(batch: int) -> tuple[float, float]:
    """(peak rate, share of warm-up) of the table, between its rows by its own two rules; its ends beyond them."""
    batch = min(max(batch, min(LAMB_TABLE)), max(LAMB_TABLE))
    below = max(size for size in LAMB_TABLE if size <= batch)
    rate, share = LAMB_TABLE[below]
    return rate * math.sqrt(batch / below), share * batch / below


CAVEATS = (
    "Linear scaling of the rate (Goyal et al. 2017) is derived for SGD; for Adam and LAMB the root is the safer rule "
    "(Malladi et al. 2022).",
    "Beyond a critical batch more rows a step save ever fewer steps (McCandlish et al. 2018; Shallue et al. 2019); it "
    "grows while the loss falls, so the later phase bears the larger batch. Fewer steps are then no longer enough: "
    "watch the held-out loss by rows seen, not by steps.",
    "LAMB's advantage has been disputed: a tuned AdamW reached the same at 32,768 (Nado et al. 2021, \"A Large Batch "
    'Optimizer Reality Check").',
    "With LAMB every phase warms up again (You et al. 2020, section 4.1, mixed batches). A recipe has one clock for "
    "all its phases: make the later phase a run of its own, with --init=WORKDIR of the first.",
)
