"""The layouts of a recipe on a machine: judged by arithmetic, the best of them compiled."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bert_jax.errors import UserError
from bert_jax.planning import estimate
from bert_jax.planning.compile import bytes_of
from bert_jax.planning.estimate import Layout
from bert_jax.planning.plan import Change, Machine, Plan, Rates, Recipe, make
from bert_jax.rows.phases import Phase
from bert_jax.task import Task
from bert_jax.training.loop import Experiment
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.state import abstract_fresh
from bert_jax.training.step import metric_names

Note = Callable[[str], None]

MICRO_BATCHES, REMAT, TENSOR, FSDP = (1, 2, 4, 8), ("none", "dots", "full"), (1, 2, 4, 8), (1, 2, 4, 8, 16, 32)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """``memory`` bytes of a device and ``seconds`` of training, both estimated; ``plan``: what compiling it gave."""

    change: Change
    memory: float
    seconds: float
    plan: Plan | None = None

    def line(self) -> str:
        """A row of the table."""
        mesh = self.change.mesh
        assert mesh is not None
        layout = (
            f"data={mesh.data:<5} fsdp={mesh.fsdp:<3} tensor={mesh.tensor:<3} "
            f"micro_batches={self.change.micro_batches:<3} remat={self.change.remat:<5}"
        )
        guess = f"estimate {self.memory / 2**30:8.2f} GiB {self.seconds / 3600:9.2f} h"
        if self.plan is None:
            return f"  {layout} {guess}"
        needed = max(phase.compiled.needed_bytes for phase in self.plan.phases) / 2**30
        seconds = self.plan.training_seconds
        compiled = f"{needed:8.2f} GiB " + ("does not fit" if not self.plan.fits else f"{(seconds or 0) / 3600:9.2f} h")
        return f"  {layout} {guess}   compiled {compiled}"


@dataclasses.dataclass(frozen=True)
class Found:
    """``best`` is None where nothing that was compiled fits. ``tried``: how many layouts there are."""

    best: Candidate | None
    compiled: tuple[Candidate, ...]
    others: tuple[Candidate, ...]
    tried: int


def search(recipe: Recipe, machine: Machine, rates: Rates, compiles: int, note: Note) -> Found:
    """The fastest layout that fits, of those that keep the batch.

    Raises:
      UserError: no layout divides the batches.
    """
    judged = sorted(candidates(recipe, machine), key=lambda c: c.seconds)
    if not judged:
        raise UserError(
            f"no mesh of {machine.topology.num_devices} devices divides the batches of this recipe; choose batches "
            f"that are multiples of {machine.topology.num_devices}, or a smaller topology"
        )
    fitting = [c for c in judged if c.memory <= machine.chip.memory_bytes] or judged[-compiles:]
    done = []
    for candidate in fitting[:compiles]:
        note(f"compiling{candidate.line()}")
        done.append(dataclasses.replace(candidate, plan=make(recipe, machine, rates, candidate.change)))
    good = [c for c in done if c.plan is not None and c.plan.fits]
    best = min(good, key=lambda c: c.plan.training_seconds or 0.0, default=None)  # type: ignore[union-attr]
    return Found(best, tuple(done), tuple(fitting[compiles : compiles + 5]), len(judged))


def candidates(recipe: Recipe, machine: Machine) -> list[Candidate]:
    """Every layout that divides the batches, by arithmetic."""
    return list(_candidates(recipe, machine))


def _candidates(recipe: Recipe, machine: Machine) -> Iterator[Candidate]:
    for mesh in _meshes(machine.topology.num_devices, recipe.shape().num_heads):
        try:
            task, experiment = recipe.variant(Change(mesh=mesh), machine.devices)
        except UserError:
            continue  # a batch that this mesh does not divide
        state = _state_bytes(task, experiment, machine)
        for micro_batches, remat in itertools.product(MICRO_BATCHES, REMAT):
            change = Change(mesh, micro_batches, remat)
            if all(p.batch_size % (mesh.data * mesh.fsdp * micro_batches) == 0 for p in experiment.phases.phases):
                yield _judged(recipe, machine, change, task, experiment.phases.phases, state)


def _meshes(devices: int, heads: int) -> Iterator[MeshConfig]:
    for fsdp, tensor in itertools.product(FSDP, TENSOR):
        if devices % (fsdp * tensor) == 0 and heads % tensor == 0:
            yield MeshConfig(devices // (fsdp * tensor), fsdp, tensor)


def _state_bytes(task: Task, experiment: Experiment, machine: Machine) -> tuple[int, int, int]:
    """(whole state, parameters) of a device in bytes, and how many parameters there are in all."""
    mesh, tx = experiment.make_mesh(machine.devices), make_optimizer(experiment.optimizer)
    state, frozen = abstract_fresh(task, tx, metric_names(task), experiment.phases.phases[0].batch_size, mesh)
    return bytes_of((state, frozen)), bytes_of(state.params), _count(state.params)


def _count(tree: Any) -> int:
    return sum(int(leaf.size) for leaf in jax.tree.leaves(tree))


def _judged(
    recipe: Recipe, machine: Machine, change: Change, task: Task, phases: tuple[Phase, ...], state: tuple[int, int, int]
) -> Candidate:
    mesh, model = change.mesh, recipe.shape()
    assert mesh is not None
    assert change.micro_batches
    assert change.remat
    memory, seconds = 0.0, 0.0
    for phase in phases:
        spec = task.batch_specs[phase.kind]
        masked = spec["masked_positions"].shape[0] if "masked_positions" in spec else phase.max_length
        split = (mesh.data, mesh.fsdp, mesh.tensor, change.micro_batches, change.remat)
        layout = Layout(*split, phase.batch_size, phase.max_length, masked)
        needed = state[0] + estimate.gradient_bytes(state[1], layout) + estimate.activation_bytes(model, layout)
        memory = max(memory, needed)
        step = estimate.step_seconds(model, layout, machine.chip, task.flops_per_row[phase.kind], state[2])
        seconds += phase.num_steps * step
    return Candidate(change, memory, seconds)
