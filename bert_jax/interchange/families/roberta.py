"""RoBERTa in transformers (Liu et al. 2019): positions count from ``pad_id + 1``, and there are no token types.

No token uses the first ``pad_id + 1`` rows of transformers' position table. An import leaves these rows out, and an
export writes zeros there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.errors import UserError
from bert_jax.interchange import family
from bert_jax.interchange.families import bert
from bert_jax.interchange.names import Entry, dense, norm
from bert_jax.models.config import ModelConfig


class Family(bert.Family):
    name, title, model_type, prefix, decoder = "Roberta", "RoBERTa", "roberta", "roberta.", "lm_head.decoder"
    causal, padding = "ForCausalLM", 1
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder", "pooler"),
        "ForMaskedLM": ("encoder", "mlm_head"),
        "ForCausalLM": ("encoder", "mlm_head"),
        **family.TASK_CLASSES,
    }

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        """Return the entries of the class. A text classifier has the pooler inside the classifier's module."""
        inside = architecture.endswith("ForSequenceClassification")
        return (
            *bert.encoder_entries(self.prefix, pad_id + 1),
            *dense("pooler/dense", "classifier.dense" if inside else f"{self.prefix}pooler.dense"),
            *dense("mlm_head/transform", "lm_head.dense"),
            *norm("mlm_head/layer_norm", "lm_head.layer_norm"),
            Entry("mlm_head/output_bias", "lm_head.bias"),
            *dense("classifier/dense", "classifier.out_proj" if inside else "classifier"),
            *dense("qa_outputs/dense", "qa_outputs"),
        )

    def redundant(self, architecture: str) -> tuple[str, ...]:
        """Return the names of tensors without effect. Older versions saved a pooler that a text classifier ignores."""
        ignored = ("weight", "bias") if architecture.endswith("ForSequenceClassification") else ()
        return *super().redundant(architecture), *(f"{self.prefix}pooler.dense.{name}" for name in ignored)

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        theirs = super().to_config(config, pad_id)
        return theirs | {"max_position_embeddings": config.max_length + pad_id + 1}

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        positions, pad_id = theirs.get("max_position_embeddings"), theirs.get("pad_token_id", self.padding)
        if not isinstance(pad_id, int):
            raise UserError(
                f"{where}/{file} has pad_token_id {pad_id!r}; positions of a RoBERTa count from after that id, so a "
                "number is needed"
            )
        if isinstance(positions, int):  # anything else is refused below
            theirs = {**theirs, "max_position_embeddings": positions - pad_id - 1}
        return super().from_config(theirs, where, file)
