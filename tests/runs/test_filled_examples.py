"""A finished run fills words of its own held-out text, beside the words that stood there."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bert_jax import configuration
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig
from bert_jax.features.fill_mask import Filled
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.model import LM_HEAD
from bert_jax.runs import filled_examples, recipes
from bert_jax.runs.filled_examples import NUMBER, _masked_sentences
from bert_jax.runs.inputs import Inputs
from bert_jax.text.tokenizer import Tokenizer
from tests import toy

SENTENCE = "the old king remembers the long road by the river."


def opened(workdir: Path, recipe: dict[str, Any]) -> tuple[Tokenizer, Mixture]:
    corpus = configuration.build(CorpusConfig, recipe["corpus"], "config.corpus")
    vocab = configuration.build(VocabularyConfig, recipe["vocab"], "config.vocab")
    return Inputs(str(workdir), vocab, corpus, None, False).open(lambda line: None)


def test_chinese_sentences_have_no_spaces(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(["春眠不觉晓，处处闻啼鸟。\n夜来风雨声，花落知多少。"] * 30))
    tokenizer, made = opened(tmp_path, toy.recipe(text, vocab={"size": 40}))
    found = _masked_sentences(made, tokenizer, 32)
    assert found
    for masked, word in found:
        assert " " not in masked
        assert masked.replace("[MASK]", word) in text.read_text()


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 120), ("unigram", 60), ("byte_bpe", 400)])
def test_sentences_are_of_the_heldout_text_with_one_word_masked(tmp_path: Path, kind: str, size: int) -> None:
    text = toy.write_text(tmp_path / "text.txt")
    text.write_text("\n\n".join(f"{one}\n{SENTENCE}" for one in text.read_text().split("\n\n")))
    recipe = toy.recipe(text, vocab={"kind": kind, "size": size})
    tokenizer, made = opened(tmp_path, recipe)
    split = made.corpora[""].split("heldout")
    starts, lengths = split.sentence_offsets[:-1], split.sentence_lengths()
    heldout = {tokenizer.decode(split.read(*map(np.atleast_1d, one))) for one in zip(starts, lengths, strict=True)}
    found = _masked_sentences(made, tokenizer, 32)
    assert len(found) == NUMBER
    for masked, word in found:
        assert masked.count("[MASK]") == 1
        assert word.isalpha()
        ids = tokenizer.encode(masked.replace("[MASK]", word)).input_ids
        assert tokenizer.decode(ids) in heldout, masked
    assert _masked_sentences(made, tokenizer, 9) == [], "sentences of 8 tokens do not fit with [CLS] and [SEP]"
    two = Mixture({"a": made.corpora[""], "b": made.corpora[""]}, {"a": 1.0, "b": 0.0})
    of_two = _masked_sentences(two, tokenizer, 32)
    assert len(of_two) == NUMBER
    assert of_two[:2] == of_two[2:], "two of each part"


def test_held_out_words_are_shown_beside_the_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = SimpleNamespace(max_length=32)
    tokenizer: Any = None
    trained = TrainedModel("", {LM_HEAD.name: {}}, config, tokenizer, workdir=str(tmp_path))
    masked = [("a [MASK]", "x"), ("b [MASK]", "cat")]
    monkeypatch.setattr(filled_examples, "_masked_sentences", lambda *arguments: masked)
    guesses = ((("cat", 0.5), ("dog", 0.25)),)
    monkeypatch.setattr(filled_examples, "fill_mask", lambda model, texts: [Filled(text, guesses) for text in texts])
    said: list[str] = []
    assert filled_examples.fill_examples(trained, None, Any, said.append) == ["a [MASK]", "b [MASK]"]
    assert said[0].startswith("1 of 2 masked held-out words are among the five predictions:")
    assert "in the text: cat" in said[0]
    assert [one["answer"] for one in json.loads((tmp_path / "examples.json").read_text())] == ["x", "cat"]
    assert filled_examples.fill_examples(trained, ["a [MASK]"], Any, said.append) == ["a [MASK]"]
    assert said[1] == "a [MASK]\n  cat 0.50, dog 0.25"


def test_byte_level_pieces_of_a_script_without_spaces_are_masked(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(["春眠不觉晓，处处闻啼鸟。\n夜来风雨声，花落知多少。"] * 30))
    tokenizer, made = opened(tmp_path, toy.recipe(text, vocab={"kind": "byte_bpe", "size": 285, "lowercase": False}))
    for masked, word in _masked_sentences(made, tokenizer, 64):
        assert masked.replace("[MASK]", word) in text.read_text()


def test_that_nothing_is_filled_is_said_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = list[str]()
    trained = SimpleNamespace(tokenizer=None, config=SimpleNamespace(max_length=32))
    trained.with_parts = lambda parts: SimpleNamespace(params={LM_HEAD.name: {}})
    monkeypatch.setattr(filled_examples, "_masked_sentences", lambda *of: [])
    assert filled_examples.fill_examples(trained, None, None, notes.append) == []  # type: ignore[arg-type]
    [line] = notes
    assert line.startswith("config.examples=None fills nothing: no held-out sentence of 8 to 16 tokens ")
    [flag] = [word for word in shlex.split(line.partition("; ")[2]) if word.startswith("--")]
    assert recipes.load("quickstart", [flag]).examples == ("A text with a [MASK].",)
    assert filled_examples.fill_examples(trained, (), None, notes.append) == []  # type: ignore[arg-type]
    assert len(notes) == 1
