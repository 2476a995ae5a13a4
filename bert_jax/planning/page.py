"""Formats a plan as lines of text and as a record for ``--json``, and says which command a user may type next."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.planning.collectives import Collective
from bert_jax.planning.compile import Compiled
from bert_jax.planning.largest_micro_batch import COMPILATIONS, LargestMicroBatch
from bert_jax.planning.plan import PhasePlan, Plan, in_words
from bert_jax.program import duration, program, size

_LONG = 30 * 86_400  # seconds; a run that takes longer is not what the last line tells to start
_Record = dict[str, Any]

_BOUND = "predictions are lower bounds: the work of the compiled program if the peaks above were always reached"
_ESTIMATE = (
    "predictions are estimates: the work of the compiled program at the shares of the peaks above that were measured"
)


def as_lines(plan: Plan) -> list[str]:
    """Return a plan as lines of text."""
    mesh, number = ", ".join(f"{axis}={size}" for axis, size in plan.mesh.items()), plan.topology.num_devices
    lines = [
        f"{plan.topology.name}: {number} device{'s' * (number != 1)}, mesh {mesh}, "
        f"{in_words(plan.micro_batches)}, remat={plan.remat}",
        _chip(plan),
        _meaning(plan)[0],
    ]
    for phase in plan.phases:
        lines += ["", *_phase(phase, plan)]
    return [*lines, "", *_verdict(plan), *(f"note: {note}" for note in plan.notes)]


def _meaning(plan: Plan) -> tuple[str, str, str]:
    """Return a sentence on predictions, and the words before a predicted time and before a predicted speed.

    A prediction is an estimate for a chip whose steps were measured, and a lower bound for every other chip.
    """
    return (_ESTIMATE, "about", "about") if plan.chip.reached.kernel_seconds else (_BOUND, "at least", "at most")


def _chip(plan: Plan) -> str:
    chip = plan.chip
    rates = ", ".join(f"{name} {flops / 1e12:,.4g}" for name, flops in chip.matrix_flops.items())
    measured = " (measured here, now)" if chip.platform == "cpu" else ""
    return (
        f"peaks of a device{measured}: matrix products {rates} TFLOP/s, memory {size(chip.memory_bytes)} at "
        f"{chip.memory_bandwidth / 1e9:,.4g} GB/s, {chip.link_bandwidth / 1e9:,.4g} GB/s each way over a link"
    )


def _phase(phase: PhasePlan, plan: Plan) -> list[str]:
    compiled, of = phase.compiled, phase.phase
    lines = [
        f"{of.kind}: {of.num_steps:,} steps of {of.batch_size:,} rows x {of.max_length} positions, "
        f"{'refused' if compiled.refused_bytes else 'compiled'} in {compiled.seconds:,.0f} s",
        f"  {'fits' if phase.fits else 'DOES NOT FIT'}: {size(compiled.needed_bytes)} of "
        f"{size(plan.chip.memory_bytes)} a device",
        f"  memory of a device: {_memory(compiled)}",
    ]
    prediction = phase.prediction
    if prediction is None or phase.mfu is None or phase.positions_per_second is None:
        return lines
    bound = ", ".join(f"{name} {1e3 * s:,.2f} ms" for name, s in sorted(prediction.bound.items(), key=lambda b: -b[1]))
    _, least, most = _meaning(plan)
    return [
        *lines,
        f"  work of a device in a step: {prediction.products / 1e9:,.1f} GFLOP of matrix products (by the model's "
        f"shape {phase.model_flops / phase.num_devices / 1e9:,.1f}), {prediction.elementwise / 1e9:,.1f} G elementwise "
        f"operations, {prediction.bytes / 1e9:,.2f} GB of memory read and written, {prediction.intensity:,.0f} "
        "operations a byte",
        *_collectives(prediction.collectives),
        f"  PREDICTED step: {least} {1e3 * prediction.seconds:,.2f} ms = computation "
        f"{1e3 * prediction.compute_seconds:,.2f} ms "
        f"(limited by {bound}) + communication that no computation hides {1e3 * prediction.exposed_seconds:,.2f} ms",
        f"  PREDICTED: {least} {duration(phase.seconds or 0.0)} for the phase; {most} "
        f"{phase.positions_per_second:,.0f} positions/s (padding counts), MFU {100 * phase.mfu:.1f} %",
    ]


def _memory(compiled: Compiled) -> str:
    """Return the bytes of each use in words. A refused program has only the uses that are known without it."""
    uses = dataclasses.asdict(compiled.memory)
    names = {"padding": "padding of these", "temporaries": "activations and other temporaries"}
    names |= {"outputs": "other results", "program": "the program", "carried": "memory of earlier rows"}
    shown = [use for use in uses if uses[use] or use not in ("frozen", "carried")]
    shown = [use for use in shown if use not in names or use == "carried" or not compiled.refused_bytes]
    return ", ".join(f"{names.get(use, use)} {size(uses[use])}" for use in shown)


def _collectives(rows: Iterable[Collective]) -> list[str]:
    lines = [
        f"    {row.kind:<20}{'+'.join(row.axes):<18}{row.count:>6}, together {size(row.bytes):>11}"
        f"  {1e3 * row.seconds:9.3f} ms"
        for row in rows
    ]
    return ["  collectives of a step, by the mesh axes they run over:", *lines] if lines else ["  no collectives"]


def _cost(plan: Plan) -> str:
    """Return time, chip-hours and price of a run that fits."""
    assert plan.training_seconds is not None and plan.chip_hours is not None  # noqa: PT018
    price, least = plan.price_per_chip_hour, _meaning(plan)[1]
    money = "" if plan.money is None else f", {least} {plan.money:,.2f} at {price:g} a chip-hour"
    return f"{least} {duration(plan.training_seconds)}, {least} {plan.chip_hours:,.1f} chip-hours{money}"


def _verdict(plan: Plan) -> list[str]:
    if plan.training_seconds is None:
        return ["verdict: does not fit"]
    return [
        f"PREDICTED for the whole run: {_cost(plan)}",
        "  evaluations, saves, restarts and waiting for input are not counted",
        "verdict: fits" if plan.fits else "verdict: does not fit",
    ]


def smaller_lines(fitting: list[Plan], batches: Mapping[str, int]) -> list[str]:
    """Return the lines about the smallest changes that fit, for a plan that does not fit.

    Args:
      fitting: what ``smallest_change`` returns.
      batches: the batch size of each phase in the recipe.
    """
    if not fitting:
        return ["no smaller batch, more micro_batches, remat or fsdp makes it fit; take a larger topology"]
    heads = ("smallest change that fits", "that changes what is learned; with the same batch")
    return [
        f"{head}: {plan.change.in_words()} ({size(plan.needed_bytes)} a device; PREDICTED: {_cost(plan)}): "
        + " ".join(plan.change.overrides(batches))
        for head, plan in zip(heads, fitting, strict=False)
    ]


def largest_lines(plan: Plan, largest: Mapping[str, LargestMicroBatch] | None) -> list[str]:
    """Return a line for each phase in ``largest``; if that is None, a line that says how to search for it."""
    if largest is None:
        return [
            f"for the largest micro-batch that fits, add --largest_micro_batch (up to {COMPILATIONS} compilations "
            "a phase)"
        ]
    lines = []
    for name, of in largest.items():
        line = f"{name}: the largest micro-batch that fits has {of.rows:,} rows a device, the recipe's {of.own:,}"
        enough = of.micro_batches not in (None, plan.micro_batches[name])
        lines.append(f"{line}: micro_batches={of.micro_batches} is enough" if enough else line)
    return lines


def smaller_record(fitting: list[Plan], batches: Mapping[str, int]) -> _Record:
    """Return the smallest changes that fit as a record for ``--json``."""
    first, *same_batch = fitting
    return {
        "name": first.change.in_words(),
        "flags": first.change.overrides(batches),
        "needed_bytes": first.needed_bytes,
        "predicted_seconds": first.training_seconds,
        "same_batch": same_batch[0].change.overrides(batches) if same_batch else None,
    }


def as_record(plan: Plan) -> _Record:
    """Return the plan as a record for ``--json``: bytes, seconds and FLOPs are plain numbers."""
    return {
        "topology": plan.topology.name,
        "devices": plan.topology.num_devices,
        "mesh": plan.mesh,
        "micro_batches": plan.micro_batches,
        "remat": plan.remat,
        "fits": plan.fits,
        "chip": dataclasses.asdict(plan.chip),
        "prediction": _meaning(plan)[0],
        "phases": [_phase_record(phase) for phase in plan.phases],
        "predicted_seconds": plan.training_seconds,
        "predicted_chip_hours": plan.chip_hours,
        "predicted_price": plan.money,
        "notes": list(plan.notes),
    }


def _phase_record(phase: PhasePlan) -> _Record:
    of, compiled = phase.phase, phase.compiled
    return {
        "phase": of.kind,
        "num_steps": of.num_steps,
        "batch_size": of.batch_size,
        "max_length": of.max_length,
        "micro_batches": phase.micro_batches,
        "fits": phase.fits,
        "compile_seconds": compiled.seconds,
        "needed_bytes": compiled.needed_bytes,
        "memory": dataclasses.asdict(compiled.memory),
        "model_flops": phase.model_flops,
        "compiler_flops": compiled.flops,
        "compiler_bytes": compiled.bytes,
        "refused": bool(compiled.refused_bytes),
        "predicted": None if phase.prediction is None else dataclasses.asdict(phase.prediction),
        "predicted_positions_per_second": phase.positions_per_second,
        "predicted_mfu": phase.mfu,
        "predicted_phase_seconds": phase.seconds,
    }


def next_command(plan: Plan, recipe: Sequence[str], name: str) -> str:
    """Return the line with the next command: the run itself, or the plan of a larger machine.

    A larger machine is next if the run does not fit, or takes longer than ``_LONG``.

    Args:
      recipe: the flags that name the recipe and change it to the planned recipe.
      name: a name for the run.
    """
    topology = plan.topology
    is_long = (plan.training_seconds or 0) > _LONG
    if is_long or not plan.fits:
        larger = ("h100:1" if is_long and plan.chip.platform == "cpu" else topology.next_larger()) or "KIND:SHAPE"
        why = f" or a smaller recipe, for {duration(plan.training_seconds)} is long" if plan.fits else ""
        price = plan.price_per_chip_hour
        priced = [] if price is None else [f"--price_per_chip_hour={price:g}"]
        return f"next: a larger machine{why}: {_command('plan', *recipe, f'--topology={larger}', *priced)}"
    if not topology.is_one_host:
        flags = [*recipe, f"--workdir=gs://BUCKET/{name}", "--distributed=auto"]
        return f"next, on every host of {topology.name}: {_command('preflight', *flags)}, then the same with pretrain"
    several_cpus = plan.chip.platform == "cpu" and topology.num_devices > 1
    devices = f"JAX_NUM_CPU_DEVICES={topology.num_devices} " if several_cpus else ""
    return f"next, on {topology.name}: {devices}{_command('pretrain', *recipe, f'--workdir=runs/{name}')}"


def run_name(recipe: str) -> str:
    """Return a name for a run of a recipe: ``bert_large`` for ``configs/pretrain/bert_large.py``."""
    last = recipe.rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", re.sub(r"\.(py|json)(?=:|$)", "", last)).strip("-.") or "run"


def _command(verb: str, *flags: str) -> str:
    return f"{program()} {shlex.join([verb, *flags])}"
