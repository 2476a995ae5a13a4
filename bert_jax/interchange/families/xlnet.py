"""XLNet in transformers (Yang et al. 2019): kernels with an axis of heads, and a summary of the last token.

Two keys are ours alone, and transformers reads past them: ``n_positions``, the most positions of a row, and
``attention_dropout``, where the rate of attention is not ``dropout``. XLNetForQuestionAnsweringSimple is read, which
scores the begin and the end of an answer alone, as we do; XLNetForQuestionAnswering, which does not, is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.errors import UserError
from bert_jax.interchange import family
from bert_jax.interchange.names import Entry, dense, norm
from bert_jax.models.config import ModelConfig

_LAYER = "encoder/layer_{i}"
# Array of a layer -> its name there. The kernel of the output, [heads, head_dim, D], is [D, heads, head_dim] there.
_ATTENTION = {
    "query/kernel": "q",
    "key/kernel": "k",
    "value/kernel": "v",
    "distance/kernel": "r",
    "content_bias": "r_w_bias",
    "distance_bias": "r_r_bias",
    "segment_bias": "r_s_bias",
    "segment_embeddings": "seg_embed",
}


class Family(family.Family):
    name, title, model_type, prefix, decoder = "XLNet", "XLNet", "xlnet", "transformer.", "lm_loss"
    decoder_bias = "lm_loss.bias"
    activation, classifier_dropout = "ff_activation", ""
    classes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Model": ("encoder",),
        "ForMaskedLM": ("encoder", "mlm_head"),
        **family.TASK_CLASSES,
    }
    endings: ClassVar[Mapping[str, str]] = {
        "ForMaskedLM": "LMHeadModel",
        "ForQuestionAnswering": "ForQuestionAnsweringSimple",
    }
    pretrained = ("mlm_head",)
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "d_inner": "mlp_dim",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "n_positions": "max_length",
        "summary_last_dropout": "classifier_dropout_rate",
        "mem_len": "memory_length",
        "reuse_len": "reuse_length",
        "layer_norm_eps": "layer_norm_eps",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, float]] = {
        "dropout": 0.1,
        "n_positions": 512,
        "summary_last_dropout": 0.1,
        "mem_len": 0,
        "reuse_len": 0,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    }
    fixed: ClassVar[Mapping[str, Any]] = {
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "untie_r": True,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "is_decoder": False,
        "pruned_heads": {},
    }
    nullable = ("mem_len", "reuse_len")
    others = ("d_head", "end_n_top", "start_n_top", "use_mems", "use_mems_eval", "use_mems_train")

    def map(self, architecture: str, pad_id: int) -> tuple[Entry, ...]:
        del pad_id
        layer, of_tokens = f"{self.prefix}layer.{{i}}", architecture.endswith("ForTokenClassification")
        return (
            Entry("encoder/embeddings/word_embeddings", f"{self.prefix}word_embedding.weight"),
            Entry("encoder/query_embedding", f"{self.prefix}mask_emb"),
            *(Entry(f"{_LAYER}/attention/{ours}", f"{layer}.rel_attn.{name}") for ours, name in _ATTENTION.items()),
            Entry(f"{_LAYER}/attention/output/kernel", f"{layer}.rel_attn.o", last_first=True),
            *norm(f"{_LAYER}/attention_layer_norm", f"{layer}.rel_attn.layer_norm"),
            *dense(f"{_LAYER}/mlp/input", f"{layer}.ff.layer_1"),
            *dense(f"{_LAYER}/mlp/output", f"{layer}.ff.layer_2"),
            *norm(f"{_LAYER}/mlp_layer_norm", f"{layer}.ff.layer_norm"),
            Entry("mlm_head/output_bias", "lm_loss.bias"),
            *dense("pooler/dense", "sequence_summary.summary"),
            *dense("classifier/dense", "classifier" if of_tokens else "logits_proj"),
            *dense("qa_outputs/dense", "qa_outputs"),
        )

    def to_config(self, config: Any, pad_id: int) -> dict[str, Any]:
        fixed = {name: value for name, value in self.fixed.items() if name not in ("is_decoder", "pruned_heads")}
        return super().to_config(config, pad_id) | fixed | {"d_head": config.head_dim}

    def from_config(self, theirs: Mapping[str, Any], where: str, file: str = "config.json") -> ModelConfig:
        given = {"attention_dropout": theirs.get("dropout", self.defaults["dropout"]), **theirs}
        given |= {name: theirs.get(name) or 0 for name in self.nullable}
        config: Any = super().from_config(given, where, file)
        if (found := theirs.get("d_head")) not in (None, config.head_dim):
            raise UserError(
                f"{where}/{file} has d_head {found!r}; models with {config.head_dim}, d_model / n_head, can be read"
            )
        return config  # type: ignore[no-any-return]
