"""Compares a pretraining run with its plan, for ``bert-jax plan --compare=WORKDIR``."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.models.model import config_of
from bert_jax.planning import comparison, page, topologies
from bert_jax.planning.comparison import ComparedPhase
from bert_jax.planning.plan import Change, Machine, Note, Plan, make
from bert_jax.planning.topologies import Topology
from bert_jax.reporting import run_log, run_record, status
from bert_jax.reporting.formats import is_number
from bert_jax.reporting.pace import Pace, paces, since_last_start
from bert_jax.runs.recipe_plan import PretrainingRecipe
from bert_jax.storage import files

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


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """What a run has recorded of its steps.

    Attributes:
      windows: the steady log windows since the last start, by phase. Earlier ones may be of another machine.
    """

    run_id: str
    recipe: PretrainingRecipe
    topology: Topology
    windows: dict[str, Pace]


def read(workdir: str, topology: str | None) -> MeasuredRun:
    """Return what the run in ``workdir`` has recorded.

    Args:
      topology: the machine, if ``run.json`` does not name it or several slices have as many devices.

    Raises:
      UserError: there is no pretraining run, its steps were not measured, or its machine is unknown.
    """
    run = run_record.read_run(workdir)
    if not isinstance(config := run.get("config"), Mapping) or "model" not in run.get("facts", {}):
        raise UserError(f"{workdir} holds no run with a recipe and a model; give the --workdir of a pretraining run")
    if run_record.purpose_of(config) == "fine-tuning":
        raise UserError(f"{workdir} holds a run of fine-tuning; plan compares those of pretraining")
    windows = _measured(workdir, run, config)
    recipe = dataclasses.replace(PretrainingRecipe.of(config), model=config_of(run["facts"]["model"]))
    return MeasuredRun(str(run.get("run_id")), recipe, _topology(workdir, run, topology), windows)


def compare(workdir: str, topology: str | None, note: Note) -> Comparison:
    """Compare the step times of a run with their prediction, which is made for its recipe, mesh and machine.

    Raises:
      UserError: as ``read`` does, or the machine cannot be compiled for. This is raised before the first compilation.
    """
    made = read(workdir, topology)
    machine = Machine.of(made.topology)
    _, experiment = made.recipe.variant(Change(), machine.devices)
    note(f"compiling the steps of {workdir} for {made.topology.name}")
    plan = make(made.recipe, machine, note=note)
    phases, notes = [], list(plan.notes)
    for phase in plan.phases:
        windows = made.windows.get(phase.phase.kind)
        key = comparison.step_key(phase.phase, experiment, made.recipe.shape())
        done = windows and comparison.compare_phase(phase, windows, key)
        if done:
            phases.append(done)
        else:
            why = "it has no steady windows" if not windows else "its step does not fit, so none is predicted"
            notes.append(f"{phase.phase.kind} is not compared: {why}")
    ran_on = _host(workdir)
    if machine.chip.platform == "cpu" and ran_on not in (None, socket.gethostname()):
        notes.append(f"the run was made on {ran_on}; the peaks of the prediction are those of this machine")
    kept = None
    try:
        kept = os.fspath(comparison.keep(made.topology, made.run_id, phases))
    except (UserError, OSError) as error:
        notes.append(f"not kept for the next plan: {error}")
    return Comparison(workdir, plan, phases, notes, kept)


def _measured(workdir: str, run: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Pace]:
    """Return the steady windows of each phase, by the phase's name in the config."""
    path = files.as_path(workdir) / run_log.FILE
    found = paces(run_log.read_records(path) if path.exists() else [], run, last_start=True)
    names = list(config.get("phases") or {}) or [""]
    enough = {w.phase or names[0]: w for w in found if len(w.records) >= LEAST_WINDOWS}
    if not enough:
        training = config.get("training")
        every = training.get("log_every_steps") if isinstance(training, Mapping) else None
        raise UserError(
            f"{workdir} has logged no steady step times {since_last_start(run)}: {LEAST_WINDOWS} windows of a phase "
            "are needed after the first; train on, or log more often"
            + (f" (config.training.log_every_steps is {every:,})" if is_number(every) else "")
        )
    return enough


def _topology(workdir: str, run: Mapping[str, Any], named: str | None) -> Topology:
    """Return the machine of a run. Raises ``UserError`` if it is unknown, or is not the one that is ``named``."""
    devices = run.get("devices") or {}
    facts = [devices.get(name) for name in ("platform", "kind", "count")]
    if not all(facts) or not isinstance(facts[2], int):
        if named is None:
            raise UserError(
                f"{workdir}/run.json does not say on which devices the run was made; give --topology=KIND:SHAPE"
            )
        return topologies.parse(named)
    platform, kind, count = str(facts[0]), str(facts[1]), facts[2]
    fitting = topologies.of_devices(platform, kind, count)
    given = fitting[0] if named is None else topologies.parse(named)
    if given not in fitting:
        raise UserError(
            f"{workdir} was made on {count} devices of the kind {kind!r}, not on {named}; leave --topology out"
        )
    return given


def _host(workdir: str) -> str | None:
    try:
        return status.read(workdir)["host"]
    except UserError:
        return None
