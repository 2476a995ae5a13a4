"""Finds the smallest change with which a recipe fits into memory, by compiling changed recipes."""

from __future__ import annotations

from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.planning.plan import Attempt, Change, Machine, PhasePlan, Plan, Recipe
from bert_jax.program import Note
from bert_jax.training.experiment import Experiment
from bert_jax.training.mesh import MeshConfig

_COPIES = 3  # float32 copies of all parameters that a step with a sharded update may have: gathered, gradient, sums
_LEVELS = 8  # how many times a batch is halved, or the number of micro-batches or fsdp doubled, at most


def smallest_change(recipe: Recipe, machine: Machine, refused: Plan, note: Note) -> list[Plan]:
    """Return the plan of the first change with which the recipe fits; [] if no change is enough.

    A change is a smaller batch, more micro-batches, remat or fsdp. They are tried in this order, first with the
    smallest step of each, then with the next.

    A smaller batch changes the result of training. If it is the first change that fits, the plan with the first fitting
    change that keeps the batch, if there is one, comes second. A change is not compiled if arithmetic shows that it
    cannot suffice: halving the batch, for example, at best halves the temporaries. Phases that already fit are compiled
    only with changes that make the other phases fit.
    """
    tight = [phase for phase in refused.phases if not phase.fits]
    fitting: list[Plan] = []
    _, experiment = recipe.variant(Change(), machine.devices)
    for change in _changes(refused, experiment):
        if fitting and change.batch_divisor > 1:
            continue
        if any(_least(change, refused, phase) > machine.chip.memory_bytes for phase in tight):
            continue
        try:
            attempt = Attempt(recipe, machine, change, note)
        except UserError:
            continue  # the change does not divide the batch or the devices
        note(f"trying {change.in_words()}")
        if not all(attempt.phase(phase.phase.kind).fits for phase in tight):
            continue
        plan = attempt.plan(refused.price_per_chip_hour)
        if plan.fits:
            fitting.append(plan)
            if change.batch_divisor == 1:
                break
    return fitting


def _changes(plan: Plan, experiment: Experiment) -> Iterator[Change]:
    devices, tight = plan.topology.num_devices, [phase for phase in plan.phases if not phase.fits]
    for level in range(1, _LEVELS + 1):
        yield Change(batch_divisor=2**level)
        more = {phase.phase.kind: phase.micro_batches * 2**level for phase in tight}
        yield Change(micro_batches=more)
        remat = {"none": ("dots", "full"), "dots": ("full",)}.get(plan.remat, ())
        if level <= len(remat):
            yield Change(remat=remat[level - 1])
        fsdp = plan.mesh["fsdp"] * 2**level
        if devices % (fsdp * plan.mesh["tensor"]) == 0:
            mesh = MeshConfig(
                -1, fsdp, plan.mesh["tensor"], weight_update="replicated", overlap=experiment.mesh.overlap
            )
            yield Change(mesh=mesh)


def _least(change: Change, refused: Plan, phase: PhasePlan) -> float:
    """Return the bytes that a phase needs if a change saves as much memory as it possibly can."""
    state = phase.compiled.memory.state
    temporaries = max(0, phase.compiled.needed_bytes - state)
    if change.mesh is not None and phase.compiled.split:
        # The state has no smaller parts, but copies of the model may go.
        copies = _COPIES * phase.compiled.memory.parameters * refused.mesh["data"] * refused.mesh["fsdp"]
        return state + max(0, temporaries - copies)
    if change.mesh is not None:  # data shrinks as fsdp grows, so the batch is not split further
        return state * refused.mesh["fsdp"] / change.mesh.fsdp + temporaries
    if change.remat is not None:
        return state + temporaries * {"dots": 0.3, "full": 0.05}[change.remat]
    more = change.micro_batches.get(phase.phase.kind, phase.micro_batches) / phase.micro_batches
    return state + temporaries / max(change.batch_divisor, more)
