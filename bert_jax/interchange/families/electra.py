"""ELECTRA in transformers (Clark et al. 2020): discriminator and generator are models of two classes.

The first layer above the encoder, our pooler, is inside the classifier's module of a text classifier, and called a
summary in a model of choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.interchange import family
from bert_jax.interchange.families import bert
from bert_jax.interchange.names import Entry, dense, norm
from bert_jax.models.config import ModelConfig


class Family(bert.Family):
    name, title, model_type, prefix, decoder = "Electra", "ELECTRA", "electra", "electra.", "generator_lm_head"
    decoder_bias, causal = "generator_lm_head.bias", "ForCausalLM"
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder",),
        "ForPreTraining": ("encoder", "discriminator_head"),
        "ForMaskedLM": ("encoder", "mlm_head"),
        "ForCausalLM": ("encoder", "mlm_head"),
        **family.TASK_CLASSES,
    }
    pretrained = ("discriminator_head", "mlm_head")
    fields: ClassVar[Mapping[str, str]] = {**bert.Family.fields, "embedding_size": "embedding_size"}
    defaults: ClassVar[Mapping[str, float]] = {**bert.Family.defaults, "embedding_size": 128}
    fixed: ClassVar[Mapping[str, Any]] = {
        **bert.Family.fixed,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    }
    others = ("summary_last_dropout",)

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del pad_id
        projection = dense("encoder/embedding_projection", f"{self.prefix}embeddings_project")
        inside = architecture.endswith("ForSequenceClassification")
        return (
            *bert.encoder_entries(self.prefix),
            *(entry._replace(optional=True) for entry in projection),
            *dense("pooler/dense", "classifier.dense" if inside else "sequence_summary.summary"),
            *dense("discriminator_head/transform", "discriminator_predictions.dense"),
            *dense("discriminator_head/dense", "discriminator_predictions.dense_prediction"),
            *dense("mlm_head/transform", "generator_predictions.dense"),
            *norm("mlm_head/layer_norm", "generator_predictions.LayerNorm"),
            Entry("mlm_head/output_bias", "generator_lm_head.bias"),
            *dense("classifier/dense", "classifier.out_proj" if inside else "classifier"),
            *dense("qa_outputs/dense", "qa_outputs"),
        )

    def shapes(self, config: ModelConfig, num_outputs: int) -> dict[str, Any]:
        size = config.hidden_size
        transform = {"kernel": (size, size), "bias": (size,)}
        head = {"transform": transform, **family.dense_shape(config, 1)}
        return super().shapes(config, num_outputs) | {"discriminator_head": head}
