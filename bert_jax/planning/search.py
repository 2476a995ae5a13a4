"""Searches the layouts of a recipe on a machine.

All layouts are estimated by formulas; the best layouts and the recipe's own are compiled.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

import jax

from bert_jax.errors import UserError
from bert_jax.models.config import TransformerConfig
from bert_jax.models.kernels.choice import case_of, choose
from bert_jax.planning import formulas
from bert_jax.planning.compile import bytes_of, dearest_kind
from bert_jax.planning.formulas import BatchLayout
from bert_jax.planning.plan import Change, Machine, Plan, Rates, Recipe, in_words, make
from bert_jax.program import Note, duration, size
from bert_jax.task import needs_whole_batches
from bert_jax.training.experiment import Experiment
from bert_jax.training.mesh import MeshConfig, WeightUpdate, is_split

MICRO_BATCHES, REMAT, TENSOR, FSDP = (1, 2, 4, 8), ("none", "dots", "full"), (1, 2, 4, 8), (1, 2, 4, 8, 16, 32)
COMPILES = 3  # how many layouts a search compiles by default, beside the recipe's own
NEAR = 0.01  # accuracy of predictions: a recipe that is slower by no more than this share stays as it is


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout, with estimates by formulas and, if it was compiled, its plan.

    Attributes:
      memory, seconds: the estimated bytes of each device and the estimated time of training.
      own: whether it is the recipe's own layout.
      plan: the plan of the compiled layout; None if it was not compiled.
    """

    change: Change
    memory: float
    seconds: float
    own: bool = False
    plan: Plan | None = None

    @property
    def predicted_seconds(self) -> float | None:
        """Return the predicted time of training, or None if the layout was not compiled or does not fit."""
        return self.plan.training_seconds if self.plan is not None and self.plan.fits else None

    def line(self) -> str:
        """Return the layout's row in the printed table."""
        mesh = self.change.mesh
        assert mesh is not None
        text = (
            f"  data={mesh.data:<5} fsdp={mesh.fsdp:<3} tensor={mesh.tensor:<3} weight_update={mesh.weight_update:<10} "
            f"{in_words(self.change.micro_batches):<17} remat={self.change.remat or 'none':<5} "
            f"estimate {size(self.memory):>11} {duration(self.seconds):>13}"
        )
        if self.plan is not None:
            took = "does not fit" if self.predicted_seconds is None else duration(self.predicted_seconds)
            text += f"   compiled {size(self.plan.needed_bytes):>11} {took:>13}"
        return text + ("   the recipe's own" if self.own else "")


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
      compiled: the recipe's own layout and the most promising layouts, given in any order and kept the fastest first;
        layouts that do not fit come last.
      tried: the number of layouts that were estimated by formulas.
    """

    compiled: tuple[Candidate, ...]
    tried: int

    def __post_init__(self) -> None:
        by_time = sorted(self.compiled, key=lambda c: math.inf if c.predicted_seconds is None else c.predicted_seconds)
        object.__setattr__(self, "compiled", tuple(by_time))

    @property
    def own(self) -> Candidate:
        [own] = [candidate for candidate in self.compiled if candidate.own]
        return own

    @property
    def fastest(self) -> Candidate | None:
        """Return the fastest layout that was compiled and fits, or None if none fits."""
        return next((c for c in self.compiled if c.predicted_seconds is not None), None)

    @property
    def best(self) -> Candidate | None:
        """Return the recipe's own layout if its time is within ``NEAR`` of the fastest, else the fastest layout."""
        own, fastest = self.own.predicted_seconds, self.fastest
        if own is None or fastest is None or fastest.predicted_seconds is None:
            return fastest
        return self.own if own <= (1 + NEAR) * fastest.predicted_seconds else fastest


def search(recipe: Recipe, machine: Machine, rates: Rates, compiles: int, note: Note) -> SearchResult:
    """Find the fastest layout that fits into memory and keeps the batch.

    The recipe's own layout and the ``compiles`` best layouts by formulas are compiled.

    Raises:
      UserError: the recipe's own layout does not divide the devices or its batches. This is raised before the first
        compile.
    """
    estimates = sorted(candidates(recipe, machine), key=lambda c: c.seconds)
    fitting = [c for c in estimates if c.memory <= machine.chip.memory_bytes]
    fitting = fitting or sorted(estimates, key=lambda c: c.memory)
    chosen = [c for c in estimates if c.own] + [c for c in fitting[:compiles] if not c.own]
    done = []
    for number, candidate in enumerate(chosen, 1):
        note(f"layout {number} of {len(chosen)}:{candidate.line()}")
        done.append(dataclasses.replace(candidate, plan=make(recipe, machine, rates, candidate.change, note)))
    return SearchResult(tuple(done), len(estimates))


