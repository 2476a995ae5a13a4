"""The parts of the parameters that a step updates (``Task.trains``), and what an optimizer keeps for them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax
import optax

from bert_jax.errors import UserError
from bert_jax.parts.catalogue import display_name, name_of
from bert_jax.task import Task, tasks_of
from bert_jax.training.mesh import unbox
from bert_jax.training.optimizers.base import Rule, changed_leaf


def part_of(params: Any, trains: frozenset[str] | None) -> Any:
    """Return the parts of ``params``, or of a tree like it, that ``trains`` names; None: all parts."""
    return params if trains is None else {name: params[name] for name in params if name in trains}


def transformation(task: Task, optimizer: Rule) -> optax.GradientTransformation:
    """Return the optimizer of a whole task. If each kind of batch trains all parts, it is ``optimizer.make()``.

    Otherwise ``update`` is given the gradients of the parts that a kind trains, and the state and the parameters of
    all parts. An optimizer keeps a value that is not kept by parameter, such as Adam's count of updates, for each part.
    So a part has the updates that it would have if it were trained alone, except that its gradient is clipped by the
    norm of all parts that are trained with it.
    """
    tx = optimizer.make()
    sets = {one.trains for one in tasks_of(task).values()}
    return tx if sets <= {None} else _by_parts(tx, sets)


def _by_parts(tx: optax.GradientTransformation, sets: Collection[frozenset[str] | None]) -> Any:
    """Return ``tx`` with a state that has counts for each part of the parameters.

    ``sets``: what each kind of batch trains.
    """

    def init(params: Any) -> Any:
        is_like = _like(params)
        return jax.tree.map(
            lambda node: node if is_like(node) else dict.fromkeys(params, node), tx.init(params), is_leaf=is_like
        )

    def update(gradients: Any, state: Any, params: Any) -> tuple[Any, Any]:
        template, is_like = jax.eval_shape(tx.init, params), _like(params)
        own, directions = {name: params[name] for name in gradients}, dict[str, Any]()
        groups: dict[tuple[bool, ...], list[str]] = {}  # parts that are always trained together have equal counts
        for name in gradients:
            groups.setdefault(tuple(one is None or name in one for one in sets), []).append(name)
        merged = state
        for names in groups.values():
            counted = jax.tree.map(
                lambda like, node, first=names[0]: {name: node[name] for name in own} if is_like(like) else node[first],
                template,
                state,
                is_leaf=is_like,
            )
            # XLA removes what it would compute here for the parts of other groups.
            direction, new = tx.update(gradients, counted, own)
            directions |= {name: direction[name] for name in names}
            merged = jax.tree.map(
                lambda like, node, now, names=tuple(names): (
                    node | {name: now[name] if is_like(like) else now for name in names}
                ),
                template,
                merged,
                new,
                is_leaf=is_like,
            )
        return {name: directions[name] for name in gradients}, merged

    return optax.GradientTransformation(init, update)


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
      UserError: a kind names no part, or a part that the parameters do not have; or the optimizer's state is not kept
        parameter by parameter, so that the optimizer cannot leave a part as it is.
    """
    chosen = {kind: one.trains for kind, one in tasks_of(task).items() if one.trains is not None}
    if not chosen:
        return
    params, tx = unbox(jax.eval_shape(task.init, jax.random.key(0)).params), optimizer.make()
    is_like = _like(params)
    name = display_name(name_of(type(optimizer).__module__))
    for kind, trains in chosen.items():
        if not trains or not trains <= params.keys():
            unknown = ", ".join(sorted(trains - params.keys())) or "nothing"
            raise UserError(f"batches of the kind {kind!r} train {unknown}; the model has {', '.join(params)}")
        part = part_of(params, trains)
        optimizer.check(part, name)
        state = jax.tree.map(
            lambda node, trains=trains: part_of(node, trains) if is_like(node) else node,
            jax.eval_shape(tx.init, params),
            is_leaf=is_like,
        )
        if differs := changed_leaf(state, jax.eval_shape(tx.init, part)):
            raise UserError(
                f"config.optimizer.name is {name}, and batches of the kind {kind!r} train {', '.join(sorted(trains))} "
                f"alone; that needs a state that is kept parameter by parameter, and this one is not ({differs}); take"
                " another, such as adamw"
            )
