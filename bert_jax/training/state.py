"""The state that a run carries from step to step. A checkpoint holds all of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.records import Sum
from bert_jax.task import Task
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import WeightUpdate

LAST = 256  # the number of skipped steps that a state remembers; read them at least once in this many steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class SkippedSteps:
    """The steps without an update, because their loss or gradient was not finite."""

    count: jax.Array  # [] int32
    last: jax.Array  # [LAST] int32: the newest skipped steps; the i-th of all is at i % LAST

    def add(self, step: jax.Array, skipped: jax.Array) -> SkippedSteps:
        """Return the skipped steps with ``step`` added if ``skipped`` ([] bool) is true."""
        place = self.count % LAST
        last = self.last.at[place].set(jnp.where(skipped, step, self.last[place]))
        return SkippedSteps(self.count + skipped.astype(jnp.int32), last)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    step: jax.Array  # [] int32: updates done so far
    params: Any  # float32 master parameters
    opt_state: Any
    carry: Any  # what a recurrent model keeps from batch to batch; () for BERT
    metrics: dict[str, Sum]  # sums since the last log line, so that a resumed run logs the same as an unbroken one
    skipped: SkippedSteps  # steps that left params, opt_state and carry as they were


def zero_metrics(metrics: dict[str, Any]) -> dict[str, Sum]:
    """Return sums of 0 for the names in ``metrics``."""
    return {name: Sum(jnp.zeros([], jnp.float32), jnp.zeros([], jnp.float32)) for name in metrics}


def none_skipped() -> SkippedSteps:
    return SkippedSteps(jnp.zeros([], jnp.int32), jnp.zeros([LAST], jnp.int32))


def make_state(params: Any, tx: optax.GradientTransformation, carry: Any, metric_names: list[str]) -> TrainState:
    """Return a state at step 0 with the given parameters, which may be boxed with logical axes."""
    return TrainState(
        step=jnp.zeros([], jnp.int32),
        params=params,
        opt_state=tx.init(params),
        carry=carry,
        metrics=zero_metrics(dict.fromkeys(metric_names)),
        skipped=none_skipped(),
    )


def initialise(
    task: Task,
    tx: optax.GradientTransformation,
    metric_names: list[str],
    num_rows: int,
    seed: int,
    mesh: Mesh,
    weight_update: WeightUpdate = "replicated",
) -> tuple[TrainState, Any]:
    """Return a fresh state and the frozen variables, made directly in their places on the mesh.

    First the abstract shapes are computed, then their shardings, then one jitted function makes all arrays. So the
    whole state never has to fit on one device.

    Returns:
      (state, frozen variables).
    """
    fresh, key = _fresh(task, tx, metric_names, num_rows), jax.random.key(seed)
    placement = _shardings(task, mesh, jax.eval_shape(fresh, key), weight_update)
    with meshes.activations(mesh):
        state, frozen = jax.jit(lambda k: meshes.unbox(fresh(k)), out_shardings=placement)(key)
    return state, frozen


def initialise_frozen(task: Task, seed: int, mesh: Mesh, weight_update: WeightUpdate = "replicated") -> Any:
    """Return only the frozen variables that ``initialise`` makes, because no checkpoint holds them."""

    def frozen(key: jax.Array) -> Any:
        return task.init(key).frozen

    key = jax.random.key(seed)
    boxed = jax.eval_shape(frozen, key)
    if not jax.tree.leaves(boxed):
        return boxed
    with meshes.activations(mesh):
        return jax.jit(lambda k: meshes.unbox(frozen(k)), out_shardings=_frozen(task, mesh, boxed, weight_update))(key)


def abstract_fresh(
    task: Task,
    tx: optax.GradientTransformation,
    metric_names: list[str],
    num_rows: int,
    mesh: Mesh,
    weight_update: WeightUpdate = "replicated",
) -> tuple[TrainState, Any]:
    """Return the result of ``initialise`` as shapes, dtypes and shardings; the devices of ``mesh`` need not exist."""
    boxed = jax.eval_shape(_fresh(task, tx, metric_names, num_rows), jax.random.key(0))
    return jax.tree.map(  # type: ignore[no-any-return]
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        meshes.unbox(boxed),
        _shardings(task, mesh, boxed, weight_update),
    )


def _shardings(task: Task, mesh: Mesh, boxed: tuple[TrainState, Any], weight_update: WeightUpdate) -> Any:
    """Return the shardings of (state, frozen variables)."""
    state, frozen = boxed
    return meshes.shardings(mesh, state, _update(task, weight_update)), _frozen(task, mesh, frozen, weight_update)


def _update(task: Task, weight_update: WeightUpdate) -> WeightUpdate:
    """Return the weight update of a task: replicated if its rows' losses depend on each other."""
    return "replicated" if task.whole_batches else weight_update


def _frozen(task: Task, mesh: Mesh, boxed: Any, weight_update: WeightUpdate) -> Any:
    """Return the shardings of frozen variables. If parameters are split over rows, each device has all frozen ones."""
    if meshes.may_split(mesh, _update(task, weight_update)):
        return jax.tree.map(lambda _: meshes.replicated(mesh), meshes.unbox(boxed))
    return meshes.shardings(mesh, boxed)


def _fresh(
    task: Task, tx: optax.GradientTransformation, metric_names: list[str], num_rows: int
) -> Callable[[jax.Array], tuple[TrainState, Any]]:
    def fresh(key: jax.Array) -> tuple[TrainState, Any]:
        variables = task.init(key)
        carry = task.init_carry(num_rows)
        if jax.tree.leaves(carry):
            raise UserError(f"{type(task).__name__} carries state from step to step, which the trainer cannot do yet")
        return make_state(variables.params, tx, carry, metric_names), variables.frozen

    return fresh


def abstract(tree: Any) -> Any:
    """Return the shapes, dtypes and shardings of a tree of arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def overlay(given: Any, fresh: Any, where: str = "params") -> Any:
    """Return ``fresh`` with every leaf replaced that ``given`` has too; each is placed on the mesh like the fresh leaf.

    Raises:
      UserError: a shape differs.
    """
    if isinstance(fresh, dict):
        return {name: overlay(given.get(name, {}), leaf, f"{where}/{name}") for name, leaf in fresh.items()}
    if isinstance(given, dict):
        return fresh
    if given.shape != fresh.shape:
        raise UserError(f"{where} has shape {given.shape} in the model to start from, {fresh.shape} here")
    return jax.device_put(np.asarray(given, fresh.dtype), fresh.sharding)
