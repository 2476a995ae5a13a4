"""GPT-2 in transformers (Radford et al. 2019): its dense layers are Conv1D, whose weights are [in, out].

GPT2ForSequenceClassification is left out: it finds the last token of a text by the id of padding, which in GPT-2 is the
end token, so it would read the token before the end token; and its last layer has no bias.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from bert_jax.interchange import family
from bert_jax.interchange.names import Entry, conv, dense, norm
from bert_jax.models.config import ModelConfig

_OURS = "encoder/layer_{i}"
_MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias$")  # the triangle of a causal mask, saved by older versions


def encoder_entries(prefix: str, words: str, positions: str) -> tuple[Entry, ...]:
    """Return the entries of a GPT's embeddings and layers; ``words`` and ``positions`` are the names of its tables."""
    ours, layer = "encoder/embeddings", f"{prefix}h.{{i}}"
    return (
        Entry(f"{ours}/word_embeddings", f"{prefix}{words}.weight"),
        Entry(f"{ours}/position_embeddings", f"{prefix}{positions}.weight"),
        *norm(f"{_OURS}/attention_layer_norm", f"{layer}.ln_1"),
        *conv(f"{_OURS}/attention/qkv", f"{layer}.attn.c_attn"),
        *conv(f"{_OURS}/attention/output", f"{layer}.attn.c_proj", inputs=2),
        *norm(f"{_OURS}/mlp_layer_norm", f"{layer}.ln_2"),
        *conv(f"{_OURS}/mlp/input", f"{layer}.mlp.c_fc"),
        *conv(f"{_OURS}/mlp/output", f"{layer}.mlp.c_proj"),
    )


class Family(family.Family):
    name, title, model_type, prefix, decoder = "GPT2", "GPT-2", "gpt2", "transformer.", "lm_head"
    activation, causal = "activation_function", "LMHeadModel"
    usual_activation: ClassVar[str] = "gelu_new"
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder",),
        "LMHeadModel": ("encoder",),  # its head is the word embeddings
        "ForTokenClassification": ("encoder", "classifier"),
        "ForQuestionAnswering": ("encoder", "qa_outputs"),
    }
    pretrained: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "n_embd": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_inner": "mlp_dim",
        "n_positions": "max_length",
        "resid_pdrop": "dropout_rate",
        "embd_pdrop": "embedding_dropout_rate",
        "attn_pdrop": "attention_dropout_rate",
        "layer_norm_epsilon": "layer_norm_eps",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, float]] = {
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
    }
    fixed: ClassVar[Mapping[str, Any]] = {
        "is_decoder": False,
        "add_cross_attention": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "pruned_heads": {},
    }
    nullable = ("n_inner", "classifier_dropout")
    others: ClassVar[tuple[str, ...]] = (
        "n_ctx",
        "reorder_and_upcast_attn",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    )

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del architecture, pad_id
        return (
            *encoder_entries(self.prefix, "wte", "wpe"),
            *norm("encoder/layer_norm", f"{self.prefix}ln_f"),
            *dense("classifier/dense", "classifier"),
            *dense("qa_outputs/dense", "qa_outputs"),
        )

    def fold(
        self, tensors: dict[str, np.ndarray], theirs: Mapping[str, Any], where: str
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return the tensors without the masks that files of older versions hold."""
        del theirs, where
        return {name: array for name, array in tensors.items() if not _MASK.search(name)}, ()

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        written = super().to_config(config, pad_id)
        del written["is_decoder"]  # the class alone says it
        return written

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        given = {self.activation: self.usual_activation, **theirs}
        if given.get("n_inner") is None and isinstance(width := given.get("n_embd"), int):
            given["n_inner"] = 4 * width
        return super().from_config(given, where, file)
