"""Memory: what a step hands on to the next step, row by row.

Row b of a batch goes on where row b of the batch before it ended; row b of all batches is lane b (``rows.lanes``).
Arrays of memory are [B, ...]: they lie on the devices as the rows of a batch do, and micro-batches split and join them
as rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.models.placement import constrain
from bert_jax.records import Batch, Feature
from bert_jax.rows.lanes import LANE_STARTS
from bert_jax.rows.phases import Phases
from bert_jax.task import Task
from bert_jax.training import mesh as meshes

Memory: TypeAlias = Mapping[str, jax.ShapeDtypeStruct]  # name -> shape [B, ...] and dtype


def shapes(memory: Mapping[str, Feature], num_rows: int) -> Memory:
    """Return the shapes of the arrays of ``BatchTask.memory`` for ``num_rows`` rows."""
    return {name: jax.ShapeDtypeStruct((num_rows, *one.shape), one.dtype) for name, one in memory.items()}


def of_run(task: Task, phases: Phases) -> Memory:
    """Return the shapes of the memory that the state of a run carries; {} if no kind of batch declares memory.

    A phase begins with empty memory. A phase without memory leaves the arrays as they are.

    Raises:
      UserError: two phases with memory have batches of unlike sizes or memory of unlike shapes, or a phase with memory
        has several kinds of batches, so that a batch would not go on where the batch before it ended.
    """
    found: dict[str, Memory] = {}
    for phase in phases.phases:
        kinds = [kind for kind in task.batch_specs if kind.partition("/")[0] == phase.kind]
        if not any(task.of(kind).memory for kind in kinds):
            continue
        if len(kinds) > 1:
            raise UserError(
                f"config.phases.{phase.kind} has {len(kinds)} kinds of batches ({', '.join(kinds)}), and its model has "
                "memory, which a batch hands on to the next batch of its kind; set config.model.memory_length to 0, or "
                "give the phase one objective with rows of one length"
            )
        found[phase.kind] = shapes(task.of(phase.kind).memory, phase.batch_size)
    if not found:
        return {}
    first, memory = next(iter(found.items()))
    for kind, other in found.items():
        if other != memory:
            raise UserError(
                f"the memory of config.phases.{kind} is {_in_words(other)}, and of config.phases.{first} it is "
                f"{_in_words(memory)}; give both one batch_size and one model.memory_length"
            )
    return memory


def _in_words(memory: Memory) -> str:
    return ", ".join(f"{name} {list(one.shape)}" for name, one in memory.items())


def with_memory(batch: Batch, memory: Mapping[str, jax.Array]) -> Batch:
    """Return ``batch`` with the arrays of ``memory`` [B, ...], which are zeros where a lane begins anew."""
    if not memory:
        return batch
    begins = batch[LANE_STARTS] == 1

    def begun(x: jax.Array) -> jax.Array:
        return jnp.where(begins.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x)

    return {**batch, **{name: begun(x) for name, x in memory.items()}}


def placed(memory: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return ``memory`` after telling the partitioner that it lies as rows do."""
    return {name: constrain(x, "batch", *[None] * (x.ndim - 1)) for name, x in memory.items()}


def empty(memory: Memory, mesh: Mesh) -> dict[str, Any]:
    """Return arrays of zeros, split over the devices of ``mesh`` as rows are."""
    place = meshes.batch_sharding(mesh)
    return {name: jnp.zeros(one.shape, one.dtype, device=place) for name, one in memory.items()}
