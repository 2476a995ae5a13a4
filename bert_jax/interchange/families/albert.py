"""ALBERT in transformers (Lan et al. 2020): one group with one inner layer, whose weights serve as all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange import family
from bert_jax.interchange.families import bert
from bert_jax.interchange.names import Entry, dense, norm, outputs, table
from bert_jax.interchange.reference import activated, mixed_values, normalised, read_by_classifier
from bert_jax.models.config import ModelConfig

_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
_GROUPS = {"num_hidden_groups": 1, "inner_group_num": 1}


class Family(family.Family):
    name, title, model_type, prefix, decoder = "Albert", "ALBERT", "albert", "albert.", "predictions.decoder"
    classifier_dropout = "classifier_dropout_prob"
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder", "pooler"),
        "ForPreTraining": ("encoder", "pooler", "mlm_head", "sop_head"),
        "ForMaskedLM": ("encoder", "mlm_head"),
        "ForSequenceClassification": ("encoder", "pooler", "classifier"),
        "ForTokenClassification": ("encoder", "classifier"),
        "ForQuestionAnswering": ("encoder", "qa_outputs"),
        "ForMultipleChoice": ("encoder", "pooler", "classifier"),
    }
    fields: ClassVar[Mapping[str, str]] = {**bert.Family.fields, "embedding_size": "embedding_size"}
    defaults: ClassVar[Mapping[str, float]] = {
        **bert.Family.defaults,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "embedding_size": 128,
    }

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del architecture, pad_id
        embeddings, layer = f"{self.prefix}embeddings", f"{self.prefix}{_LAYER}"
        return (
            table("encoder/embeddings/word_embeddings", f"{embeddings}.word_embeddings"),
            table("encoder/embeddings/position_embeddings", f"{embeddings}.position_embeddings"),
            table("encoder/embeddings/token_type_embeddings", f"{embeddings}.token_type_embeddings"),
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
            *outputs("sop_head", "sop_classifier.classifier"),
            *outputs("classifier", "classifier"),
            *outputs("qa_outputs", "qa_outputs"),
        )

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        return super().to_config(config, pad_id) | _GROUPS

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        for name, one in _GROUPS.items():
            if theirs.get(name, one) != one:
                raise UserError(
                    f"{where} has {name} {theirs[name]}; only an ALBERT whose layers share all weights can be read"
                )
        return super().from_config({"hidden_act": "gelu_new", **theirs}, where, file)

    def outputs(
        self,
        tensors: Mapping[str, np.ndarray],
        config: Any,
        batch: Mapping[str, np.ndarray],
        parts: frozenset[str],
        architecture: str,
    ) -> dict[str, np.ndarray]:
        own = {name.removeprefix(self.prefix): array for name, array in tensors.items()}

        def linear(name: str, x: np.ndarray) -> np.ndarray:
            return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]

        def norm(name: str, x: np.ndarray) -> np.ndarray:
            return normalised(x, own[f"{name}.weight"], own[f"{name}.bias"], config.layer_norm_eps)

        ids = batch["input_ids"]
        words, positions, types = (
            own[f"embeddings.{of}_embeddings.weight"] for of in ("word", "position", "token_type")
        )
        narrow = norm("embeddings.LayerNorm", words[ids] + positions[: ids.shape[1]] + types[batch["token_type_ids"]])
        x = linear("encoder.embedding_hidden_mapping_in", narrow)
        for _ in range(config.num_layers):
            q, k, v = (linear(f"{_LAYER}.attention.{kind}", x) for kind in ("query", "key", "value"))
            mixed = mixed_values(q, k, v, config.num_heads, batch["attention_mask"])
            x = norm(f"{_LAYER}.attention.LayerNorm", x + linear(f"{_LAYER}.attention.dense", mixed))
            wide = activated(linear(f"{_LAYER}.ffn", x), config.activation)
            x = norm(f"{_LAYER}.full_layer_layer_norm", x + linear(f"{_LAYER}.ffn_output", wide))
        found = {"sequence": x}
        if "pooler" in parts:
            found["pooled"] = np.tanh(linear("pooler", x[:, 0]))
        if "mlm_head" in parts:
            hidden = norm("predictions.LayerNorm", activated(linear("predictions.dense", x), config.activation))
            found["mlm_logits"] = hidden @ words.T + own.get("predictions.bias", own.get("predictions.decoder.bias"))
        if "sop_head" in parts and "pooler" in parts:
            found["sop_logits"] = linear("sop_classifier.classifier", found["pooled"])
        if "classifier" in parts and (read := found.get(read_by_classifier(architecture))) is not None:
            found["logits"] = linear("classifier", read)
        if "qa_outputs" in parts:
            found["qa_logits"] = linear("qa_outputs", x)
        return found
