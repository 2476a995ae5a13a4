"""Gradients of a run whose parameters are split over the devices that share the rows of a batch.

Each device along ``data`` and ``fsdp`` keeps and updates only its part of the float32 parameters and moments:
weight-update sharding (Xu et al. 2020), stage 1 of ZeRO (Rajbhandari et al. 2020). Once a step, a copy of the matrices
in the compute dtype is gathered, and the gradient is summed directly into the parts. ``jax.shard_map`` keeps the split
out of the model: by shardings alone the partitioner would spread it into the products (858 permutes in a program of 4
layers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bert_jax.models.dropout import RowRng
from bert_jax.task import Task, needs_whole_batches
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import ROWS, WeightUpdate
from bert_jax.training.trained import part_of

# (params, frozen, batch, rng) -> (gradients, loss, metrics, memory); metrics are sums over the batch, memory has rows
Gradients = Callable[..., tuple[Any, jax.Array, Any, Any]]


def unsplit(task: Task, mesh: Mesh, weight_update: WeightUpdate, split: bool) -> list[str]:
    """Return [a line] if parameters should be split over the rows' devices, but are not (``split``); otherwise []."""
    if split or needs_whole_batches(task) or not meshes.may_split(mesh, weight_update):
        return []
    return [
        f'config.mesh.weight_update is "sharded", but {mesh.size} devices divide no axis of {meshes.SPLIT} or more of '
        'a matrix: the update is as with "replicated"'
    ]


def over_rows(
    gradients: Gradients, shardings: Any, trains: frozenset[str] | None, compute_dtype: str, gradient_dtype: str | None
) -> Gradients:
    """Return ``gradients`` for a global batch, which each device computes from its rows.

    The rows' losses must not depend on each other.

    Args:
      gradients: a function that is given whole parameters and rows of a batch; it returns sums over these rows, and
        the memory of these rows.
      shardings: the placement of the parameters, and so of the gradients.
      trains: the parts of the parameters that have gradients (``Task.trains``).
      compute_dtype: the dtype in which the model reads its matrices.
      gradient_dtype: the dtype in which the gradients of split matrices are summed over devices; by default
        ``compute_dtype``, in which products of a model give them. Other gradients are summed as they are.
    """
    mesh = jax.tree.leaves(shardings)[0].mesh
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings)

    def gather(part: jax.Array, spec: P) -> jax.Array:
        if ROWS not in spec:
            return part
        return jax.lax.all_gather(part.astype(compute_dtype), ROWS, axis=spec.index(ROWS), tiled=True)

    def add_up(gradient: jax.Array, part: jax.Array, spec: P) -> jax.Array:
        if ROWS not in spec:
            return jax.lax.psum(gradient, ROWS)
        axis = spec.index(ROWS)
        summed = gradient.astype(gradient_dtype or compute_dtype)
        total = jax.lax.psum_scatter(summed, ROWS, scatter_dimension=axis, tiled=True)
        return total.astype(part.dtype)

    def local(params: Any, frozen: Any, batch: Any, rng: RowRng) -> Any:
        parameters = jax.tree.map(gather, params, specs)
        grads, loss, metrics, memory = gradients(parameters, frozen, batch, rng)
        own, places = part_of(params, trains), part_of(specs, trains)
        return jax.tree.map(add_up, grads, own, places), *jax.lax.psum((loss, metrics), ROWS), memory

    rows = P(ROWS)
    keys = RowRng(P(), rows)  # type: ignore[arg-type]
    inputs = (specs, P(), rows, keys)
    return jax.shard_map(  # type: ignore[no-any-return]
        local, mesh=mesh, in_specs=inputs, out_specs=(part_of(specs, trains), P(), P(), rows), check_vma=False
    )
