"""The state that a run carries from step to step. A checkpoint holds all of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.records import Batch, Sum
from bert_jax.task import Task, Variables, needs_whole_batches, tasks_of, total_metric
from bert_jax.training import mesh as meshes
from bert_jax.training.lanes import Memory
from bert_jax.training.mesh import WeightUpdate

LAST = 256  # the number of skipped steps that a state remembers; read them at least once in this many steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class SkippedSteps:
    """The steps without an update, because their loss or gradient was not finite."""

    count: jax.Array  # [] int32
    last: jax.Array  # [LAST] int32: the newest skipped steps; the i-th of all is at i % LAST

    @classmethod
    def none(cls) -> SkippedSteps:
        return cls(jnp.zeros([], jnp.int32), jnp.zeros([LAST], jnp.int32))

    def add(self, step: jax.Array, skipped: jax.Array) -> SkippedSteps:
        """Return the skipped steps with ``step`` added if ``skipped`` ([] bool) is true."""
        place = self.count % LAST
        last = self.last.at[place].set(jnp.where(skipped, step, self.last[place]))
        return SkippedSteps(self.count + skipped.astype(jnp.int32), last)

    def since(self, number: int) -> list[int]:
        """Return the skipped steps after the first ``number``, ascending. The arrays must be on the host."""
        assert int(self.count) - number <= LAST, "a look comes at least every LAST steps"
        return [int(self.last[i % LAST]) for i in range(number, int(self.count))]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    step: jax.Array  # [] int32: updates done so far
    params: Any  # float32 master parameters
    opt_state: Any
    metrics: dict[str, Sum]  # sums since the last log line, so that a resumed run logs the same as an unbroken one
    skipped: SkippedSteps  # steps that left params and opt_state as they were
    # what the last step handed on to the next, row by row [B, ...] (``BatchTask.memory``)
    memory: dict[str, jax.Array] = dataclasses.field(default_factory=dict)


def shapes_of(task: Task) -> Variables:
    """Return the shapes and dtypes of all variables of a task, boxed with logical axes, from a trace."""
    return jax.eval_shape(task.init, jax.random.key(0))


def step_metrics(task: Task, variables: Variables | None = None) -> list[str]:
    """Return the names of the metrics of the train steps of all kinds of batches, and of the metrics that a step adds.

    ``variables``: ``shapes_of(task)``, if they are known.
    """
    tasks = tasks_of(task)
    specs = {kind: {**task.batch_specs[kind], **one.memory}.items() for kind, one in tasks.items()}
    batches = {kind: {n: jax.ShapeDtypeStruct((1, *f.shape), f.dtype) for n, f in spec} for kind, spec in specs.items()}

    def metrics(variables: Variables, rows: dict[str, Batch]) -> list[dict[str, Sum]]:
        return [one.loss(meshes.unbox(variables), rows[kind], None).metrics for kind, one in tasks.items()]

    found = jax.eval_shape(metrics, variables or shapes_of(task), batches)
    names = dict.fromkeys(name for of_kind in found for name in of_kind)
    return [*names, *map(total_metric, tasks.values()), "gradient_norm", "learning_rate"]


def make_state(
    params: Any, tx: optax.GradientTransformation, step_metrics: list[str], memory: Memory | None = None
) -> TrainState:
    """Return a state at step 0 with the given parameters, which may be boxed with logical axes, and empty memory."""
    return TrainState(
        step=jnp.zeros([], jnp.int32),
        params=params,
        opt_state=tx.init(meshes.unbox(params)),
        metrics={name: Sum(jnp.zeros([], jnp.float32), jnp.zeros([], jnp.float32)) for name in step_metrics},
        skipped=SkippedSteps.none(),
        memory={name: jnp.zeros(one.shape, one.dtype) for name, one in (memory or {}).items()},
    )


@dataclasses.dataclass(frozen=True)
class InitialState:
    """The state at step 0 and the frozen variables of a task on a mesh, as (state, frozen variables).

    If the losses of a task's rows depend on each other in any kind of batch, its weight update is replicated.
    ``memory``: the shapes of the memory that the state carries (``lanes.of_run``).
    """

    task: Task
    tx: optax.GradientTransformation
    mesh: Mesh
    weight_update: WeightUpdate = "replicated"
    memory: Memory = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def shapes(self) -> tuple[TrainState, Any]:
        """Return the shapes, dtypes and shardings; the devices of ``mesh`` need not exist."""
        boxed = jax.eval_shape(self._state, self._variables)
        update: WeightUpdate = "replicated" if needs_whole_batches(self.task) else self.weight_update
        if meshes.may_split(self.mesh, update):  # then each device has all frozen variables
            frozen = jax.tree.map(lambda _: meshes.replicated(self.mesh), meshes.unbox(boxed[1]))
        else:
            frozen = meshes.shardings(self.mesh, boxed[1])
        state, placed = meshes.unbox(boxed[0]), meshes.shardings(self.mesh, boxed[0].params, update)
        places = dataclasses.replace(
            jax.tree.map(lambda _: meshes.replicated(self.mesh), state),
            params=placed,
            opt_state=meshes.beside(state.params, placed, state.opt_state),
            memory=jax.tree.map(lambda _: meshes.batch_sharding(self.mesh), state.memory),
        )
        return jax.tree.map(  # type: ignore[no-any-return]
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            (state, meshes.unbox(boxed[1])),
            (places, frozen),
        )

    def make(self, seed: int) -> tuple[TrainState, Any]:
        """Return the arrays. They are made in their places, so the whole state never has to fit on one device."""
        return self._make(lambda key: self._state(self.task.init(key)), self.shapes, seed)  # type: ignore[no-any-return]

    def make_frozen(self, seed: int) -> Any:
        """Return the frozen variables alone, because no checkpoint holds them."""
        shapes = self.shapes[1]
        return self._make(lambda key: self.task.init(key).frozen, shapes, seed) if jax.tree.leaves(shapes) else shapes

    def _make(self, fresh: Callable[[jax.Array], Any], shapes: Any, seed: int) -> Any:
        """Return what ``fresh`` makes of a key, placed as ``shapes`` say.

        The numpy arrays among them, such as the parameters of a teacher, are copied there; the program that draws the
        rest does not hold them.
        """
        leaves: list[Any] = []

        def drawn(key: jax.Array) -> list[jax.Array]:
            leaves[:] = jax.tree.leaves(meshes.unbox(fresh(key)))
            return [jnp.zeros(()) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]

        wanted, structure = jax.tree.flatten(shapes)
        with meshes.activations(self.mesh):
            made = jax.jit(drawn, out_shardings=[like.sharding for like in wanted])(jax.random.key(seed))
        for i, (leaf, like) in enumerate(zip(leaves, wanted, strict=True)):
            if isinstance(leaf, np.ndarray):
                value = np.asarray(leaf, like.dtype)  # every process has it
                made[i] = jax.make_array_from_callback(value.shape, like.sharding, value.__getitem__)
        return jax.tree.unflatten(structure, made)

    @functools.cached_property
    def _variables(self) -> Variables:
        return shapes_of(self.task)

    @functools.cached_property
    def _metric_names(self) -> list[str]:
        return step_metrics(self.task, self._variables)

    def _state(self, variables: Variables) -> tuple[TrainState, Any]:
        return make_state(variables.params, self.tx, self._metric_names, self.memory), variables.frozen


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
