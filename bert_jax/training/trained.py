"""The parts of the parameters that a step updates (``Task.trains``), and what an optimizer keeps for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from bert_jax.catalogue import display_name, name_of
from bert_jax.errors import UserError
from bert_jax.task import Task, tasks_of
from bert_jax.training.mesh import unbox
from bert_jax.training.optimizers.base import Rule, changed


def part_of(params: Any, trains: frozenset[str] | None) -> Any:
    """Return those parts of ``params``, or of a tree like it, that ``trains`` names; None: all."""
    return params if trains is None else {name: params[name] for name in params if name in trains}


def update(
    tx: optax.GradientTransformation, gradients: Any, state: Any, params: Any, trains: frozenset[str] | None
) -> tuple[Any, Any]:
    """Return (direction, state) after an update of the parts of ``params`` that ``trains`` names.

    ``tx`` sees these parts and their state alone, as if the model had no others, which keep their state.

    Args:
      gradients: the gradients of these parts.
      state: the state of ``tx`` for all of ``params``.
    """
    if trains is None:
        return tx.update(gradients, state, params)
    direction, new = tx.update(gradients, _state_of(state, params, trains), part_of(params, trains))
    is_like = _like(params)
    merged = jax.tree.map(lambda old, now: {**old, **now} if is_like(old) else now, state, new, is_leaf=is_like)
    return direction, merged


def _state_of(state: Any, params: Any, trains: frozenset[str]) -> Any:
    """Return the state of an optimizer for ``params`` without what it keeps for parts that are not trained."""
    is_like = _like(params)
    return jax.tree.map(lambda node: part_of(node, trains) if is_like(node) else node, state, is_leaf=is_like)


def _like(params: Any) -> Callable[[Any], bool]:
    """Return a function: whether a node of an optimizer's state holds something for each parameter."""

    def is_like(node: Any) -> bool:
        if not isinstance(node, dict) or node.keys() != params.keys():
            return False
        try:
            jax.tree.map(lambda *_: None, params, node)
        except ValueError:
            return False
        return True

    return is_like


def check(task: Task, optimizer: Rule) -> None:
    """Check that each kind of batch trains parts that there are, in a way that the optimizer can. Nothing is computed.

    Raises:
      UserError: a kind names no part, or one that the parameters do not have; or the optimizer has a state that is not
        kept parameter by parameter, so that it cannot leave a part as it is.
    """
    chosen = {kind: one.trains for kind, one in tasks_of(task).items() if one.trains is not None}
    if not chosen:
        return
    params, tx = unbox(jax.eval_shape(task.init, jax.random.key(0)).params), optimizer.make()
    name = display_name(name_of(type(optimizer).__module__))
    for kind, trains in chosen.items():
        if not trains or not trains <= params.keys():
            unknown = ", ".join(sorted(trains - params.keys())) or "nothing"
            raise UserError(f"batches of the kind {kind!r} train {unknown}; the model has {', '.join(params)}")
        part = part_of(params, trains)
        optimizer.check(part, name)
        state = _state_of(jax.eval_shape(tx.init, params), params, trains)
        if differs := changed(state, jax.eval_shape(tx.init, part)):
            raise UserError(
                f"config.optimizer.name is {name}, and batches of the kind {kind!r} train {', '.join(sorted(trains))} "
                f"alone; that needs a state that is kept parameter by parameter, and this one is not ({differs}); take"
                " another, such as adamw"
            )
