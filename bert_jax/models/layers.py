"""Converts layer parameters between separate trees (``layer_0``, ``layer_1``, ...) and stacked arrays (``layers``).

Stacked arrays have a leading axis over layers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

STACKED, UNROLLED = "layers", "layer_"


def stack_layers(params: Any) -> Any:
    """Return the parameters of an unrolled model in the form of the same model with ``layers="scanned"``.

    The dictionary that holds the layers may be at any depth of the tree; numpy arrays stay numpy arrays.
    """
    if not isinstance(params, dict):
        return params
    layers = {name: tree for name, tree in params.items() if name.removeprefix(UNROLLED).isdigit()}
    rest = {name: stack_layers(tree) for name, tree in params.items() if name not in layers}
    if not layers:
        return rest
    in_order = [layers[f"{UNROLLED}{i}"] for i in range(len(layers))]
    return rest | {STACKED: jax.tree.map(_stack, *in_order)}


def unstack_layers(params: Any) -> Any:
    """Return the parameters of a scanned model in the form of the unrolled model: the inverse of ``stack_layers``."""
    if not isinstance(params, dict):
        return params
    rest = {name: unstack_layers(tree) for name, tree in params.items() if name != STACKED}
    if STACKED not in params:
        return rest
    stacked = params[STACKED]
    count = jax.tree.leaves(stacked)[0].shape[0]
    return rest | {f"{UNROLLED}{i}": jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)}


def _stack(*leaves: Any) -> Any:
    return np.stack(leaves) if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp.stack(leaves)
