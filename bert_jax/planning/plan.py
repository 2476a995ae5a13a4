"""The plan of a run: the memory that each phase needs on each chip, the time that it would take, and the price."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from bert_jax.planning import hlo, topologies
from bert_jax.planning.chips import Chip
from bert_jax.planning.collectives import Fabric
from bert_jax.planning.compile import Compiled, compile_phase, costliest_kind
from bert_jax.planning.prediction import Prediction, predict
from bert_jax.planning.topologies import Topology
from bert_jax.program import Note
from bert_jax.reporting.loggers.base import flatten
from bert_jax.reporting.progress import ProgressLine
from bert_jax.rows.phases import Phase
from bert_jax.task import Task
from bert_jax.training.experiment import Experiment
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.sharded_update import unsplit


@dataclasses.dataclass(frozen=True)
class Change:
    """Changes to a recipe. Only ``batch_divisor`` changes the result of training.

    The other changes affect only memory and speed.

    Attributes:
      micro_batches: the new number of micro-batches of each phase that changes.
    """

    mesh: MeshConfig | None = None
    micro_batches: Mapping[str, int] = dataclasses.field(default_factory=dict)
    remat: str | None = None
    batch_divisor: int = 1

    def changed_keys(self, batches: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """Return the changed keys of ``config``. ``batches``: the batch size of each phase in the recipe."""
        phases: dict[str, Any] = {name: {"micro_batches": number} for name, number in self.micro_batches.items()}
        if self.batch_divisor > 1:
            for name, size in batches.items():
                phases[name] = {**phases.get(name, {}), "batch_size": size // self.batch_divisor}
        mesh = {} if self.mesh is None else dataclasses.asdict(self.mesh)
        return {"mesh": mesh, "phases": phases, "model": {} if self.remat is None else {"remat": self.remat}}

    def overrides(self, batches: Mapping[str, int]) -> list[str]:
        """Return the changes as command-line flags. ``batches``: the batch size of each phase in the recipe."""
        return [f"--config.{key}={value}" for key, value in flatten(self.changed_keys(batches)).items()]

    def in_words(self) -> str:
        """Return a change of one of these settings in words."""
        if self.mesh is not None:
            return f"fsdp={self.mesh.fsdp}"
        if self.remat is not None:
            return f"remat={self.remat}"
        if self.micro_batches:
            return in_words(self.micro_batches)
        return f"batches of 1/{self.batch_divisor}"


def in_words(micro_batches: Mapping[str, int]) -> str:
    """Return numbers of micro-batches by phase as text: "micro_batches=2" if they are equal, else with the phases."""
    if len(set(micro_batches.values())) == 1:
        return f"micro_batches={next(iter(micro_batches.values()))}"
    return ", ".join(f"{name}.micro_batches={number}" for name, number in micro_batches.items())


class Recipe(Protocol):
    """A recipe that can be planned as it is, or with changes."""

    def variant(self, change: Change, devices: list[Any]) -> tuple[Task, Experiment]:
        """Return the task, without text, and the loop's settings.

        Raises ``UserError`` if the changed mesh or batch cannot be divided over ``devices``.
        """
        ...

    def shape(self) -> Any:
        """Return the ``ModelConfig`` of the recipe."""
        ...


@dataclasses.dataclass(frozen=True)
class Machine:
    """The machine to plan for: its topology, chip and devices."""

    topology: Topology
    chip: Chip
    devices: list[Any] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, topology: Topology) -> Machine:
        devices = topologies.devices(topology)
        return cls(topology, topologies.chip(topology), devices)

    def holds(self, compiled: Compiled) -> bool:
        """Return whether a step fits into the memory of a device.

        A TPU's compiler refuses programs that its chip cannot hold; for other devices the sum of all bytes decides.
        """
        within = self.topology.platform == "tpu" or compiled.memory.total <= self.chip.memory_bytes
        return within and not compiled.refused_bytes


@dataclasses.dataclass(frozen=True)
class PhasePlan:
    """The plan of one phase on a machine. ``prediction`` is None if the compiler refused the train step."""

    phase: Phase
    compiled: Compiled
    micro_batches: int
    prediction: Prediction | None
    fits: bool
    model_flops: float  # FLOPs of a step on all devices together, by ``models/config.py``
    num_devices: int
    peak_flops: float

    @property
    def positions_per_second(self) -> float | None:
        """Return the number of row positions computed per second, padding included."""
        positions = self.phase.batch_size * self.phase.max_length
        return None if self.prediction is None else positions / self.prediction.seconds

    @property
    def mfu(self) -> float | None:
        work = self.model_flops / self.num_devices / self.peak_flops
        return None if self.prediction is None else work / self.prediction.seconds

    @property
    def seconds(self) -> float | None:
        """Return the seconds of all steps of the phase, without evaluations, saves and restarts."""
        return None if self.prediction is None else self.phase.num_steps * self.prediction.seconds


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a recipe, with ``change``, on a machine."""

    topology: Topology
    chip: Chip
    mesh: dict[str, int]
    remat: str
    phases: tuple[PhasePlan, ...]
    price_per_chip_hour: float | None = None
    change: Change = Change()  # noqa: RUF009
    notes: tuple[str, ...] = ()

    @property
    def micro_batches(self) -> dict[str, int]:
        return {phase.phase.kind: phase.micro_batches for phase in self.phases}

    @property
    def needed_bytes(self) -> int:
        """Return the bytes that each device needs in the phase that needs the most."""
        return max(phase.compiled.needed_bytes for phase in self.phases)

    @property
    def fits(self) -> bool:
        return all(phase.fits for phase in self.phases)

    @property
    def training_seconds(self) -> float | None:
        seconds = [phase.seconds for phase in self.phases if phase.seconds is not None]
        return sum(seconds) if len(seconds) == len(self.phases) else None

    @property
    def chip_hours(self) -> float | None:
        seconds = self.training_seconds
        return None if seconds is None else seconds * self.topology.num_devices / 3600

    @property
    def money(self) -> float | None:
        price = self.price_per_chip_hour
        return None if price is None or self.chip_hours is None else price * self.chip_hours


