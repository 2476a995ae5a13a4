"""A finished run fills words of its own held-out text, beside the words that stood there."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax import configuration
from bert_jax.corpora.mixture import Mixture
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig
from bert_jax.features.fill_mask import Filled
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import bert, seq2seq
from bert_jax.models.model import LM_HEAD, fresh_params
from bert_jax.recipes import recipes
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.runs import filled_examples
from bert_jax.runs.filled_examples import NUMBER, _masked_sentences, abilities, to_fill
from bert_jax.runs.inputs import Inputs
from bert_jax.text.tokenizer import Tokenizer, wordpiece
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
    shown = filled_examples.fill_examples(trained, None, Any, said.append)
    assert [(one["text"], one["answer"]) for one in shown] == [("a [MASK]", "x"), ("b [MASK]", "cat")]
    assert said[0].startswith("1 of 2 masked held-out words are among the five predictions:")
    assert "in the text: cat" in said[0]
    [given] = filled_examples.fill_examples(trained, ["a [MASK]"], Any, said.append)
    assert given["text"] == "a [MASK]"
    assert "answer" not in given
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


def test_a_model_with_a_decoder_writes_for_texts_without_masks() -> None:
    tokenizer = wordpiece((*SPECIAL_TOKENS, "the", "cat", "sees"))
    config = seq2seq.Config(tokenizer.size, 16, 1, 2, 32, max_length=12, num_decoder_layers=1, lm_head="bert")
    params = jax.tree.map(np.asarray, fresh_params(config))
    trained = TrainedModel("there", {name: params[name] for name in ("encoder", LM_HEAD.name)}, config, tokenizer)
    said: list[str] = []
    texts = ("the cat sees", "a [MASK]")
    [record] = filled_examples.continue_examples(trained, texts, None, said.append)  # type: ignore[arg-type]
    assert [*record] == ["text", "continuation"]
    assert record["text"] == "the cat sees"
    [written] = trained.generate(["the cat sees"], max_new_tokens=11, no_repeat_ngram=3)  # as many as there is room for
    assert record["continuation"] == f" {written.text}"
    assert said == [f"the cat sees ... {written.text}"]
    long = ("the cat sees " * 4,)  # more tokens than positions
    assert filled_examples.continue_examples(trained, long, None, said.append) == []  # type: ignore[arg-type]


def test_what_a_finished_model_shows() -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 32}
    both, one_way = bert.Config(**sizes), bert.Config(**sizes, attention="causal")
    decoder = seq2seq.Config(**sizes, num_decoder_layers=1)
    shown = {
        "bert": abilities(both, "", ()),
        "unilm": abilities(both, "", ("mask at the end",)),
        "both orders": abilities(both, "predicts a masked token before it", ("left to right",)),
        "ltr": abilities(one_way, "", ("left to right",)),
        "mass": abilities(decoder, "has a decoder", ()),
    }
    assert {name for name, one in shown.items() if one.fills} == {"bert", "unilm"}
    assert {name for name, one in shown.items() if one.writes} == {"unilm", "both orders", "ltr", "mass"}
    texts = ("a [MASK]", "the cat")
    assert to_fill(texts, shown["bert"]) == texts  # the second is refused
    assert to_fill(texts, shown["unilm"]) == ["a [MASK]"]
    assert to_fill(None, shown["unilm"]) is None
