"""BERT in transformers and in the TensorFlow checkpoints of google-research/bert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from bert_jax.interchange import family
from bert_jax.interchange.names import Entry, dense, norm

_OURS = "encoder/layer_{i}"


def encoder_entries(prefix: str, skipped: int = 0) -> tuple[Entry, ...]:
    """Return the entries of BERT's encoder.

    Args:
      prefix: the prefix of the encoder's tensors in transformers.
      skipped: the number of leading rows of transformers' position table that our table does not have.
    """
    embeddings, layer = f"{prefix}embeddings", f"{prefix}encoder.layer.{{i}}"
    ours = "encoder/embeddings"
    return (
        Entry(f"{ours}/word_embeddings", f"{embeddings}.word_embeddings.weight"),
        Entry(f"{ours}/position_embeddings", f"{embeddings}.position_embeddings.weight", skipped=skipped),
        Entry(f"{ours}/token_type_embeddings", f"{embeddings}.token_type_embeddings.weight"),
        *norm(f"{ours}/layer_norm", f"{embeddings}.LayerNorm"),
        *dense(f"{_OURS}/attention/query", f"{layer}.attention.self.query"),
        *dense(f"{_OURS}/attention/key", f"{layer}.attention.self.key"),
        *dense(f"{_OURS}/attention/value", f"{layer}.attention.self.value"),
        *dense(f"{_OURS}/attention/output", f"{layer}.attention.output.dense", inputs=2),
        *norm(f"{_OURS}/attention_layer_norm", f"{layer}.attention.output.LayerNorm"),
        *dense(f"{_OURS}/mlp/input", f"{layer}.intermediate.dense"),
        *dense(f"{_OURS}/mlp/output", f"{layer}.output.dense"),
        *norm(f"{_OURS}/mlp_layer_norm", f"{layer}.output.LayerNorm"),
    )


class Family(family.Family):
    name, title, model_type, prefix, decoder = "Bert", "BERT", "bert", "bert.", "cls.predictions.decoder"
    causal = "LMHeadModel"
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder", "pooler"),
        "ForPreTraining": ("encoder", "pooler", "mlm_head", "nsp_head"),
        "ForMaskedLM": ("encoder", "mlm_head"),
        "LMHeadModel": ("encoder", "mlm_head"),
        "ForNextSentencePrediction": ("encoder", "pooler", "nsp_head"),
        **family.TASK_CLASSES,
    }
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "mlp_dim",
        "max_position_embeddings": "max_length",
        "type_vocab_size": "type_vocab_size",
        "hidden_dropout_prob": "dropout_rate",
        "attention_probs_dropout_prob": "attention_dropout_rate",
        "layer_norm_eps": "layer_norm_eps",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, float]] = {
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    }

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del architecture, pad_id
        return (
            *encoder_entries(self.prefix),
            *dense("pooler/dense", f"{self.prefix}pooler.dense"),
            *dense("mlm_head/transform", "cls.predictions.transform.dense"),
            *norm("mlm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
            Entry("mlm_head/output_bias", "cls.predictions.bias"),
            *dense("nsp_head/dense", "cls.seq_relationship"),
            *dense("classifier/dense", "classifier"),
            *dense("qa_outputs/dense", "qa_outputs"),
        )
