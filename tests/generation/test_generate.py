"""From prompts to texts: what comes back, in Python and by ``bert-jax generate``, and bad input in one line each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.features import generate as generating
from bert_jax.generation.settings import Settings
from bert_jax.interchange import loading
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import albert, bert, seq2seq
from bert_jax.recipes import recipes
from bert_jax.text.tokenizer import Tokenizer, wordpiece
from tests.generation.test_steppers import params_of
from tests.models.helpers import random_params

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijk", "##a", "##b", "the", "cat", ".")
SIZES: dict[str, Any] = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "mlp_dim": 24, "max_length": 24}
PROMPTS = ["the cat", "a b c d e .", "the"]


def model_of(kind: Any = bert, attention: str = "causal", **options: Any) -> TrainedModel:
    tokenizer: Tokenizer = wordpiece(PIECES)
    config = kind.Config(vocab_size=len(PIECES) + 3, **SIZES, attention=attention, **options)
    return TrainedModel("a model", random_params(config), config, tokenizer)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> TrainedModel:
    model = model_of()
    monkeypatch.setattr(loading, "load", lambda workdir, step=None: model)
    return model


def test_texts_and_ids(one_device: None) -> None:
    """The ids are of the vocabulary, and no special tokens; no batch size changes them; texts are the pieces of ids."""
    model = model_of()
    found = model.generate(PROMPTS, max_new_tokens=6, no_repeat_ngram=1)
    assert len(found) == len(PROMPTS)
    for one in found:
        assert 0 < len(one.ids) <= 6
        assert all(5 <= i < len(PIECES) for i in one.ids)
        assert one.text.replace(" ", "") == "".join(PIECES[i].removeprefix("##") for i in one.ids)
    assert model.generate(PROMPTS[:1], max_new_tokens=6, no_repeat_ngram=1) == found[:1]
    best = model.generate(PROMPTS[:2], batch_size=1, method="beam", beams=3, num_results=2, max_new_tokens=4)
    assert len(best) == 4
    assert best[0] != best[1]
    drawn = [
        model.generate(PROMPTS[:2], batch_size=size, method="sample", seed=3, max_new_tokens=6, num_results=2)
        for size in (1, 16)
    ]
    assert drawn[0] == drawn[1]


# The stepper "albert" of test_steppers.py is compared with whole texts in the quick tests.
@pytest.mark.heavy
def test_layers_that_share_parameters_keep_keys(one_device: None) -> None:
    """The texts of an ALBERT whose projection does nothing are the texts of a BERT with the same layer twice."""
    shared = model_of(albert, embedding_size=16)
    encoder = {**shared.params["encoder"], "embedding_projection": {"kernel": np.eye(16), "bias": np.zeros(16)}}
    shared = dataclasses.replace(shared, params={**shared.params, "encoder": encoder})
    layer = encoder["layer"]
    twice = {"embeddings": encoder["embeddings"], "layer_0": layer, "layer_1": layer}
    apart = dataclasses.replace(model_of(), params={**shared.params, "encoder": twice})
    assert apart.generate(PROMPTS, max_new_tokens=5) == shared.generate(PROMPTS, max_new_tokens=5)


@pytest.mark.parametrize("way", ["mask at the end", "a decoder"])
def test_models_that_read_the_prompt_as_a_source(way: str, one_device: None) -> None:
    """The text stands alone. The longest prompt that is allowed is read."""
    model = model_of(attention="bidirectional", type_vocab_size=6)
    model = dataclasses.replace(model, facts={"writes": ["mask at the end"]})
    if way == "a decoder":
        config = seq2seq.Config(vocab_size=len(PIECES), **SIZES, num_decoder_layers=2)
        model = dataclasses.replace(model, config=config, params=params_of(config), facts={})
    found = model.generate(PROMPTS, max_new_tokens=5, no_repeat_ngram=1)
    assert all(one.text == model.tokenizer.decode(one.ids) for one in found)
    longest = 24 - (way != "a decoder") - 2  # [CLS] and [SEP] are around it
    assert len(model.generate(["a " * longest], max_new_tokens=1)) == 1
    with pytest.raises(UserError, match="the model has 24 positions"):
        model.generate(["a " * (longest + 1)], max_new_tokens=1)


def test_the_command_prints_a_record_a_line(
    tmp_path: Path, loaded: TrainedModel, capsys: pytest.CaptureFixture[str], one_device: None
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n\n".join(PROMPTS) + "\n")
    flags = ["generate", "--workdir=W", "--max_new_tokens=5", "--no_repeat_ngram=1"]
    assert run([*flags, *PROMPTS, "--json"]) == 0
    typed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [*typed[0]] == ["text", "ids"]
    expected = loaded.generate(PROMPTS, max_new_tokens=5, no_repeat_ngram=1)
    assert typed == [{"text": one.text, "ids": [*one.ids]} for one in expected]
    assert run([*flags, f"--input={file}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [prompt + one.text for prompt, one in zip(PROMPTS, expected, strict=True)]
    capsys.readouterr()
    assert run([*flags, f"--input={file}", "--json"]) == 0
    printed = capsys.readouterr()
    records = [json.loads(line) for line in printed.out.splitlines()]
    assert [one["id"] for one in records] == ["1", "2", "3", "4", "5"]
    assert [{"text": one["text"], "ids": one["ids"]} for one in records[::2]] == typed
    assert records[1] == {"id": "2", "text": None, "ids": None}
    assert printed.err == "2 of 5 lines are blank; their text is null\n"


BAD = {
    "no prompt": ([], "give either prompts or --input=FILE"),
    "both": (["a", "--input=x.txt"], "give either prompts or --input=FILE"),
    "an empty prompt": ([" ", "the"], "a prompt is empty (' '); give the text that the model goes on with"),
    "a prompt longer than positions": (
        ["a " * 30],
        "a prompt has 31 tokens; the model has 24 positions: shorten it: 'a a a",
    ),
    "together longer": (
        ["a " * 9, "--max_new_tokens=20"],
        "a prompt has 10 tokens, and max_new_tokens is 20; the model has 24 positions: give at most 14 max_new_tokens",
    ),
    "more beams than pieces": (
        ["a", "--method=beam", "--beams=22", "--max_new_tokens=2"],
        "beams is 22, and the vocabulary has 21 pieces",
    ),
    "results over beams": (
        ["a", "--method=beam", "--beams=2", "--num_results=3"],
        "num_results is 3, and beam keeps 2 texts",
    ),
    "results of greedy": (["a", "--num_results=3"], "num_results is 3, and greedy has one result"),
    "a flag of another method": (["a", "--top_k=3"], "generate.top_k is 3, which acts in method 'sample' alone"),
    "no share": (["a", "--method=sample", "--top_p=0"], "top_p is 0.0; more than 0 and at most 1 is needed"),
    "no number": (["a", "--method=sample", "--temperature=nan"], "--temperature: found 'nan'; a number is needed"),
    "no tokens": (["a", "--max_new_tokens=0"], "--max_new_tokens: found '0'; a whole number from 1"),
    "no file": (["--input=missing.txt"], "missing.txt"),
    "an empty file": (["--input=empty.txt"], "empty.txt has no text; check --input\n"),
    "no UTF-8": (["--input=latin.txt"], "latin.txt:2 is not UTF-8; mend them\n"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(
    name: str, loaded: TrainedModel, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, said = BAD[name]
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("latin.txt").write_bytes(b"the cat\nle caf\xe9\n")
    assert run(["generate", "--workdir=W", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_model_that_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"this model \(bert\) does not read from left to right alone and cannot write; mod"
    ):
        model_of(attention="bidirectional").generate(["a"])
    whole = model_of()
    headless = TrainedModel("", {"encoder": whole.params["encoder"]}, whole.config, whole.tokenizer)
    with pytest.raises(UserError, match=r"this model has no mlm_head \(its parts: encoder\)"):
        headless.generate(["a"])
    monkeypatch.setattr(generating, "device_bytes", lambda device: 1000.0)
    with pytest.raises(
        UserError, match=r"4 texts of 18 tokens keep 18.* of keys and values on a device, which has 1000 B"
    ):
        whole.generate(["a"], method="beam", max_new_tokens=2)


def test_the_recipes_of_models_that_write_are_there() -> None:
    for name in generating.RECIPES:
        assert recipes.load(name).to_dict()["objective"]


def test_settings_say_what_is_allowed() -> None:
    for wrong in ({"method": "best"}, {"method": "sample", "temperature": 0.0}, {"method": "beam", "beams": 0}):
        with pytest.raises(UserError, match="allowed|needed"):
            Settings(**wrong)  # type: ignore[arg-type]
    assert np.all([Settings(method="beam", beams=3).rows == 3, Settings().rows == 1])
