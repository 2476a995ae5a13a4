"""Adamax: Adam with a decaying maximum of gradients, not the root of the second moment (Kingma and Ba 2015, 7.1).

The published MT-DNN trains with it.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import optax

from bert_jax.training.optimizers import adamw, base


@dataclasses.dataclass(frozen=True)
class Optimizer(adamw.Optimizer):
    """Adamax as ``torch.optim.Adamax`` computes it, with decay beside the moments as in AdamW.

    ``eps`` is added to the size of each gradient. MT-DNN's own code corrects no bias, and decays biases and layer norms
    too: it hands the optimizer the rate 0 for both under a name that the optimizer does not read.
    """

    bias_correction: Literal["none", "standard"] = "standard"  # of the first moment; "none" is MT-DNN's

    def make(self) -> optax.GradientTransformation:
        corrected = optax.scale_by_adamax(self.b1, self.b2, self.eps)
        undone = optax.scale_by_schedule(lambda step: 1 - self.b1 ** (step + 1))
        last = undone if self.bias_correction == "none" else optax.identity()
        return optax.chain(base.clip(self.clip_norm), corrected, last, base.decay(self.weight_decay))
