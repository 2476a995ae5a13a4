"""The train step, which divides losses by their global counts, and the eval step; the same for every task and mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from bert_jax.errors import UserError
from bert_jax.models.dropout import RowRng
from bert_jax.records import Batch, Sum
from bert_jax.task import BatchTask, Variables, total_metric
from bert_jax.training import lanes
from bert_jax.training.mesh import ROWS, is_split
from bert_jax.training.sharded_update import Gradients, over_rows
from bert_jax.training.state import TrainState
from bert_jax.training.trained import part_of

_TrainStep = Callable[[TrainState, Any, Batch], TrainState]
_EvalStep = Callable[[Any, Any, Batch], tuple[tuple[dict[str, Sum], dict[str, jax.Array]], dict[str, jax.Array]]]

# Options of libtpu for collectives that run beside computation. Without the threshold all-reduces are joined into one
# at the end of the backward pass, which nothing hides. From 64 chips on, libtpu would make all-reduces of all-gathers.
OVERLAP = {
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
    "xla_enable_async_all_reduce": "true",
    "xla_jf_crs_combiner_threshold_in_bytes": str(4 * 2**20),
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
}

# XLA orders a step on CPU for parts that run beside each other, and holds what they need meanwhile. In the order that
# holds the least, a small ModernBERT takes a quarter less memory and no more time, bit for bit the same.
LEAST_MEMORY = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

# XLA on GPUs would multiply by the kernels of queries, keys and values at once, and then cut the result into three and
# add biases in a pass over memory, which three products do as they write.
_APART = {"xla_gpu_dot_merger_threshold_mb": "0"}


class CountError(UserError):
    """The number of targets of the loss term ``term`` does not follow from the batch alone."""

    def __init__(self, term: str, message: str):
        super().__init__(message)
        self.term = term


def count_targets(task: BatchTask, variables: Variables, batch: Batch, rng: RowRng | None) -> dict[str, jax.Array]:
    """Return the number of targets of each loss term: the counts of ``BatchTask.loss``, without the rest.

    Raises ``CountError`` if a count does not follow from the batch alone: a step would have to run the model twice.
    """

    def counts(rows: Batch, others: tuple[Variables, RowRng | None]) -> dict[str, jax.Array]:
        return {name: term.count for name, term in task.loss(others[0], rows, others[1]).terms.items()}

    traced, shapes = jax.make_jaxpr(counts, return_shape=True)(batch, (variables, rng))
    names, rows = sorted(shapes), jax.tree.leaves(batch)
    jaxpr, used = dce_jaxpr(traced.jaxpr, [True] * len(names))
    if any(used[len(rows) :]):
        wrong = [n for n in names if any(dce_jaxpr(traced.jaxpr, [one == n for one in names])[1][len(rows) :])]
        raise CountError(
            wrong[0],
            f"the count of the loss term {wrong[0]!r} depends on what the model computes, and has to follow from the "
            "batch alone: let weights from outputs weigh the value of its Sum, and count the targets in the batch",
        )
    read = [x for x, is_read in zip(rows, used, strict=False) if is_read]
    return dict(zip(names, jaxpr_as_fun(ClosedJaxpr(jaxpr, traced.consts))(*read), strict=True))


def _add(left: Any, right: Any) -> Any:
    return jax.tree.map(jnp.add, left, right)


def _select(condition: jax.Array, left: Any, right: Any) -> Any:
    """Return ``left`` if ``condition`` [] holds, otherwise ``right``."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), left, right)


