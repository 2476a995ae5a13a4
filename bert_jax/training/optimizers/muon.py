"""Muon: momentum made orthogonal for the matrices of layers (Jordan et al. 2024), AdamW for everything else.

Sources: https://kellerjordan.github.io/posts/muon, and Liu et al. 2025, arXiv 2502.16982 (weight decay, and one rate
for both rules), whose code is MoonshotAI/Moonlight. State and values equal
``optax.contrib.scale_by_muon``, but optax iterates kernel by kernel: 8 layers of 6 kernels take 720 small products.

The iteration is in bfloat16 on GPUs and TPUs, as in the code of Jordan, of Moonlight and in ``torch.optim.Muon``; the
directions have a cosine of 0.9993 to 0.9999 with the directions in float32, and small models learn the same
(bert_jax/training/README.md). On CPUs it is in float32. Momentum, norms and coefficients are in float32 everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from bert_jax.configuration import ONE, check_fields
from bert_jax.models.placement import constrain, platform
from bert_jax.training.optimizers import adamw, base

PART, OF_HEADS = "encoder", "output"  # the part with the matrices, and the map whose first axes are heads
_COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of a step of the iteration (Jordan et al. 2024)
RMS = 0.2  # about the RMS of AdamW's steps (Liu et al. 2025, section 2.2)


@dataclasses.dataclass(frozen=True)
class Optimizer(adamw.Adam):
    """The defaults come from Moonlight's code, which clips nothing.

    The kernels of the encoder are matrices from their inputs to their outputs: attention's [D, H, d] and [H, d, D] are
    [D, H*d] and [H*d, D]. Stacked layers are matrices one by one, as are queries, keys and values of one kernel, and
    the halves of a gated MLP. A step of a matrix [n, m] is its momentum made orthogonal, times 0.2 * sqrt(max(n, m)):
    entries then have the RMS of a step of AdamW, so that both rules share learning rate and decay. Embeddings, heads,
    the pooler, biases and layer norms are left to AdamW.
    """

    b2: float = 0.95  # AdamW's decay of the mean of squared gradients
    eps: float = 1e-8  # added to the root of AdamW's second moment
    weight_decay: float = 0.1  # decay of weights, of both rules; biases and layer norms are not decayed
    clip_norm: float | None = None  # gradients with a larger norm are scaled to it; None: never
    momentum: float = 0.95  # of matrices, Nesterov's

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "from 0 to below 1 is allowed"
        check_fields(self, "config.optimizer", allowed, "momentum", sound=lambda value: 0 <= value < ONE)

    def make(self) -> optax.GradientTransformation:
        rules = {
            "muon": optax.chain(_momentum(self.momentum), optax.stateless(_orthogonal)),
            "adam": optax.scale_by_adam(self.b1, self.b2, self.eps),
        }
        return optax.chain(base.clip(self.clip_norm), optax.partition(rules, _rules_of), base.decay(self.weight_decay))


def _rules_of(params: Any) -> Any:
    """Return a tree like ``params`` that names the rule of each: "muon" or "adam"."""

    def rule(path: tuple[Any, ...], _: Any) -> str:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        return "muon" if names[:1] == [PART] and names[-1] == "kernel" else "adam"

    return jax.tree_util.tree_map_with_path(rule, params)


def dimension_numbers(kernels: Any) -> Any:
    """Return which axes of each kernel are inputs, and which are outputs.

    An axis that counts matrices is neither: the axis of stacked layers, and of the outputs that a layer makes of one
    input.
    """

    def axes_of(path: tuple[Any, ...], kernel: jax.Array) -> MuonDimensionNumbers:
        axes, names = base.own_axes(path, kernel), [getattr(key, "key", "") for key in path]
        inputs = len(axes) - 1 if OF_HEADS in names else 1
        several = "qkv" in names or ("input" in names and len(axes) == 3)
        return MuonDimensionNumbers(axes[:inputs], axes[inputs + several :])

    return jax.tree_util.tree_map_with_path(axes_of, kernels)


def _momentum(b: float) -> optax.GradientTransformation:
    """Return Nesterov's momentum, with the state of ``scale_by_muon``, whose coefficients are not read."""

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        del params
        mu, count = optax.tree.update_moment(gradients, state.mu, b, 1), optax.safe_increment(state.count)
        kept = optax.tree.bias_correction(mu, b, optax.safe_increment(count))
        new = optax.tree.bias_correction(gradients, b, count)
        return jax.tree.map(lambda m, g: b * m + (1 - b) * g, kept, new), state._replace(count=count, mu=mu)

    return optax.GradientTransformation(scale_by_muon().init, update)


def _orthogonal(updates: Any, _: Any) -> Any:
    """Return updates made orthogonal, with the RMS of AdamW's steps."""
    dtype = "bfloat16" if platform() in ("gpu", "tpu") else None
    kernels = jax.tree.map(lambda x: x.astype(dtype or x.dtype), updates)
    # The barriers keep the rearrangement out of the kernels that update momentum and weights: these would be copied.
    stacks, unstacked = jax.vjp(_stacked, jax.lax.optimization_barrier(kernels))
    [turned] = unstacked({shape: _iterated(stack) for shape, stack in stacks.items()})  # the transpose leads back
    return jax.tree.map(lambda x, like: x.astype(like.dtype), jax.lax.optimization_barrier(turned), updates)


def _stacked(kernels: Any) -> dict[tuple[int, int], jax.Array]:
    """Return all matrices of each shape [n, m], n <= m, as [k, n, m]; each device has its share of the k."""
    found: dict[tuple[int, int], list[jax.Array]] = {}

    def add(kernel: jax.Array, axes: MuonDimensionNumbers) -> None:
        n, m = (math.prod(kernel.shape[axis] for axis in side) for side in axes)  # type: ignore[union-attr]
        matrices = [kernel]
        for axis in {*range(kernel.ndim)}.difference(*axes):  # type: ignore[arg-type]
            matrices = [one for part in matrices for one in jnp.split(part, part.shape[axis], axis)]
        for matrix in matrices:
            flat = matrix.reshape(n, m)
            found.setdefault((min(n, m), max(n, m)), []).append(flat if n <= m else flat.T)

    jax.tree.map(add, kernels, dimension_numbers(kernels))
    # From a part of the rows of every matrix to whole matrices, whichever axis of a kernel is split over devices.
    by_rows = {shape: constrain(jnp.stack(each), None, "matrices", None) for shape, each in found.items()}
    return {shape: constrain(stack, "matrices", None, None) for shape, stack in by_rows.items()}


def _iterated(x: jax.Array) -> jax.Array:
    """Return matrices x [k, n, m] made orthogonal by five Newton-Schulz steps, with the RMS of AdamW's steps.

    A step is a X + b (X X^T) X + c (X X^T)^2 X, here with all of it but the last X in one sum.
    """
    a, b, c = np.asarray(_COEFFICIENTS, np.float32)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    norm = jnp.linalg.norm(x.astype(wide), axis=(1, 2), keepdims=True)
    x, one = (x / (norm + 1e-8)).astype(x.dtype), jnp.eye(x.shape[1], dtype=wide)[None]
    for _ in range(5):
        square = x @ x.mT
        x = (a * one + b * square + c * (square @ square)).astype(x.dtype) @ x
    return (np.float32(RMS * math.sqrt(x.shape[2])) * x).astype(x.dtype)
