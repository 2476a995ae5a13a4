"""ModernBERT in transformers (Warner et al. 2024): no biases, one ``head`` before the last layer of each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interchange import family
from bert_jax.interchange.names import Entry, dense
from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders.modernbert import Config

_OURS = "encoder/layer_{i}"
_LAYERS = {"full_attention": "global", "sliding_attention": "local"}  # name in config.json -> start of our keys
_DROPOUT = "attn_out_dropout_prob"  # FlexBERT's key; transformers has one rate for two places, and keeps this one


class Family(family.Family):
    name, title, model_type, prefix = "ModernBert", "ModernBERT", "modernbert", "model."
    decoder, decoder_bias = "decoder", "decoder.bias"
    activation, classifier_dropout = "hidden_activation", ""
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder",),
        "ForMaskedLM": ("encoder", "mlm_head"),
        "ForSequenceClassification": ("encoder", "pooler", "classifier"),
        "ForTokenClassification": ("encoder", "token_head", "classifier"),
        "ForQuestionAnswering": ("encoder", "token_head", "qa_outputs"),
        "ForMultipleChoice": ("encoder", "pooler", "classifier"),
    }
    pretrained = ("mlm_head",)
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "mlp_dim",
        "max_position_embeddings": "max_length",
        "embedding_dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "classifier_dropout": "classifier_dropout_rate",
        "classifier_pooling": "classifier_pooling",
        "norm_eps": "layer_norm_eps",
        "initializer_range": "initializer_range",
        "local_attention": "local_attention",
        "global_attn_every_n_layers": "global_every",
        "global_rope_theta": "global_theta",
        "local_rope_theta": "local_theta",
        _DROPOUT: "attention_output_dropout_rate",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "embedding_dropout": 0.0,
        "classifier_dropout": 0.0,
        "classifier_pooling": "cls",
        "norm_eps": 1e-5,
        "initializer_range": 0.02,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "attention_dropout": 0.0,
    }
    fixed: ClassVar[Mapping[str, Any]] = {
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_bias": False,
        "is_decoder": False,
        "position_embedding_type": "absolute",  # published files have this key, which says nothing
    }
    nullable = ("local_rope_theta", _DROPOUT)
    others = (
        "classifier_activation",
        "decoder_bias",
        "deterministic_flash_attn",
        "initializer_cutoff_factor",
        "layer_norm_eps",
        "layer_types",
        "max_seq_len",
        "mlp_dropout",
        "reference_compile",
        "repad_logits_with_grad",
        "rope_parameters",
        "sparse_pred_ignore_index",
        "sparse_prediction",
    )

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del pad_id
        parts = self.architectures.get(architecture, ("encoder", "mlm_head"))
        layer = f"{self.prefix}layers.{{i}}"
        head = next((part for part in parts if part in ("mlm_head", "pooler", "token_head")), "mlm_head")
        last = "qa_outputs" if "qa_outputs" in parts else "classifier"
        return (
            Entry("encoder/embeddings/word_embeddings", f"{self.prefix}embeddings.tok_embeddings.weight"),
            Entry("encoder/embeddings/layer_norm/scale", f"{self.prefix}embeddings.norm.weight"),
            Entry(f"{_OURS}/attention_layer_norm/scale", f"{layer}.attn_norm.weight"),
            Entry(f"{_OURS}/attention/qkv/kernel", f"{layer}.attn.Wqkv.weight", inputs=1),
            Entry(f"{_OURS}/attention/output/kernel", f"{layer}.attn.Wo.weight", inputs=2),
            Entry(f"{_OURS}/mlp_layer_norm/scale", f"{layer}.mlp_norm.weight"),
            Entry(f"{_OURS}/mlp/input/kernel", f"{layer}.mlp.Wi.weight", inputs=1),
            Entry(f"{_OURS}/mlp/output/kernel", f"{layer}.mlp.Wo.weight", inputs=1),
            Entry("encoder/layer_norm/scale", f"{self.prefix}final_norm.weight"),
            Entry(f"{head}/transform/kernel", "head.dense.weight", inputs=1),
            Entry(f"{head}/layer_norm/scale", "head.norm.weight"),
            Entry("mlm_head/output_bias", "decoder.bias"),
            *dense(f"{last}/dense", "classifier"),
        )

    def entries(self, num_layers: int, architecture: str = "", pad_id: int = 0) -> Iterator[Entry]:
        first = "encoder/layer_0/attention_layer_norm/"  # the embeddings are normalised already
        return (e for e in super().entries(num_layers, architecture, pad_id) if not e.ours.startswith(first))

    def shapes(self, config: ModelConfig, num_outputs: int) -> dict[str, Any]:
        tree = super().shapes(config, num_outputs)
        return {**tree, "token_head": tree["pooler"]}

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        written = super().to_config(config, pad_id)
        sees_all = [number % config.global_every == 0 for number in range(config.num_layers)]
        thetas = {kind: getattr(config, f"{ours}_theta") for kind, ours in _LAYERS.items()}
        return written | {
            "classifier_activation": written[self.activation],
            "layer_types": ["full_attention" if one else "sliding_attention" for one in sees_all],
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in thetas.items()},
        }

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        path = f"{where}/{file}"
        if theirs.get("layer_norm_eps") not in (None, theirs.get("norm_eps", 1e-5)):
            raise UserError(f"{path} has both norm_eps and layer_norm_eps, which differ; keep the one that holds")
        if not isinstance(bias := theirs.get("decoder_bias", True), bool):
            raise UserError(f"{path} has decoder_bias {bias!r}; true and false are allowed")
        if not isinstance(rate := theirs.get("mlp_dropout", 0.0), int | float) or not 0 <= rate < 1:
            raise UserError(f"{path} has mlp_dropout {rate!r}; a number from 0 to below 1 is allowed")
        given = {**theirs, **_thetas(theirs, path), **_every(theirs, path)}
        if given.get(_DROPOUT) is None:  # in transformers, attention_dropout is the rate of both places
            given[_DROPOUT] = given.get("attention_dropout", 0.0)
        config = super().from_config(given, where, file)
        layers, head = (theirs.get(key, "gelu") for key in (self.activation, "classifier_activation"))
        if family.THEIR_ACTIVATIONS.get(str(head)) != family.THEIR_ACTIVATIONS[layers]:
            found = f"{head!r}{'' if 'classifier_activation' in theirs else ' by default'}"
            raise UserError(f"{path} has classifier_activation {found}; only {layers!r}, as in the layers, can be read")
        return config

    def fold(
        self, tensors: dict[str, np.ndarray], theirs: Mapping[str, Any], where: str
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        lines = []
        if rate := theirs.get("mlp_dropout"):
            lines.append(f"mlp_dropout {rate} is not used: there is no dropout inside the MLPs in training here")
        fills_masks = "head.dense.weight" in tensors and "classifier.weight" not in tensors
        if fills_masks and not theirs.get("decoder_bias", True):
            if self.decoder_bias in tensors:
                raise UserError(
                    f"{where} has decoder_bias false in config.json and a {self.decoder_bias}; set it to true or "
                    "remove the tensor"
                )
            words = tensors.get(self.word_embeddings, np.zeros((0, 0)))
            tensors = tensors | {self.decoder_bias: np.zeros(len(words), np.float32)}
            lines.append("decoder_bias is false: the bias of the decoder begins with zeros")
        return tensors, tuple(lines)


def _thetas(theirs: Mapping[str, Any], path: str) -> dict[str, float]:
    """Return the bases of rotation under the keys of transformers 4; version 5 has ``rope_parameters`` instead."""
    found: dict[str, float] = {}
    both = theirs.get("rope_parameters") or {}
    if not isinstance(both, Mapping) or not all(
        kind in _LAYERS and isinstance(one, Mapping) and one.keys() <= {"rope_type", "rope_theta"}
        for kind, one in both.items()
    ):
        raise UserError(
            f"{path} has rope_parameters {both!r}; what can be read is rope_type and rope_theta for each of "
            f"{' and '.join(_LAYERS)}"
        )
    for kind, ours in _LAYERS.items():
        key, default = f"{ours}_rope_theta", getattr(Config, f"{ours}_theta")
        parameters = both.get(kind, {})
        if (kind_of_rope := parameters.get("rope_type", "default")) != "default":
            raise UserError(f"{path} has rope_type {kind_of_rope!r}; only 'default' can be read")
        said = theirs.get(key, default)
        if ours == "local" and said in (None, -1):  # as in global layers; -1 is FlexBERT's word for it
            said = found["global_rope_theta"]
        base = parameters.get("rope_theta", said)
        if key in theirs and base != said:
            raise UserError(
                f"{path} has {key} {said} and rope_parameters.{kind}.rope_theta {base}; keep the one with which "
                "the model was trained"
            )
        found[key] = base
    return found


def _every(theirs: Mapping[str, Any], path: str) -> dict[str, int]:
    """Return the distance between two layers that see the whole sequence, by ``layer_types``; {} if there are none."""
    types = theirs.get("layer_types")
    if not types:
        return {}
    if not isinstance(types, list):
        raise UserError(f"{path} has layer_types {types!r}; a list with the kind of each layer is needed")
    sees_all = [one == "full_attention" for one in types]
    every = next((number for number, one in enumerate(sees_all) if one and number), len(types))
    if sees_all != [number % every == 0 for number in range(len(types))] or not set(types) <= _LAYERS.keys():
        raise UserError(f"{path}: layer_types do not repeat from a global layer on; such a model cannot be read")
    given = theirs.get("global_attn_every_n_layers") or every
    if type(given) is not int:  # refused by its name, with every other value of a wrong type
        return {}
    repeats = sees_all == [number % given == 0 for number in range(len(types))]
    return {"global_attn_every_n_layers": given if repeats else every}