def make_gradients(
    task: BatchTask, micro_batches: int = 1, placed: Any = None, gradient_dtype: str | None = None
) -> Gradients:
    """Return a function (params, frozen, batch, rng) -> (gradients, loss, metrics, memory) of a batch.

    Each term of the loss is multiplied by its weight / its count over the whole global batch. So each masked position
    has the same weight, even if devices or micro-batches have different numbers of masked positions. The parts that
    ``task.trains`` names have gradients. Gradients of micro-batches are added up in float32 or wider; their memory is
    put together, row by row.

    Args:
      task: the task of one kind of batch.
      placed: the parameters, as arrays or shapes with shardings. If some are split over the rows' devices,
        ``sharded_update`` sums the gradients over these, in ``gradient_dtype``; otherwise, or if None, the partitioner
        does.
    """
    split = is_split(placed)

    def scale_of(counts: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return the factor of each term from its count in the batch, or in the rows of this device."""
        counts = jax.lax.psum(counts, ROWS) if split else counts
        return {name: task.loss_weights[name] / jnp.maximum(count, 1.0) for name, count in counts.items()}

    def loss_of(trained: Any, params: Any, frozen: Any, batch: Batch, rng: RowRng, scale: Any = None) -> Any:
        """Return the part that this batch or micro-batch adds to the loss of the global batch, and its metrics.

        ``scale``: the factor of each term; if None, the factor that follows from the counts in ``batch``.
        """
        losses = task.loss(Variables({**params, **trained}, frozen), batch, rng)
        if scale is None:
            scale = scale_of(jax.lax.stop_gradient({name: term.count for name, term in losses.terms.items()}))
        total = sum(term.value * scale[name] for name, term in losses.terms.items())
        return total, (losses.metrics, dict(losses.memory))

    value_and_grad = jax.value_and_grad(loss_of, has_aux=True)

    def gradients(params: Any, frozen: Any, batch: Batch, rng: RowRng) -> Any:
        trained = part_of(params, task.trains)
        scale = None
        if micro_batches > 1:
            scale = scale_of(count_targets(task, Variables(params, frozen), batch, rng))

        def one(part: tuple[Batch, RowRng]) -> tuple[Any, jax.Array, dict[str, Sum], dict[str, jax.Array]]:
            (loss, (metrics, memory)), grads = value_and_grad(trained, params, frozen, *part, scale)
            return grads, loss, metrics, memory

        def wide(part: tuple[Batch, RowRng]) -> Any:
            grads, *rest, memory = one(part)
            grads = jax.tree.map(lambda g: g.astype(jnp.promote_types(g.dtype, jnp.float32)), grads)
            return (grads, *rest), memory

        if micro_batches == 1:
            return one((batch, rng))
        parts = _split_rows((batch, rng), micro_batches)
        # The model is traced once, for a part's shapes, and compiled once, because the sum starts from zeros.
        traced, shapes = jax.make_jaxpr(wide, return_shape=True)(jax.tree.map(lambda x: x[0], parts))
        zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in jax.tree.leaves(shapes[0])]

        def body(sums: list[jax.Array], part: Any) -> tuple[list[jax.Array], list[jax.Array]]:
            found = jaxpr_as_fun(traced)(*jax.tree.leaves(part))
            return _add(sums, found[: len(zeros)]), found[len(zeros) :]

        sums, memory = jax.lax.scan(body, zeros, parts)
        total, memory = jax.tree.unflatten(jax.tree.structure(shapes), [*sums, *memory])
        # [parts, B/parts, ...] becomes [B, ...], in the order of the rows before ``_split_rows``.
        return *total, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), memory)

    if not split:
        return gradients
    return over_rows(gradients, jax.tree.map(lambda x: x.sharding, placed), task.trains, task.dtype, gradient_dtype)


def make_train_step(
    task: BatchTask,
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
    seed: int,
    gradients: Gradients | None = None,
) -> _TrainStep:
    """Return the train step, a function (state, frozen, batch) -> state after one update.

    Metrics are added to ``state.metrics``, which may also have metrics of other kinds. The loss and its gradient belong
    to the whole global batch, whatever the micro-batches and the mesh are. Dropout bits depend only on (seed, step,
    row, site). Parts that ``task.trains`` does not name keep their bits. A step whose loss or gradient norm is not
    finite changes no parameter and adds to no metric except the learning rate; the step number and the schedule
    advance, ``state.skipped`` records the step, and the memory of every lane is empty.

    Args:
      task: the task of one kind of batch.
      tx: what ``trained.transformation`` returns for the whole task.
      gradients: what ``make_gradients`` returns; by default for one micro-batch, without ``sharded_update``.
    """
    gradients = gradients or make_gradients(task)

    def train_step(state: TrainState, frozen: Any, batch: Batch) -> TrainState:
        num_rows = next(iter(batch.values())).shape[0]
        rng = RowRng.create(seed, state.step, jnp.arange(num_rows, dtype=jnp.uint32))
        carried = {name: state.memory[name] for name in task.memory}
        batch = lanes.with_memory(batch, carried)
        grads, loss, metrics, memory = gradients(state.params, frozen, batch, rng)
        norm = optax.tree.norm(grads)
        sound = jnp.isfinite(loss) & jnp.isfinite(norm)
        direction, opt_state = tx.update(grads, state.opt_state, state.params)
        learning_rate = schedule(state.step)
        moved = jax.tree.map(lambda w, d: w - learning_rate * d, part_of(state.params, task.trains), direction)
        metrics = metrics | {
            total_metric(task): Sum(loss, jnp.ones([])),
            "gradient_norm": Sum(norm, jnp.ones([])),
        }
        metrics = _select(sound, metrics, jax.tree.map(jnp.zeros_like, metrics))
        metrics["learning_rate"] = Sum(learning_rate, jnp.ones([]))
        return TrainState(
            step=state.step + 1,
            params=_select(sound, {**state.params, **moved}, state.params),
            opt_state=_select(sound, opt_state, state.opt_state),
            metrics=_add(state.metrics, {**jax.tree.map(jnp.zeros_like, state.metrics), **metrics}),
            skipped=state.skipped.add(state.step, ~sound),
            memory=state.memory | _select(sound, memory, jax.tree.map(jnp.zeros_like, memory)),
        )

    return train_step


def jit_train_step(train_step: _TrainStep, state: Any, overlap: bool = False) -> Any:
    """Return ``train_step`` jitted.

    The new state takes the memory and the placement of the old state, which is donated.

    Args:
      state: a state of arrays or shapes, with shardings.
      overlap: whether a TPU sums gradients while it computes, as ``config.mesh.overlap`` says.

    Returns:
      A function whose ``.lower(state, frozen, batch).compile()`` is the executable.
    """
    placement = jax.tree.map(lambda x: x.sharding, state)
    (platform,) = {device.platform for device in jax.tree.leaves(placement)[0].device_set}
    options = {"cpu": LEAST_MEMORY, "gpu": _APART, "tpu": OVERLAP if overlap else None}.get(platform)
    return jax.jit(train_step, donate_argnums=0, out_shardings=placement, compiler_options=options)


def _split_rows(tree: Any, parts: int) -> Any:
    """Return [B, ...] as [parts, B/parts, ...].

    Each part has every ``parts``-th row, so that it is spread evenly over devices. A leaf without rows (a key) is
    repeated.
    """

    def split(x: jax.Array) -> jax.Array:
        if x.ndim == 0:
            return jnp.broadcast_to(x, (parts,))
        return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

    return jax.tree.map(split, tree)


def make_eval_step(task: BatchTask) -> _EvalStep:
    """Return the eval step, a function (params, frozen, batch) -> ((metric sums, gathered outputs), memory).

    There is no dropout. ``batch`` may have the arrays that ``BatchTask.memory`` names too; the gathered outputs are the
    outputs that ``BatchTask.gathered_outputs`` names.

    Args:
      task: the task of one kind of batch.
    """

    def eval_step(params: Any, frozen: Any, batch: Batch) -> Any:
        variables = Variables(params, frozen)
        batch = lanes.with_memory(batch, {name: batch[name] for name in task.memory if name in batch})
        losses = task.loss(variables, batch, None)
        memory = lanes.placed(losses.memory)
        if not task.gathered_outputs:
            return (losses.metrics, {}), memory
        outputs = task.outputs(variables, batch)  # XLA merges this with the same computation above
        return (losses.metrics, {name: outputs[name] for name in task.gathered_outputs}), memory

    return eval_step
