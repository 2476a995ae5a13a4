"""Two language models, left to right and right to left: what ELMo learns (Peters et al. 2018, section 3.1).

The forward direction of the encoder predicts the token after each token, the backward direction the token before it.
The loss is the mean of both losses. The rows are as in ``ltr``: each token of a sequence is predicted by both
directions, but for the first, which only the backward direction predicts, and the last, which only the forward
direction predicts. With the arrangement ``streams`` and ``config.model.memory_length`` 1 the state of the forward
direction goes on from row to row, and the token after a row is predicted too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp

from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base, ltr
from bert_jax.objectives.base import Term, prediction
from bert_jax.records import Batch, BatchSpec, Sum

Config = base.Config

_DIRECTIONS = ("forward", "backward")


class Objective(ltr.Objective):
    """Predicts the token after and the token before each token; the loss is the mean of the two mean losses.

    ``config.objective.masking`` must not be set. The n-gram models to compare with predict from left to right.
    """

    parts = (LM_HEAD,)
    arrangement = "sentences"
    reads = "both ways, apart"
    writes = ""
    derived = tuple(f"{name}_{what}" for name in _DIRECTIONS for what in ("labels", "weights"))
    titles: ClassVar[Mapping[str, str]] = {
        "forward_loss": "Loss of the token after, nats",
        "backward_loss": "Loss of the token before, nats",
        "forward_accuracy": "Accuracy of the token after",
        "backward_accuracy": "Accuracy of the token before",
        "forward_perplexity": "Perplexity of the token after",
        "backward_perplexity": "Perplexity of the token before",
    }

    def terms(self, config: Config) -> dict[str, Term]:
        return {
            name: prediction(f"{name}_logits", f"{name}_labels", f"{name}_weights", weight=0.5, baseline="none")
            for name in _DIRECTIONS
        }

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` with the labels and weights [B, L] of both directions at each position."""
        ids, weights, following = batch["input_ids"], ltr.next_token_weights(batch), batch.get("next_ids")
        last = jnp.zeros_like(ids[:, 0]) if following is None else following
        counts = jnp.zeros_like(weights[:, 0]) if following is None else batch["row_weights"]
        return {
            **batch,
            "forward_labels": jnp.concatenate([ids[:, 1:], last[:, None]], axis=1),
            "forward_weights": jnp.concatenate([weights, counts[:, None]], axis=1),
            "backward_labels": jnp.pad(ids[:, :-1], ((0, 0), (1, 0))),
            "backward_weights": jnp.pad(weights, ((0, 0), (1, 0))),
        }

    def flops(self, spec: BatchSpec) -> float:
        length = spec["input_ids"].shape[0]
        return self.setting.model.train_flops(length, 2 * length)

    def summary(self, sums: dict[str, Sum]) -> dict[str, float]:
        """Return the means and perplexities; ``perplexity`` is the perplexity of the mean loss, as in bilm-tf."""
        means = super().summary(sums)
        losses = {name: means[f"{name}_loss"] for name in _DIRECTIONS if f"{name}_loss" in means}
        if len(losses) < len(_DIRECTIONS):
            return means
        of_each = {f"{name}_perplexity": math.exp(min(loss, 80.0)) for name, loss in losses.items()}
        return means | of_each | {"perplexity": math.sqrt(math.prod(of_each.values()))}
