"""``config.json`` (and ``bert_config.json``, which has the same names) and our ``ModelConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import Head, config_fields
from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders import bert
from bert_jax.text.tokenizer import Tokenizer

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
# config.json's name of each number of a ModelConfig, and what older files leave out.
_FIELDS = {
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
_DEFAULTS = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
}


def hf_config(config: ModelConfig, tokenizer: Tokenizer, head: Head) -> dict[str, Any]:
    """``config.json`` of a model with ``head``."""
    return {
        **config_fields(head),
        "model_type": "bert",
        **{theirs: getattr(config, ours) for theirs, ours in _FIELDS.items()},
        "hidden_act": ACTIVATIONS[config.activation],
        "pad_token_id": tokenizer.pad_id,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def model_config(theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
    """``config.json`` -> ours. Raises ``UserError`` for another architecture than BERT."""
    if theirs.get("model_type", "bert") != "bert":
        raise UserError(f"{where} is a {theirs['model_type']!r} model; only model_type 'bert' can be read")
    if theirs.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"{where} has {theirs['position_embedding_type']} positions; only absolute ones can be read")
    activations = {name: ours for ours, name in ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
    activation = str(theirs.get("hidden_act", "gelu"))
    if activation not in activations:
        raise UserError(f"{where} has hidden_act {activation!r}; known: {', '.join(activations)}")
    missing = [name for name in _FIELDS if name not in theirs and name not in _DEFAULTS]
    if missing:
        raise UserError(f"{where}/{file} has no {', '.join(missing)}: it is not a BERT's")
    values = {ours: theirs.get(name, _DEFAULTS.get(name)) for name, ours in _FIELDS.items()}
    try:
        return configuration.build(bert.Config, values | {"activation": activations[activation]}, "config")
    except UserError as error:
        raise UserError(f"{where}/{file} does not describe a BERT: {error}") from error