def candidates(recipe: Recipe, machine: Machine) -> list[Candidate]:
    """Return every layout that divides the batches, and the recipe's own, with estimates by formulas."""
    _, experiment = recipe.variant(Change(), machine.devices)
    own, kinds = _own(recipe, experiment, machine), [phase.kind for phase in experiment.phases.phases]
    alike = [dict.fromkeys(kinds, number) for number in MICRO_BATCHES]
    shape = recipe.shape()
    splits = list(itertools.product(alike, REMAT if isinstance(shape, TransformerConfig) else (None,)))
    meshes = _meshes(machine.topology.num_devices, shape.num_heads, experiment)
    found = [c for mesh in meshes for c in _on_mesh(recipe, machine, Change(mesh, alike[0]), splits)]
    if own not in [c.change for c in found]:
        found += _on_mesh(recipe, machine, own, [(own.micro_batches, own.remat)])
    return [dataclasses.replace(c, own=c.change == own) for c in found]


def _own(recipe: Recipe, experiment: Experiment, machine: Machine) -> Change:
    """Return the recipe's own layout with all sizes filled in (no axis is -1)."""
    sizes = dict(experiment.make_mesh(machine.devices).shape)
    micro_batches = {phase.kind: experiment.micro_batches(phase) for phase in experiment.phases.phases}
    shape = recipe.shape()
    remat = shape.remat if isinstance(shape, TransformerConfig) else None
    return Change(dataclasses.replace(experiment.mesh, **sizes), micro_batches, remat)


def _on_mesh(
    recipe: Recipe, machine: Machine, first: Change, splits: Iterable[tuple[Mapping[str, int], str | None]]
) -> Iterator[Candidate]:
    """Yield a candidate for each (micro-batches, remat) in ``splits`` that divides the batches on ``first.mesh``.

    If the micro-batches of ``first`` do not divide the batches, no others do.
    """
    mesh = first.mesh
    assert mesh is not None
    try:
        task, experiment = recipe.variant(first, machine.devices)
    except UserError:
        return  # this mesh does not divide a batch
    state, frozen = experiment.initial_state(task, experiment.make_mesh(machine.devices)).shapes
    parameters = sum(int(leaf.size) for leaf in jax.tree.leaves(state.params))
    state_bytes, split = bytes_of((state, frozen)), is_split(state.params)
    phases, model = experiment.phases.phases, recipe.shape()
    for micro_batches, remat in splits:
        if needs_whole_batches(task) and any(number > 1 for number in micro_batches.values()):
            continue
        if any(p.batch_size % (mesh.data * mesh.fsdp * micro_batches[p.kind]) for p in phases):
            continue
        memory, seconds = 0.0, 0.0
        for phase in phases:
            kind = dearest_kind(task, phase)
            spec = task.batch_specs[kind]
            masked = spec["masked_positions"].shape[0] if "masked_positions" in spec else phase.max_length
            parts = (mesh.data, mesh.fsdp, mesh.tensor, micro_batches[phase.kind])
            plain = True
            if isinstance(model, TransformerConfig):
                case = case_of(model, spec, machine.topology.platform, mesh.tensor)
                plain = choose(model.attention_kernel, case) == "plain"
            layout = BatchLayout(*parts, remat or "none", phase.batch_size, phase.max_length, masked, split, plain)
            gradients = formulas.gradient_bytes(model, parameters, layout)
            memory = max(memory, state_bytes + gradients + formulas.activation_bytes(model, layout))
            row_flops = task.flops_per_row[kind]
            seconds += phase.num_steps * formulas.step_seconds(model, layout, machine.chip, row_flops, parameters)
        yield Candidate(Change(mesh, micro_batches, remat), memory, seconds)


def _meshes(devices: int, heads: int, experiment: Experiment) -> Iterator[MeshConfig]:
    """Yield every mesh. With a sharded update fsdp is like data, so fsdp alone is tried with a replicated update."""
    for fsdp, tensor in itertools.product(FSDP, TENSOR):
        if devices % (fsdp * tensor) == 0 and heads % tensor == 0:
            alone = fsdp > 1 and tensor == 1 or experiment.optimizer.whole_matrices
            update: WeightUpdate = "replicated" if alone else "sharded"
            sizes = (devices // (fsdp * tensor), fsdp, tensor)
            yield MeshConfig(*sizes, weight_update=update, overlap=experiment.mesh.overlap)
