"""What launch/flexbert.py makes of FlexBERT's names and configs; tests/parity has whole files, which need torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.interchange.family import family_of
from tests.launch.flexbert import FLEX, script

flexbert = script()


def read(theirs: dict[str, Any]) -> Any:
    return family_of("modernbert").from_config(theirs, "converted")


def test_the_stages_of_modernbert_and_ettin_have_their_rotary_bases() -> None:
    """Before its context extension a FlexBERT has one base; Ettin's decay has 160,000 in all layers."""
    extended = read(flexbert.config_of(FLEX, 50_368, "file"))
    assert (extended.global_theta, extended.local_theta, extended.vocab_size) == (160_000.0, 10_000.0, 50_368)
    assert (extended.local_attention, extended.global_every, extended.max_length) == (8, 3, 8192)
    assert (extended.attention_output_dropout_rate, extended.layer_norm_eps) == (0.1, 1e-5)
    pretrained = FLEX | {"rotary_emb_base": 10_000.0, "local_attn_rotary_emb_base": -1}
    assert read(flexbert.config_of(pretrained, 72, "file")).rotary_bases == extended.rotary_bases
    found = read(flexbert.config_of(pretrained, 72, "file"))
    assert (found.global_theta, found.local_theta) == (10_000.0, 10_000.0)
    del pretrained["local_attn_rotary_emb_base"]
    found = read(flexbert.config_of(pretrained | {"rotary_emb_base": 160_000.0}, 72, "file"))
    assert (found.global_theta, found.local_theta) == (160_000.0, 160_000.0)


def test_a_model_without_windows_sees_all_in_every_layer() -> None:
    whole = FLEX | {"sliding_window": -1, "global_attn_every_n_layers": -1, "local_attn_rotary_emb_base": -1}
    assert read(flexbert.config_of(whole, 72, "file")).global_every == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp_layer": "parallel_glu"}, "mlp_layer 'parallel_glu' (a ModernBERT has 'glu')"),
        ({"normalization": "rmsnorm"}, "normalization 'rmsnorm' (a ModernBERT has 'layernorm' or 'triton_layernorm')"),
        ({"attn_qkv_bias": True, "final_norm": False}, "final_norm False (a ModernBERT has True), attn_qkv_bias True"),
        ({"causal_mask": True}, "causal_mask True"),
        ({"rotary_emb_dim": 4}, "rotary_emb_dim 4 (a ModernBERT has 8, the width of a head)"),
        ({"norm_kwargs": {"eps": 1e-5}}, "norms with biases"),
        ({"hidden_size": None}, "the config of file lacks hidden_size; give --config=FILE, a whole config.json"),
        ({"skip_first_prenorm": None}, "skip_first_prenorm None"),
    ],
)
def test_another_flexbert_is_refused_by_its_keys(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SystemExit) as refused:
        flexbert.config_of(FLEX | change, 72, "file")
    assert str(refused.value).startswith(("error: file is no ModernBERT: ", "error: the config of file lacks"))
    assert message in str(refused.value)


def test_a_config_that_leaves_keys_out_has_flexberts_defaults() -> None:
    keys = ("attention_layer", "embedding_layer", "mlp_layer", "normalization", "final_norm", "skip_first_prenorm")
    for key in keys:
        with pytest.raises(SystemExit, match=f"no ModernBERT: {key} "):
            flexbert.config_of({name: value for name, value in FLEX.items() if name != key}, 72, "file")
    needless = {name: value for name, value in FLEX.items() if name not in flexbert.NEEDED or name in keys}
    assert flexbert.config_of(needless, 72, "file") == flexbert.config_of(FLEX, 72, "file")


def test_every_name_has_a_place_in_transformers_and_none_is_left_over() -> None:
    words, norm = np.ones((4, 2)), np.ones(2)
    layer = ("attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo", "attn_norm", "mlp_norm")
    ours = (
        "embeddings.tok_embeddings",
        "embeddings.norm",
        *(f"encoder.layers.1.{name}" for name in layer),
        "final_norm",
    )
    weights = {f"model.bert.{name}.weight": norm for name in ours} | {"model.decoder.bias": norm}
    weights |= {f"model.head.{name}.weight": norm for name in ("dense", "norm")}
    weights |= dict.fromkeys(("model.bert.embeddings.tok_embeddings.weight", "model.decoder.weight"), words)
    entries = {entry.theirs for entry in family_of("modernbert").entries(2, "ModernBertForMaskedLM")}
    wanted = {name for name in entries if ".layers.0." not in name and not name.startswith("classifier")}
    for start in ("", "module.", "_orig_mod."):  # of a wrapper for several devices, of a compiled model
        assert flexbert.tensors_of({start + name: x for name, x in weights.items()}, "file").keys() == wanted
    with pytest.raises(SystemExit, match="1 weights that no ModernBERT has, such as model.bert.pooler.weight"):
        flexbert.tensors_of(weights | {"model.bert.pooler.weight": norm}, "file")
    with pytest.raises(SystemExit, match="no word embeddings"):
        flexbert.tensors_of({"model.head.norm.weight": norm}, "file")


def test_what_the_state_says_of_the_training() -> None:
    times, groups = {"batch": 7, "token": 9_000}, {"param_groups": [{"lr": 1e-4}, {"lr": 3e-4}]}
    state = {"timestamp": {"Timestamp": times}, "optimizers": {"DecoupledAdamW": groups}, "run_name": "ettin"}
    assert flexbert.facts_of(state) == {"run": "ettin", "step": 7, "tokens": 9_000, "rate": 3e-4}
    assert flexbert.facts_of({"timestamp": times, "optimizers": groups}) == {"step": 7, "tokens": 9_000, "rate": 3e-4}
    assert flexbert.facts_of({}) == {}


def test_a_tokenizer_that_the_file_keeps_is_written_under_its_names() -> None:
    """Older versions of Composer keep the names without endings."""
    content = {"added_tokens": [{"id": 3, "content": "[CLS]"}, {"id": 4, "content": "[PAD]"}]}
    special = {"cls_token": {"content": "[CLS]"}, "pad_token": "[PAD]", "sep_token": "[SEP]"}
    for endings in ("", ".json"):
        named = {f"tokenizer{endings}": content, f"special_tokens_map{endings}": special}
        kept = {name: {"file_extension": ".json", "content": value} for name, value in named.items()}
        files = flexbert.tokenizer_files({"integrations": {"huggingface": {"tokenizer": kept}}}, None, "file")
        assert {name: json.loads(text) for name, text in files.items()} == {
            "tokenizer.json": content,
            "special_tokens_map.json": special,
        }
        assert flexbert.special_ids(files) == {"cls_token_id": 3, "pad_token_id": 4, "bos_token_id": 3}


def test_a_place_that_is_taken_or_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exists already; choose another --output"):
        flexbert.convert("a.pt", str(tmp_path))
    with pytest.raises(SystemExit, match=r"there is no file .*a.pt; --input is a .pt file of Composer"):
        flexbert.convert(str(tmp_path / "a.pt"), str(tmp_path / "out"))
