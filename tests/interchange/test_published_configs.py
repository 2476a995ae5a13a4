"""The ``config.json`` of published models, as versions 2 to 5 of transformers and others saved them, are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.interchange.architectures import of_config
from bert_jax.interchange.family import family_described, family_of

BERT = """{"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
  "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
  "num_hidden_layers": 12, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522"""
CHINESE = """, "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
  "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform" """
ROBERTA = (
    BERT.replace("Bert", "Roberta").replace('"bert"', '"roberta"').replace(": 512", ": 514").replace('id": 0', 'id": 1')
)
ALBERT = """{"architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
  "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128, "eos_token_id": 3, "gap_size": 0,
  "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "hidden_size": 768, "initializer_range": 0.02,
  "inner_group_num": 1, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
  "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 12, "num_hidden_groups": 1,
  "num_hidden_layers": 12, "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30000"""
ELECTRA = """{"architectures": ["ElectraForPreTraining"], "attention_probs_dropout_prob": 0.1, "embedding_size": 128,
  "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 256, "initializer_range": 0.02,
  "intermediate_size": 1024, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "electra",
  "num_attention_heads": 4, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522"""
ERNIE = """{"attention_probs_dropout_prob": 0.1, "hidden_act": "relu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
  "initializer_range": 0.02, "max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12,
  "task_type_vocab_size": 3, "type_vocab_size": 4, "use_task_id": true, "vocab_size": 40000, "layer_norm_eps": 1e-05,
  "model_type": "ernie", "architectures": ["ErnieForMaskedLM"], "intermediate_size": 3072"""
DISTILBERT = """{"activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768,
  "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
  "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
  "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false, "tie_weights_": true, "vocab_size": 30522"""
XLNET = """{"architectures": ["XLNetLMHeadModel"], "attn_type": "bi", "bi_data": false, "clamp_len": -1, "d_head": 64,
  "d_inner": 3072, "d_model": 768, "dropout": 0.1, "end_n_top": 5, "ff_activation": "gelu", "initializer_range": 0.02,
  "layer_norm_eps": 1e-12, "mem_len": null, "model_type": "xlnet", "n_head": 12, "n_layer": 12, "pad_token_id": 5,
  "reuse_len": null, "same_length": false, "start_n_top": 5, "summary_activation": "tanh", "summary_last_dropout": 0.1,
  "summary_type": "last", "summary_use_proj": true, "untie_r": true, "vocab_size": 32000"""
WHOLE = """, "_num_labels": 9, "add_cross_attention": false, "bad_words_ids": null, "bos_token_id": null,
  "chunk_size_feed_forward": 0, "decoder_start_token_id": null, "diversity_penalty": 0.0, "do_sample": false,
  "early_stopping": false, "encoder_no_repeat_ngram_size": 0, "eos_token_id": null, "finetuning_task": null,
  "forced_bos_token_id": null, "forced_eos_token_id": null, "is_decoder": false, "is_encoder_decoder": false,
  "length_penalty": 1.0, "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
  "num_beams": 1, "num_return_sequences": 1, "output_attentions": false, "output_hidden_states": false,
  "output_scores": false, "prefix": null, "problem_type": null, "pruned_heads": {}, "remove_invalid_values": false,
  "repetition_penalty": 1.0, "return_dict": true, "return_dict_in_generate": false, "sep_token_id": null,
  "task_specific_params": null, "temperature": 1.0, "tie_encoder_decoder": false, "tie_word_embeddings": true,
  "tokenizer_class": null, "top_k": 50, "top_p": 1.0, "torch_dtype": null, "torchscript": false,
  "transformers_version": "4.16.2", "use_bfloat16": false, "use_cache": true, "xla_device": null,
  "_name_or_path": "bert", "position_embedding_type": "absolute", "gradient_checkpointing": false """
PUBLISHED = {
    "bert-base-uncased": BERT
    + ', "gradient_checkpointing": false, "transformers_version": "4.6.0.dev0", "use_cache": true}',
    "bert_uncased_L-2 of google": """{"hidden_size": 128, "hidden_act": "gelu", "initializer_range": 0.02,
      "vocab_size": 30522, "hidden_dropout_prob": 0.1, "num_attention_heads": 2, "type_vocab_size": 2,
      "max_position_embeddings": 512, "num_hidden_layers": 2, "intermediate_size": 512,
      "attention_probs_dropout_prob": 0.1}""",
    "chinese-roberta-wwm-ext": BERT + CHINESE + ', "bos_token_id": 0, "eos_token_id": 2, "output_past": true}',
    "a dump of version 2": BERT
    + """, "do_sample": false, "eos_token_ids": 0, "finetuning_task": null, "id2label": {"0": "LABEL_0"},
      "is_decoder": false, "label2id": {"LABEL_0": 0}, "length_penalty": 1.0, "max_length": 20, "num_beams": 1,
      "num_labels": 1, "num_return_sequences": 1, "output_past": true, "pruned_heads": {}, "torchscript": false}""",
    "a dump of version 4": BERT + WHOLE + "}",
    "a file of version 5": BERT
    + """, "add_cross_attention": false, "bos_token_id": null, "classifier_dropout": null, "dtype": "float32",
      "eos_token_id": null, "is_decoder": false, "tie_word_embeddings": true, "transformers_version": "5.23.0",
      "use_cache": true}""",
    "a cross encoder": BERT
    + """, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "sentence_transformers":
      {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}}""",
    "roberta-base": ROBERTA + ', "bos_token_id": 0, "eos_token_id": 2}',
    "roberta-base-squad2": ROBERTA
    + ', "bos_token_id": 0, "eos_token_id": 2, "language": "english", "name": "Roberta", "output_past": true}',
    "roberta without a padding id": ROBERTA.replace('"pad_token_id": 1, ', "") + "}",
    "albert-base-v2": ALBERT + "}",
    "albert_chinese_base": ALBERT + ', "layers_to_keep": []}',
    "distilbert-base-uncased": DISTILBERT + ', "transformers_version": "4.10.0.dev0"}',
    "distilbert-base-uncased-finetuned-sst-2-english": DISTILBERT
    + """, "finetuning_task": "sst-2", "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
      "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "output_past": true}""",
    "a dump of a DistilBERT by version 4": DISTILBERT + WHOLE + "}",
    "a DistilBERT of version 5": DISTILBERT.replace('"tie_weights_": true', '"tie_word_embeddings": true')
    + ', "bos_token_id": null, "dtype": "float32", "eos_token_id": null, "transformers_version": "5.23.0"}',
    "electra-small-discriminator": ELECTRA + "}",
    "an ELECTRA of version 4": ELECTRA
    + """, "classifier_dropout": null, "pad_token_id": 0, "position_embedding_type": "absolute",
      "summary_type": "first", "summary_use_proj": true, "summary_activation": "gelu", "summary_last_dropout": 0.1}""",
    "ernie-3.0-base-zh": ERNIE + "}",
    "an ERNIE of PaddleNLP": ERNIE
    + ', "enable_recompute": false, "paddlenlp_version": null, "pool_act": "tanh", "task_id": 0}',
}


BY_ENCODER = {
    "albert": ALBERT,
    "bert": BERT,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "ernie": ERNIE,
    "roberta": ROBERTA,
    "xlnet": XLNET,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read(name: str) -> None:
    described = json.loads(PUBLISHED[name])
    config = family_described(described, name).from_config(described, name)
    skipped = 2 if name.startswith("roberta") else 0
    assert config.max_length == described["max_position_embeddings"] - skipped


def test_xlnet_base_is_read_and_other_forms_of_it_are_refused() -> None:
    described = json.loads(XLNET + ', "bos_token_id": 1, "eos_token_id": 2, "transformers_version": "4.7.0"}')
    config: Any = family_described(described, "there").from_config(described, "there")
    assert (config.num_parameters, config.memory_length, config.max_length) == (116_588_544, 0, 512)
    assert family_of("xlnet").from_config(described | {"mem_len": 384}, "there").memory_length == 384
    for key, value in {"bi_data": True, "untie_r": False, "attn_type": "uni", "clamp_len": 400, "d_head": 32}.items():
        with pytest.raises(UserError, match=f"^there/config.json has {key} {value!r}; .* can be read$"):
            family_of("xlnet").from_config(described | {key: value}, "there")


@pytest.mark.parametrize("encoder", BY_ENCODER)
@pytest.mark.parametrize(
    ("key", "value"),
    [("per_layer_config", {"0": {}}), ("emb_size", 312), ("use_rope", False)],
)
def test_a_key_that_may_change_the_model_is_named_with_its_value(encoder: str, key: str, value: Any) -> None:
    family = family_of(encoder)
    described = json.loads(BY_ENCODER[encoder] + "}")
    with pytest.raises(
        UserError, match=f"^there/config.json has keys that are not known .*: {key} = .*; remove"
    ) as error:
        family.from_config(described | {key: value}, "there")
    assert str(value) in str(error.value)


@pytest.mark.parametrize("encoder", BY_ENCODER)
def test_a_quantized_model_is_named_by_its_config(encoder: str) -> None:
    described = json.loads(BY_ENCODER[encoder] + "}") | {"quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(
        UserError, match="^there/config.json has quantization_config: a quantized model cannot be read; g"
    ):
        family_of(encoder).from_config(described, "there")


@pytest.mark.parametrize("encoder", [*BY_ENCODER, "modernbert"])
def test_a_null_that_transformers_does_not_read_as_the_default_is_refused(encoder: str) -> None:
    """Null as position_embedding_type takes the positions away in transformers 4; on the others, 4 or 5 fails."""
    family, rest = family_of(encoder), () if encoder == "xlnet" else ("position_embedding_type",)
    described = dict.fromkeys(family.fields, 1) | json.loads(BY_ENCODER.get(encoder, "{") + "}")
    rest += ("num_hidden_groups", "inner_group_num", "classifier_dropout_prob") if encoder == "albert" else ()
    rest += ("summary_activation", "summary_type") if encoder == "electra" else ()
    may_be = ("local_rope_theta", "attn_out_dropout_prob", "mem_len", "reuse_len")
    for key in (name for name in (*family.fields, family.activation, *rest) if name not in may_be):
        with pytest.raises(UserError, match=rf"^there/config.json (has null as {key}; give|.*\b{key} None)"):
            family.from_config(described | {key: None}, "there")


@pytest.mark.parametrize("encoder", ["bert", "roberta"])
@pytest.mark.parametrize("positions", ["514", 0])
def test_positions_that_are_no_number_are_refused(encoder: str, positions: Any) -> None:
    described = json.loads({"bert": BERT, "roberta": ROBERTA}[encoder] + "}") | {"max_position_embeddings": positions}
    with pytest.raises(UserError, match="^there/config.json does not describe .*: config.*max_length is"):
        family_of(encoder).from_config(described, "there")


@pytest.mark.parametrize(
    ("encoder", "key", "value"),
    [("electra", "hidden_act", "relu"), ("electra", "summary_type", "mean"), ("roberta", "hidden_act", "relu")],
)
def test_a_model_whose_heads_compute_otherwise_is_refused(encoder: str, key: str, value: str) -> None:
    """The MLM head of a RoBERTa of transformers has a GELU, whatever ``hidden_act`` says."""
    described = json.loads({"electra": ELECTRA, "roberta": ROBERTA}[encoder] + "}")
    with pytest.raises(UserError, match=f"^there/config.json .*{value}"):
        family_of(encoder).from_config(described | {key: value}, "there")


@pytest.mark.parametrize("encoder", BY_ENCODER)
@pytest.mark.parametrize("key", ["is_decoder", "tie_word_embeddings"])
@pytest.mark.parametrize("value", ["false", 1, [True]])
def test_a_flag_is_true_or_false(encoder: str, key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^there/config.json has {key} .*; true and false are allowed$"):
        family_of(encoder).from_config(json.loads(BY_ENCODER[encoder] + "}") | {key: value}, "there")


@pytest.mark.parametrize("value", ["BertModel", 3, True, {"BertModel": 1}, [None]])
def test_architectures_are_a_list_of_names(value: Any) -> None:
    with pytest.raises(UserError, match=r"^there/config.json has architectures .*; a list of class names is needed$"):
        of_config(family_of("bert"), {"architectures": value}, {}, "there")
