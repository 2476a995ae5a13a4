"""Muon: momentum made orthogonal for the matrices of layers (Jordan et al. 2024), AdamW for everything else.

Sources: https://kellerjordan.github.io/posts/muon, and Liu et al. 2025, arXiv 2502.16982 (weight decay, and one rate
for both rules), whose code is MoonshotAI/Moonlight. The momentum and the iteration are those of ``optax.contrib``.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from bert_jax.configuration import ONE, check_fields
from bert_jax.training.optimizers import adamw, base

PART, OF_HEADS = "encoder", "output"  # the part with the matrices, and the map whose first axes are heads
RMS = 0.2  # that of AdamW's steps (Liu et al. 2025, section 2.2)


@dataclasses.dataclass(frozen=True)
class Optimizer(adamw.Adam):
    """The defaults are those of Moonlight's code, which clips nothing.

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
        orthogonal = scale_by_muon(beta=self.momentum, weight_dimension_numbers=dimension_numbers)
        rules = {
            "muon": optax.chain(orthogonal, optax.stateless(_with_rms)),
            "adam": optax.scale_by_adam(self.b1, self.b2, self.eps),
        }
        return optax.chain(base.clip(self.clip_norm), optax.partition(rules, rules_of), base.decay(self.weight_decay))


def rules_of(params: Any) -> Any:
    """Return a tree like ``params`` that names the rule of each: "muon" or "adam"."""

    def rule(path: tuple[Any, ...], _: Any) -> str:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        return "muon" if names[:1] == [PART] and names[-1] == "kernel" else "adam"

    return jax.tree_util.tree_map_with_path(rule, params)


def dimension_numbers(kernels: Any) -> Any:
    """Return which axes of each kernel are inputs, and which are outputs.

    An axis of several matrices is neither: stacked layers, and what a layer makes of one input.
    """

    def axes_of(path: tuple[Any, ...], kernel: jax.Array) -> MuonDimensionNumbers:
        axes, names = base.own_axes(path, kernel), [getattr(key, "key", "") for key in path]
        inputs = len(axes) - 1 if OF_HEADS in names else 1
        several = "qkv" in names or ("input" in names and len(axes) == 3)
        return MuonDimensionNumbers(axes[:inputs], axes[inputs + several :])

    return jax.tree_util.tree_map_with_path(axes_of, kernels)


def _with_rms(updates: Any, _: Any) -> Any:
    """Return updates, orthogonal matrices, with the RMS of AdamW's steps."""

    def scaled(update: jax.Array, axes: MuonDimensionNumbers) -> jax.Array:
        sides = (math.prod(update.shape[axis] for axis in side) for side in axes)  # type: ignore[union-attr]
        return RMS * math.sqrt(max(sides)) * update

    return jax.tree.map(scaled, updates, dimension_numbers(updates))
