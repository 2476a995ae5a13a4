"""DistilBERT in transformers (Sanh et al. 2019): no token types, and a ``pre_classifier`` in place of a pooler.

A model with ``sinusoidal_pos_embds`` is read with the positions in its file; as in transformers, training changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.interchange import family
from bert_jax.interchange.names import Entry, dense, norm

_OURS = "encoder/layer_{i}"


class Family(family.Family):
    name, title, model_type, prefix = "DistilBert", "DistilBERT", "distilbert", "distilbert."
    decoder, decoder_bias = "vocab_projector", "vocab_projector.bias"
    activation, classifier_dropout = "activation", ""
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder",),
        "ForMaskedLM": ("encoder", "mlm_head"),
        **family.TASK_CLASSES,
    }
    pretrained = ("pooler", "mlm_head")
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "dim": "hidden_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "hidden_dim": "mlp_dim",
        "max_position_embeddings": "max_length",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "seq_classif_dropout": "classifier_dropout_rate",
        "qa_dropout": "span_dropout_rate",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, float]] = {
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "qa_dropout": 0.1,
        "initializer_range": 0.02,
    }
    fixed: ClassVar[Mapping[str, Any]] = {**family.Family.fixed, "is_decoder": False}
    others = ("sinusoidal_pos_embds", "tie_weights_")

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del architecture, pad_id
        ours, embeddings = "encoder/embeddings", f"{self.prefix}embeddings"
        layer = f"{self.prefix}transformer.layer.{{i}}"
        return (
            Entry(f"{ours}/word_embeddings", f"{embeddings}.word_embeddings.weight"),
            Entry(f"{ours}/position_embeddings", f"{embeddings}.position_embeddings.weight"),
            *norm(f"{ours}/layer_norm", f"{embeddings}.LayerNorm"),
            *dense(f"{_OURS}/attention/query", f"{layer}.attention.q_lin"),
            *dense(f"{_OURS}/attention/key", f"{layer}.attention.k_lin"),
            *dense(f"{_OURS}/attention/value", f"{layer}.attention.v_lin"),
            *dense(f"{_OURS}/attention/output", f"{layer}.attention.out_lin", inputs=2),
            *norm(f"{_OURS}/attention_layer_norm", f"{layer}.sa_layer_norm"),
            *dense(f"{_OURS}/mlp/input", f"{layer}.ffn.lin1"),
            *dense(f"{_OURS}/mlp/output", f"{layer}.ffn.lin2"),
            *norm(f"{_OURS}/mlp_layer_norm", f"{layer}.output_layer_norm"),
            *dense("pooler/dense", "pre_classifier"),
            *dense("mlm_head/transform", "vocab_transform"),
            *norm("mlm_head/layer_norm", "vocab_layer_norm"),
            Entry("mlm_head/output_bias", "vocab_projector.bias"),
            *dense("classifier/dense", "classifier"),
            *dense("qa_outputs/dense", "qa_outputs"),
        )
