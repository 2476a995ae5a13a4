"""Compares a pretraining run with its plan, for ``bert-jax plan --compare=WORKDIR``."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.planning import comparison, page, topologies
from bert_jax.planning.comparison import ComparedPhase
from bert_jax.planning.plan import Change, Machine, Plan, make
from bert_jax.planning.topologies import Topology
from bert_jax.program import Note
from bert_jax.reporting import run_log, run_record
from bert_jax.reporting.loggers.base import Record
from bert_jax.reporting.pace import Pace, paces
from bert_jax.runs.recipe_plan import PretrainingRecipe
from bert_jax.runs.settings import FREE_MODEL_FIELDS

LEAST_WINDOWS = 2  # fewer are no measurement


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A run beside its plan.

    Attributes:
      kept: the folder of the cache that the next plan reads; None if it could not be written, as a note says.
    """

    workdir: str
    plan: Plan
    phases: list[ComparedPhase]
    notes: list[str]
    kept: str | None

    def as_lines(self) -> list[str]:
        lines = [f"{self.workdir} beside its plan", *page.head_lines(self.plan), ""]
        lines += [phase.line() for phase in self.phases]
        lines += [f"note: {note}" for note in self.notes]
        return lines if self.kept is None else [*lines, f"kept in {self.kept}, which the next plan reads"]

    def as_json(self) -> str:
        phases = [dataclasses.asdict(phase) | {"ratio": phase.ratio} for phase in self.phases]
        record = {"workdir": self.workdir, "notes": self.notes, "kept": self.kept, "phases": phases}
        return json.dumps(record | {"plan": page.as_record(self.plan)})


def compare(workdir: str, topology: str | None, note: Note) -> Comparison:
    """Compare the step times of a run with their prediction, which is made for its recipe, mesh and machine.

    Args:
      topology: the machine, if ``run.json`` does not name it or several slices have as many devices.

    Raises:
      UserError: see ``measurements``; or the machine is unknown or cannot be compiled for. This is raised before the
        first compilation.
    """
    run, recipe, windows = measurements(workdir)
    machine = Machine.of(_topology(workdir, run, topology))
    _, experiment = recipe.variant(Change(), machine.devices)
    note(f"compiling the steps of {workdir} for {machine.topology.name}")
    plan = make(recipe, machine, note=note)
    phases, notes = [], list(plan.notes)
    for phase in plan.phases:
        steady_windows = windows.get(phase.phase.kind)
        compared = steady_windows and comparison.compare_phase(phase, steady_windows, experiment, recipe.shape())
        if compared:
            phases.append(compared)
        else:
            why = "its step does not fit, so none is predicted" if steady_windows else "it has no steady windows"
            notes.append(f"{phase.phase.kind} is not compared: {why}")
    kept = None
    try:
        kept = os.fspath(comparison.keep(machine.topology, str(run.get("run_id")), phases))
    except (UserError, OSError) as error:
        notes.append(f"not kept for the next plan: {error}")
    return Comparison(workdir, plan, phases, notes, kept)


def measurements(workdir: str) -> tuple[dict[str, Any], PretrainingRecipe, dict[str, Pace]]:
    """Return what a run has recorded, its recipe, and for each phase the steady log windows since the last start.

    Raises ``UserError`` if there is no pretraining run, or its steps were not measured.
    """
    run = run_record.read_run(workdir)
    config = run.get("config")
    if not isinstance(config, Mapping) or "model" not in run.get("facts", {}):
        raise UserError(f"{workdir} holds no run with a recipe and a model; give the --workdir of a pretraining run")
    if run_record.purpose_of(config) == "fine-tuning":
        raise UserError(f"{workdir} holds a run of fine-tuning; plan compares those of pretraining")
    records = run_log.read_records(workdir)
    every = paces(records, run, last_start=True)
    names = list(config.get("phases") or {}) or [""]
    windows = {one.phase or names[0]: one for one in every if len(one.records) >= LEAST_WINDOWS}
    if not windows:
        restarts = run.get("restarts")
        since = f"since it was resumed at step {restarts[-1].get('step', 0):,}" if restarts else "since its start"
        raise UserError(
            f"{workdir} has logged no steady step times {since}: {LEAST_WINDOWS} windows of a phase "
            "are needed after the first; train on, or log more often (--config.training.log_every_steps)"
        )
    config = {name: group for name, group in config.items() if name != "probe"}  # a former group, of no step
    settings = PretrainingRecipe.of(_in_steps(config, run, records)).settings
    free = {name: value for name, value in settings.model.items() if name in FREE_MODEL_FIELDS}
    settings = dataclasses.replace(settings, model={**run["facts"]["model"], **free})
    return run, PretrainingRecipe(settings), windows


def _in_steps(config: Mapping[str, Any], run: Mapping[str, Any], records: list[Record]) -> dict[str, Any]:
    """Return the recipe of a run; what it has in epochs, which no plan can count, is in the steps that the run had."""
    phases = {name: {"num_steps": one["num_steps"]} for name, one in (run.get("phases") or {}).items()}
    known: dict[str, Any] = {"phases": phases}
    if (config.get("training") or {}).get("evaluations_per_epoch") is not None:
        evaluated = [record["step"] for record in records if record["split"] == "eval" and record["step"]]
        at_end = sum(one["num_steps"] for one in phases.values())
        known["training"] = {"eval_every_steps": min(evaluated, default=at_end)}
    return configuration.complete(known, config)


def _topology(workdir: str, run: Mapping[str, Any], named: str | None) -> Topology:
    """Return the machine of a run. Raises ``UserError`` if it is unknown, or is not the one that is ``named``."""
    devices = run.get("devices") or {}
    platform, kind, count = (devices.get(name) for name in ("platform", "kind", "count"))
    if not (platform and kind and isinstance(count, int)):
        if named is None:
            raise UserError(
                f"{workdir}/run.json does not say on which devices the run was made; give --topology=KIND:SHAPE"
            )
        return topologies.parse(named)
    fitting = topologies.of_devices(platform, kind, count)
    given = fitting[0] if named is None else topologies.parse(named)
    if given not in fitting:
        raise UserError(
            f"{workdir} was made on {count} devices of the kind {kind!r}, not on {named}; leave --topology out"
        )
    return given