def without_length(phase: Phase, **others: Any) -> Phase:
    """Return ``phase`` without its length, name and rates, which decide neither the memory nor the time of a step.

    ``others``: more fields to replace.
    """
    same: dict[str, Any] = {"num_steps": 1, "num_tokens": None, "num_epochs": None, "kind": "", "shares": None}
    return dataclasses.replace(phase, **same, schedule=None, **others)


class Attempt:
    """Plans a recipe with a change on a machine. A phase is compiled when it is first needed; equal phases share it.

    ``note`` prints the lines that say how long a compilation has taken so far; without it there are none.

    Raises:
      UserError: the mesh does not divide the devices or a batch.
    """

    def __init__(self, recipe: Recipe, machine: Machine, change: Change, note: Note | None = None) -> None:
        self._recipe, self._machine, self._change, self._note = recipe, machine, change, note
        self._task, self._experiment = recipe.variant(change, machine.devices)
        self._mesh = self._experiment.make_mesh(machine.devices)
        self._steps: list[tuple[Any, tuple[Compiled, Prediction | None]]] = []  # facts that decide a step, and the step

    def phase(self, kind: str) -> PhasePlan:
        """Return the plan of the phase named ``kind`` in the recipe."""
        [phase] = [phase for phase in self._experiment.phases.phases if phase.kind == kind]
        machine, task = self._machine, self._task
        compiled, prediction = self._step(phase)
        return PhasePlan(
            phase=phase,
            compiled=compiled,
            micro_batches=self._experiment.micro_batches(phase),
            prediction=prediction,
            fits=machine.holds(compiled),
            model_flops=task.flops_per_row[costliest_kind(task, phase)] * phase.batch_size,
            num_devices=machine.topology.num_devices,
            peak_flops=machine.chip.product_flops(task.dtype),
        )

    def _step(self, phase: Phase) -> tuple[Compiled, Prediction | None]:
        experiment, phases, machine = self._experiment, self._experiment.phases.phases, self._machine
        decay = experiment.own_schedules.get(phase.kind, experiment.schedule).layer_decay
        spec = self._task.batch_specs[costliest_kind(self._task, phase)]
        key = (without_length(phase, micro_batches=None), experiment.micro_batches(phase), decay, spec)
        for other, step in self._steps:
            if other == key:
                return step
        number = phases.index(phase) + 1
        doing = f"compiling the step of {phase.kind} ({number} of {len(phases)}) for {machine.topology.name}"
        with ProgressLine(0).outside(doing) if self._note else contextlib.nullcontext():
            compiled = compile_phase(self._task, experiment, phase, machine.devices)
        on = Fabric.of(self._mesh, machine.chip, machine.topology.devices_of_a_host)
        prediction = predict(hlo.parse(compiled.text), on) if compiled.text else None
        self._steps.append((key, (compiled, prediction)))
        return compiled, prediction

    def plan(self, price_per_chip_hour: float | None) -> Plan:
        """Return the plan of all phases."""
        task, experiment = self._task, self._experiment
        phases = tuple(self.phase(phase.kind) for phase in experiment.phases.phases)
        split = all(phase.compiled.split for phase in phases)
        notes = unsplit(task, self._mesh, experiment.mesh.weight_update, split)
        for phase in experiment.phases.phases:
            kinds = [kind for kind in task.batch_specs if kind.partition("/")[0] == phase.kind]
            if others := [kind for kind in kinds if kind != costliest_kind(task, phase)]:
                notes.append(f"{phase.kind} also has other batches ({', '.join(others)}); the costliest is planned")
        return Plan(
            topology=self._machine.topology,
            chip=self._machine.chip,
            mesh=dict(self._mesh.shape),
            remat=self._change.remat or self._recipe.shape().remat,
            phases=phases,
            price_per_chip_hour=price_per_chip_hour,
            change=self._change,
            notes=tuple(notes),
        )


def make_plan(
    recipe: Recipe, machine: Machine, price_per_chip_hour: float | None = None, note: Note | None = None
) -> Plan:
    """Return the plan of a recipe on a machine; compiles every phase, and says with ``note`` how long that takes.

    Raises:
      UserError: the mesh does not divide the devices or a batch. This is raised before the first compile.
    """
    return Attempt(recipe, machine, Change(), note).plan(price_per_chip_hour)
