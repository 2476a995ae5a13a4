"""A ``FlexBertConfig`` as Composer keeps it: the keys of ModernBERT-base's context extension, for a tiny model."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests.launch.stage import ROOT

FLEX: dict[str, Any] = {
    "vocab_size": 72,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "attention_layer": "rope",
    "attention_probs_dropout_prob": 0.0,
    "attn_out_bias": False,
    "attn_out_dropout_prob": 0.1,
    "attn_qkv_bias": False,
    "bert_layer": "prenorm",
    "compile_model": True,
    "decoder_bias": True,
    "embed_dropout_prob": 0.0,
    "embed_norm": True,
    "embedding_layer": "sans_pos",
    "final_norm": True,
    "global_attn_every_n_layers": 3,
    "head_pred_act": "gelu",
    "head_pred_bias": False,
    "head_pred_norm": True,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "local_attn_rotary_emb_base": 10_000.0,
    "max_position_embeddings": 512,
    "mlp_dropout_prob": 0.0,
    "mlp_in_bias": False,
    "mlp_layer": "glu",
    "mlp_out_bias": False,
    "model_type": "bert",
    "norm_kwargs": {"eps": 1e-05, "bias": False},
    "normalization": "layernorm",
    "pad_token_id": 0,
    "padding": "unpadded",
    "rotary_emb_base": 160_000.0,
    "rotary_emb_dim": 8,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "skip_first_prenorm": True,
    "sliding_window": 8,
    "type_vocab_size": 2,
    "unpad_embeddings": True,
}


def script() -> Any:
    """Return launch/flexbert.py as a module; only reading a file and writing weights need torch."""
    spec = importlib.util.spec_from_file_location("flexbert", ROOT / "launch" / "flexbert.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
