"""Every token of the corrupted text is predicted, as a denoising auto-encoder reconstructs all of its input.

Devlin et al. 2019, section 3.1: "In contrast to denoising auto-encoders (Vincent et al., 2008), we only predict the
masked words rather than reconstructing the entire input." The rows are those of ``mlm``, corrupted alike. Most tokens
stand there as they are and only have to be copied, so the loss says little; ``mlm_loss`` and ``mlm_accuracy`` are of
the masked tokens alone, as in ``mlm``, and compare with it.

There are logits [B, L, V] for all positions: with 15 % of the tokens masked, seven times the memory and the products of
the head of ``mlm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp

from bert_jax.models.model import LM_HEAD
from bert_jax.objectives import base
from bert_jax.objectives.base import MLM, Term, prediction
from bert_jax.objectives.replaced_tokens import put_at_masks
from bert_jax.records import Batch, BatchSpec

Config = base.Config


class Objective(base.PretrainingObjective):
    """Predicts every token of the text, masked or not; the loss is the mean over these tokens of the global batch.

    The loss of the masked tokens alone is measured and does not train the model.
    """

    parts = (LM_HEAD,)
    derived = ("masked_positions", "masked_labels", "masked_weights", "text_weights")
    titles: ClassVar[Mapping[str, str]] = {
        "reconstruction_loss": "Loss of all tokens, nats",
        "reconstruction_accuracy": "Accuracy of all tokens",
    }

    def terms(self, config: Config) -> dict[str, Term]:
        every = prediction("mlm_logits", "masked_labels", "text_weights", baseline="none")
        return {"mlm": MLM._replace(weight=0.0), "reconstruction": every}

    def inputs(self, batch: Batch) -> Batch:
        """Return ``batch`` in which every position is predicted: positions, labels and two weights, each [B, L].

        The labels are the original tokens. ``masked_weights`` is 1 at masked tokens, ``text_weights`` at all tokens but
        ``[CLS]`` and ``[SEP]``.
        """
        ids = batch["input_ids"]
        labels = put_at_masks(ids, batch["masked_labels"], batch)
        masked = put_at_masks(jnp.zeros(ids.shape, jnp.float32), batch["masked_weights"], batch)
        roles = self.tokenizer.role_ids if self.tokenizer else {}
        marks = jnp.array([roles.get(role, -1) for role in ("cls", "sep", "end")], jnp.int32)
        text = (batch["attention_mask"] > 0) & ~jnp.isin(labels, marks)
        return {
            **batch,
            "masked_positions": jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32)[None], ids.shape),
            "masked_labels": labels,
            "masked_weights": masked,
            "text_weights": text.astype(jnp.float32) * batch["row_weights"][:, None],
        }

    def flops(self, spec: BatchSpec) -> float:
        length = spec["input_ids"].shape[0]
        return self.setting.model.train_flops(length, length)
