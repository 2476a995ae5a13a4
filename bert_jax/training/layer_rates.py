"""Learning rates that are lower for layers nearer to the input (``config.schedule.layer_decay``).

The rate of a parameter is the schedule's times decay ** (N + 2 - depth), with N layers, as in google-research/electra,
model/optimization.py. Embeddings and the layer that widens them have depth 0, layer i has depth i + 1, and the
rest of the encoder has depth N + 1. So the last layer's factor is decay ** 2. Parts outside the encoder, such as pooler
and heads, have the full rate. Layers that share their parameters (ALBERT) count as one.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

from bert_jax.errors import UserError
from bert_jax.models.transformer import SHARED, STACKED, UNROLLED
from bert_jax.task import Task
from bert_jax.training.mesh import unbox


def scaled(tx: optax.GradientTransformation, decay: float | None) -> optax.GradientTransformation:
    """Return ``tx`` with each parameter's step multiplied by its factor; the state stays the same."""
    if decay is None or decay == 1:
        return tx

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        direction, state = tx.update(gradients, state, params)
        return jax.tree.map(lambda d, factor: d * factor, direction, factors(direction, decay)), state

    return optax.GradientTransformation(tx.init, update)


def factors(params: Any, decay: float) -> Any:
    """Return the factor of each leaf of ``params``: a number, or [N, 1, ...] of stacked layers, in the leaf's dtype.

    Raises ``UserError`` if the encoder has no layers under a name that is known.
    """
    encoder = params.get("encoder", {})
    depths: dict[str, Any] = {name: _number(name) + 1 for name in encoder if _is_layer(name)}
    if SHARED in encoder:
        depths[SHARED] = 1
    first, stacked = len(depths), encoder.get(STACKED, {})
    members = [name for name in stacked if _is_layer(name)]  # of a period of unlike layers
    if stacked:
        count, period = jax.tree.leaves(stacked)[0].shape[0], len(members) or 1
        for name in members or [""]:
            begin = first + 1 + (_number(name) if name else 0)
            depths[f"{STACKED}{name}"] = range(begin, begin + count * period, period)
    if encoder and not depths:
        raise UserError(
            f"config.schedule.layer_decay needs layers called {UNROLLED}0 and so on, or {STACKED}; this encoder has "
            f"{', '.join(encoder)}; leave it out"
        )
    number = max((np.max(depth) for depth in depths.values()), default=0)

    def of(name: str, tree: Any) -> Any:
        depth = depths.get(name, 0 if name.startswith("embedding") else number + 1)
        found = [decay ** int(number + 2 - one) for one in np.atleast_1d(depth)]
        if not name.startswith(STACKED):
            return jax.tree.map(lambda _: found[0], tree)
        return jax.tree.map(lambda leaf: np.reshape(np.asarray(found, leaf.dtype), (-1, *[1] * (leaf.ndim - 1))), tree)

    own = {name: of(name, tree) for name, tree in encoder.items()}
    if members:
        own[STACKED] = {name: of(f"{STACKED}{name}", tree) for name, tree in stacked.items()}
    return {name: own if name == "encoder" else jax.tree.map(lambda _: 1.0, tree) for name, tree in params.items()}


def check(task: Task, decay: float | None) -> None:
    """Raise ``UserError`` if ``decay`` is given and no layers that are known are trained. Nothing is computed."""
    if decay is None:
        return
    params = unbox(jax.eval_shape(task.init, jax.random.key(0)).params)
    if "encoder" not in params:
        raise UserError("config.schedule.layer_decay is for the layers of an encoder, and it is frozen; leave it out")
    factors(params, decay)


def _number(name: str) -> int:
    return int(name[len(UNROLLED) :])


def _is_layer(name: str) -> bool:
    return name.startswith(UNROLLED) and name[len(UNROLLED) :].isdigit()
