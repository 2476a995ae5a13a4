"""Vectors of texts against transformers' ``hidden_states``."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.features.extract import Extractor
from bert_jax.features.inputs import Item
from bert_jax.interchange.loading import load
from bert_jax.records import SPECIAL_TOKENS

pytestmark = pytest.mark.parity
VOCAB = (*SPECIAL_TOKENS, *"abcdefgh", *(f"##{c}" for c in "abcdefgh"), "bank", "river", ",", ".")
TEXTS = [("a bank.", None), ("abc d, river", "gaga bank"), ("h", None), ("a b c d e f g h a b c d", None)]


def test_hidden_states_are_theirs(tmp_path: Path):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.2).add_(float("LayerNorm.weight" in name))
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCAB))
    tokenizer = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"))

    names = ("all", "concat_last_four", "sum_last_four", "mean")
    found = list(Extractor(load(str(tmp_path)), names).run([Item("", *text) for text in TEXTS]))
    for (text, pair), one in zip(TEXTS, found, strict=True):
        inputs = tokenizer(text, pair, return_tensors="pt")
        assert inputs["input_ids"][0].tolist() == one.tokens.input_ids.tolist()
        with torch.no_grad():
            states = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)[:, 0].numpy()
        expected = {
            "all": states.transpose(1, 0, 2),
            "concat_last_four": np.concatenate(list(states[-4:]), axis=-1),
            "sum_last_four": states[-4:].sum(axis=0),
            "mean": states[-1].mean(axis=0),
        }
        for name, vectors in expected.items():
            assert np.abs(one.vectors[name] - vectors).max() <= 2e-5 * max(1.0, np.abs(vectors).max() / 4), name
