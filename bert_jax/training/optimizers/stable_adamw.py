"""StableAdamW: AdamW that shortens a step whose gradient is larger than the second moment knows (Wortsman et al. 2023).

Source: arXiv 2304.13013, algorithm 2, as ModernBERT trains with it (AnswerDotAI/ModernBERT, src/optimizer.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.training.optimizers import adamw, base


@dataclasses.dataclass(frozen=True)
class Optimizer(adamw.Adam):
    """The defaults come from ModernBERT-base, whose code warns against clipping gradients too.

    Step and decay of a parameter are divided by max(1, rms), where rms = sqrt(mean(g^2 / max(v, eps^2))), the mean is
    over the parameter (over one layer, where layers are stacked), and v is Adam's corrected second moment after the
    update.

    ``weight_decay`` is multiplied by the learning rate, as in all optimizers here. The decay of ModernBERT's code,
    1e-5, is the share that a step at the peak takes from a weight. So it is divided by the peak: 1e-5 / 8e-4 = 0.0125.
    """

    b2: float = 0.98  # decay of the mean of squared gradients
    weight_decay: float = 0.0125  # ModernBERT's decay / its peak; biases and layer norms are not decayed
    clip_norm: float | None = None  # gradients with a larger norm are scaled to it; None: never

    def make(self) -> optax.GradientTransformation:
        return optax.chain(base.clip(self.clip_norm), self._stable_adam())

    def _stable_adam(self) -> optax.GradientTransformation:
        """Return Adam with decay, damped, with the state of ``optax.scale_by_adam``."""
        adam = optax.scale_by_adam(self.b1, self.b2, self.eps)

        def update(gradients: Any, state: optax.ScaleByAdamState, params: Any = None) -> Any:
            steps, state = adam.update(gradients, state)
            squares = optax.tree.bias_correction(state.nu, self.b2, state.count)

            def damped(path: tuple[Any, ...], g: Any, v: Any, step: Any, w: Any, decays: bool) -> jax.Array:
                ratios = jnp.square(g) / jnp.maximum(v, self.eps**2)
                rms = jnp.sqrt(jnp.mean(ratios, base.own_axes(path, w), keepdims=True))
                return (step + self.weight_decay * w if decays else step) / jnp.maximum(rms, 1.0)

            mask = base.decay_mask(params)
            return jax.tree_util.tree_map_with_path(damped, gradients, squares, steps, params, mask), state

        return optax.GradientTransformation(adam.init, update)
