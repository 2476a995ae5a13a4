"""ALBERT in transformers (Lan et al. 2020): one group with one inner layer, whose weights serve as all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.interchange import family
from bert_jax.interchange.families import bert
from bert_jax.interchange.names import Entry, dense, norm
from bert_jax.models.config import ModelConfig

_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
_GROUPS = {"num_hidden_groups": 1, "inner_group_num": 1}  # all layers share all weights


class Family(family.Family):
    name, title, model_type, prefix, decoder = "Albert", "ALBERT", "albert", "albert.", "predictions.decoder"
    classifier_dropout = "classifier_dropout_prob"
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder", "pooler"),
        "ForPreTraining": ("encoder", "pooler", "mlm_head", "sop_head"),
        "ForMaskedLM": ("encoder", "mlm_head"),
        **family.TASK_CLASSES,
    }
    pretrained = ("pooler", "mlm_head", "sop_head")
    fields: ClassVar[Mapping[str, str]] = {**bert.Family.fields, "embedding_size": "embedding_size"}
    defaults: ClassVar[Mapping[str, float]] = {
        **bert.Family.defaults,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "embedding_size": 128,
    }
    fixed: ClassVar[Mapping[str, Any]] = {**family.Family.fixed, **_GROUPS, "is_decoder": False}
    others = ("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks")

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del architecture, pad_id
        embeddings, layer = f"{self.prefix}embeddings", f"{self.prefix}{_LAYER}"
        return (
            Entry("encoder/embeddings/word_embeddings", f"{embeddings}.word_embeddings.weight"),
            Entry("encoder/embeddings/position_embeddings", f"{embeddings}.position_embeddings.weight"),
            Entry("encoder/embeddings/token_type_embeddings", f"{embeddings}.token_type_embeddings.weight"),
            *norm("encoder/embeddings/layer_norm", f"{embeddings}.LayerNorm"),
            *dense("encoder/embedding_projection", f"{self.prefix}encoder.embedding_hidden_mapping_in"),
            *dense("encoder/layer/attention/query", f"{layer}.attention.query"),
            *dense("encoder/layer/attention/key", f"{layer}.attention.key"),
            *dense("encoder/layer/attention/value", f"{layer}.attention.value"),
            *dense("encoder/layer/attention/output", f"{layer}.attention.dense", inputs=2),
            *norm("encoder/layer/attention_layer_norm", f"{layer}.attention.LayerNorm"),
            *dense("encoder/layer/mlp/input", f"{layer}.ffn"),
            *dense("encoder/layer/mlp/output", f"{layer}.ffn_output"),
            *norm("encoder/layer/mlp_layer_norm", f"{layer}.full_layer_layer_norm"),
            *dense("pooler/dense", f"{self.prefix}pooler"),
            *dense("mlm_head/transform", "predictions.dense"),
            *norm("mlm_head/layer_norm", "predictions.LayerNorm"),
            Entry("mlm_head/output_bias", "predictions.bias"),
            *dense("sop_head/dense", "sop_classifier.classifier"),
            *dense("classifier/dense", "classifier"),
            *dense("qa_outputs/dense", "qa_outputs"),
        )

    def shapes(self, config: ModelConfig, num_outputs: int) -> dict[str, Any]:
        return super().shapes(config, num_outputs) | {"sop_head": family.dense_shape(config, 2)}

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        return super().to_config(config, pad_id) | _GROUPS

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        return super().from_config({"hidden_act": "gelu_new", **theirs}, where, file)
