"""Exports in transformers 4 and 5, each in its environment: the ids of texts and pairs, and of special tokens."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import Tokenizer, of_json, sentencepiece, wordpiece
from tests.interchange.heads import TOKENIZER
from tests.interchange.test_families import DECODERS, config_of, head_of, params_of
from tests.parity.auto_tokenizer import read
from tests.text.byte_level_files import released, roberta

pytestmark = pytest.mark.parity
TEXTS = [
    "The cat, it runs!",
    "the {m} cat",
    "the{m}cat {m}",
    " naïve  café 日本🙂\n\tx ",
    "I'll can't WE'LL",
    "abc",
    "",
]
ADDED = [{"content": "<e1>", "special": True}, {"content": "e2", "single_word": True}]
KINDS: dict[str, Any] = {
    "wordpiece": lambda: TOKENIZER,
    "cased": lambda: wordpiece(TOKENIZER.vocab, lowercase=False),
    "added": lambda: TOKENIZER.with_added([{**dict.fromkeys(("lstrip", "rstrip"), False), **one} for one in ADDED]),
    "learned": lambda: learn_byte_bpe(["the cat's naïve hello world"] * 9, 300),
    "learned_lowercase": lambda: learn_byte_bpe(["the cat's naïve hello world"] * 9, 300, lowercase=True),
    "roberta": lambda: of_json(roberta()),
    "released": lambda: of_json(released()),
    "unigram": lambda: sentencepiece(learn_sentencepiece(TEXTS * 20, 330, num_threads=1, byte_fallback=True)),
    "bpe": lambda: sentencepiece(learn_sentencepiece(TEXTS * 20, 300, "bpe", num_threads=1)),
}
made = functools.cache(lambda kind: KINDS[kind]())


def exported(folder: Path, encoder: str, tokenizer: Tokenizer) -> Path:
    config, head = dataclasses.replace(config_of(encoder), vocab_size=tokenizer.size), head_of(encoder, "Model")
    export_model(TrainedModel("", params_of(config, head), config, tokenizer, head), folder / "model", "card")
    return folder / "model"


@pytest.mark.parametrize("major", [4, 5])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
def test_auto_tokenizer_gives_our_ids(tmp_path: Path, encoder: str, kind: str, major: int) -> None:
    ours = made(kind)
    texts = [text.format(m=ours.vocab[ours.mask_id]) for text in [*TEXTS, "a <e1> e2 be2"]]
    calls = [[text, None, {}] for text in texts] + [["the cat", "Hello", {"padding": "max_length", "max_length": 30}]]
    found = read(exported(tmp_path, encoder, ours), calls, major)
    assert found["version"].startswith(f"{major}.")
    assert (found["size"], found["special_ids"], found["max_length"]) == (ours.size, [*ours.special_ids], 32)
    for encoded, text in zip(found["encoded"], texts, strict=False):
        assert tuple(encoded["input_ids"]) == ours.encode(text, special_tokens_in_text=True).input_ids, repr(text)
    pair, wanted = found["encoded"][-1], ours.encode("the cat", "Hello", max_length=30)
    names = ("input_ids", "attention_mask", *["token_type_ids"] * (encoder == "bert"))
    assert {name: tuple(pair[name]) for name in pair} == {name: getattr(wanted, name) for name in names}


@pytest.mark.parametrize("major", [4, 5])
@pytest.mark.parametrize("encoder", DECODERS)
def test_a_config_has_the_ids_of_its_tokenizer(tmp_path: Path, encoder: str, major: int) -> None:
    config = read(exported(tmp_path, encoder, made("roberta")), [], major)["config"]
    ids = {"pad": 1, "bos": 0, "cls": 0, "eos": 2, "sep": 2}
    assert {name: config[f"{name}_token_id"] for name in ids} == ids


@pytest.mark.parametrize("major", [4, 5])
def test_a_pair_that_is_too_long_is_cut_as_the_card_says(tmp_path: Path, major: int) -> None:
    """29 positions are left for two texts of 20 pieces: transformers keeps 14 + 15, we keep 15 + 14."""
    call = ["a" * 20, "b" * 20, {"truncation": True, "max_length": 32}]
    ids = read(exported(tmp_path, "bert", TOKENIZER), [call], major)["encoded"][0]["input_ids"]
    assert (len(ids), ids.index(TOKENIZER.sep_id)) == (32, 15)
    assert TOKENIZER.encode(*call[:2], max_length=32).input_ids.index(TOKENIZER.sep_id) == 16
