"""The train step and the eval step: pure functions that are the same for every task, mesh and accumulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import jaxpr_as_fun

from bert_jax.models.dropout import RowRng
from bert_jax.records import Batch, Sum
from bert_jax.task import Losses, Task, Variables
from bert_jax.training.mesh import is_split, unbox
from bert_jax.training.schedules import Schedule
from bert_jax.training.sharded_update import Gradients, over_rows
from bert_jax.training.state import TrainState

TrainStep = Callable[[TrainState, Any, Batch], TrainState]
EvalStep = Callable[[Any, Any, Batch], tuple[dict[str, Sum], dict[str, jax.Array]]]

# Options of libtpu for collectives that run beside computation. Without the threshold all-reduces are joined into one
# at the end of the backward pass, which nothing hides. From 64 chips on, libtpu would make all-reduces of all-gathers.
OVERLAP = {
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
    "xla_enable_async_all_reduce": "true",
    "xla_jf_crs_combiner_threshold_in_bytes": str(4 * 2**20),
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
}


def loss_scale(task: Task, batch: Batch) -> dict[str, jax.Array]:
    """Return weight / count of each loss term, where the count is over the whole global batch.

    So each masked position has the same weight, even if devices or micro-batches have different numbers of them.
    """
    counts = task.counts(batch)
    return {term: task.loss_weights[term] / jnp.maximum(count, 1.0) for term, count in counts.items()}


def total_loss(
    task: Task, params: Any, frozen: Any, batch: Batch, scale: dict[str, jax.Array], rng: RowRng | None, carry: Any
) -> tuple[jax.Array, Losses]:
    """Return the part that this batch or micro-batch adds to the loss of the global batch, and its ``Losses``."""
    losses = task.loss(Variables(params, frozen), batch, rng, carry)
    return sum(term.value * scale[name] for name, term in losses.terms.items()), losses  # type: ignore[return-value]


def add(left: Any, right: Any) -> Any:
    return jax.tree.map(jnp.add, left, right)


def select(condition: jax.Array, left: Any, right: Any) -> Any:
    """Return ``left`` if ``condition`` [] holds, otherwise ``right``."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), left, right)


def make_gradients(task: Task, micro_batches: int) -> Gradients:
    """Return a function (params, frozen, batch, scale, rng, carry) -> (gradients, loss, metrics, carry) of a batch.

    The gradients of micro-batches are added up in float32 or wider.
    """
    value_and_grad = jax.value_and_grad(total_loss, argnums=1, has_aux=True)

    def gradients(params: Any, frozen: Any, batch: Batch, scale: Any, rng: RowRng, carry: Any) -> Any:
        def one(part: tuple[Batch, RowRng]) -> tuple[Any, jax.Array, dict[str, Sum], Any]:
            (loss, losses), grads = value_and_grad(task, params, frozen, part[0], scale, part[1], carry)
            return grads, loss, losses.metrics, losses.carry

        def wide(part: tuple[Batch, RowRng]) -> Any:
            grads, *rest = one(part)
            return jax.tree.map(lambda g: g.astype(jnp.promote_types(g.dtype, jnp.float32)), grads), *rest

        if micro_batches == 1:
            return one((batch, rng))
        parts = split_rows((batch, rng), micro_batches)
        # The model is traced once, for a part's shapes, and compiled once, because the sum starts from zeros.
        traced, shapes = jax.make_jaxpr(wide, return_shape=True)(jax.tree.map(lambda x: x[0], parts))
        zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in jax.tree.leaves(shapes)]

        def body(sums: list[jax.Array], part: Any) -> tuple[list[jax.Array], None]:
            return add(sums, jaxpr_as_fun(traced)(*jax.tree.leaves(part))), None

        return jax.tree.unflatten(jax.tree.structure(shapes), jax.lax.scan(body, zeros, parts)[0])

    return gradients


def make_train_step(
    task: Task,
    tx: optax.GradientTransformation,
    schedule: Schedule,
    seed: int,
    micro_batches: int = 1,
    placed: Any = None,
    gradient_dtype: str | None = None,
) -> TrainStep:
    """Return the train step, a function (state, frozen, batch) -> state after one update.

    Metrics are added to ``state.metrics``. The loss and its gradient are those of the whole global batch, whatever
    ``micro_batches`` and the mesh are. Dropout bits depend only on (seed, step, row, site). A step whose loss or
    gradient norm is not finite changes no parameter and adds to no metric except the learning rate; the step number and
    the schedule advance, and ``state.skipped`` records the step.

    Args:
      placed: the parameters, as arrays or shapes with shardings. If some are split over the rows' devices,
        ``sharded_update`` sums the gradients over these, in ``gradient_dtype``; otherwise, or if None, the partitioner
        does.
    """
    gradients = make_gradients(task, micro_batches)
    if is_split(placed):
        shardings = jax.tree.map(lambda x: x.sharding, placed)
        gradients = over_rows(gradients, shardings, task.dtype, gradient_dtype)

    def train_step(state: TrainState, frozen: Any, batch: Batch) -> TrainState:
        num_rows = next(iter(batch.values())).shape[0]
        rng = RowRng.create(seed, state.step, jnp.arange(num_rows, dtype=jnp.uint32))
        scale = loss_scale(task, batch)
        grads, loss, metrics, carry = gradients(state.params, frozen, batch, scale, rng, state.carry)
        norm = optax.global_norm(grads)
        sound = jnp.isfinite(loss) & jnp.isfinite(norm)
        direction, opt_state = tx.update(grads, state.opt_state, state.params)
        learning_rate = schedule(state.step)
        params = jax.tree.map(lambda w, d: w - learning_rate * d, state.params, direction)
        metrics = metrics | {
            "loss": Sum(loss, jnp.ones([])),
            "gradient_norm": Sum(norm, jnp.ones([])),
        }
        metrics = select(sound, metrics, jax.tree.map(jnp.zeros_like, metrics))
        metrics["learning_rate"] = Sum(learning_rate, jnp.ones([]))
        return TrainState(
            step=state.step + 1,
            params=select(sound, params, state.params),
            opt_state=select(sound, opt_state, state.opt_state),
            carry=select(sound, carry, state.carry),
            metrics=add(state.metrics, metrics),
            skipped=state.skipped.add(state.step, ~sound),
        )

    return train_step


def jit_train_step(train_step: TrainStep, state: Any, overlap: bool = False) -> Any:
    """Return ``train_step`` jitted in the way in which both the loop and every plan compile it.

    The new state takes the memory and the placement of the old state, which is donated.

    Args:
      state: a state of arrays or shapes, with shardings.
      overlap: whether a TPU sums gradients while it computes, as ``config.mesh.overlap`` says.

    Returns:
      A function whose ``.lower(state, frozen, batch).compile()`` is the executable.
    """
    placement = jax.tree.map(lambda x: x.sharding, state)
    options = OVERLAP if overlap else None
    return jax.jit(train_step, donate_argnums=0, out_shardings=placement, compiler_options=options)


def split_rows(tree: Any, parts: int) -> Any:
    """Return [B, ...] as [parts, B/parts, ...].

    Each part has every ``parts``-th row, so that it is spread evenly over devices. A leaf without rows (a key) is
    repeated.
    """

    def split(x: jax.Array) -> jax.Array:
        if x.ndim == 0:
            return jnp.broadcast_to(x, (parts,))
        return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

    return jax.tree.map(split, tree)


def make_eval_step(task: Task) -> EvalStep:
    """Return the eval step, a function (params, frozen, batch) -> (metric sums, ``Task.gathered_outputs``).

    There is no dropout.
    """

    def eval_step(params: Any, frozen: Any, batch: Batch) -> tuple[dict[str, Sum], dict[str, jax.Array]]:
        num_rows = next(iter(batch.values())).shape[0]
        variables, carry = Variables(params, frozen), task.init_carry(num_rows)
        metrics = task.loss(variables, batch, None, carry).metrics
        if not task.gathered_outputs:
            return metrics, {}
        outputs = task.outputs(variables, batch, carry)  # XLA merges this with the same computation above
        return metrics, {name: outputs[name] for name in task.gathered_outputs}

    return eval_step


def metric_names(task: Task) -> list[str]:
    """Return the names of all metrics of a train step: those of the task, and those that the step adds."""
    kind = next(iter(task.batch_specs))
    spec = task.batch_specs[kind]
    batch = {name: jax.ShapeDtypeStruct((1, *f.shape), f.dtype) for name, f in spec.items()}

    def evaluate(key: jax.Array, rows: Batch) -> dict[str, Sum]:
        variables = unbox(task.init(key))
        return make_eval_step(task)(variables.params, variables.frozen, rows)[0]

    return [*jax.eval_shape(evaluate, jax.random.key(0), batch), "loss", "gradient_norm", "learning_rate"]
