"""The nearest contexts of a word: against a plain loop, and of a bank by the river and one with money."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.features.extract import Extractor
from bert_jax.features.inputs import Input, read_texts
from bert_jax.features.neighbours import check_layer, find_neighbours, mark, whole_word
from bert_jax.features.trained_model import TrainedModel
from bert_jax.interchange.hugging_face import export_model
from bert_jax.models.encoders import bert
from bert_jax.text.learn import learn_wordpiece
from bert_jax.text.tokenizer import wordpiece
from tests.models.helpers import random_params, tiny

RIVER = [
    "We sat on the bank of the river and watched the water.",
    "The river broke its bank after the rain.",
    "Willows grow along the bank of the stream.",
    "A boat was tied to the bank near the water.",
]
MONEY = [
    "The bank lent her the money for a house.",
    "He put his savings in a bank in town.",
    "A bank charges interest on its loans.",
    "The clerk of the bank counted the money.",
]
OTHERS = ["The embankment is high.", "Banks are closed on Sunday.", "Nothing to see here."]
TOKENIZER = wordpiece((*learn_wordpiece(RIVER + MONEY + OTHERS, 150, min_frequency=1),))
CONFIG = tiny(vocab_size=TOKENIZER.size, hidden_size=24, mlp_dim=16)
PARAMS = random_params(CONFIG)
APPLY = jax.jit(bert.Encoder(CONFIG).apply)
ENCODER = TrainedModel("", PARAMS, CONFIG, TOKENIZER)


@pytest.fixture
def corpus(tmp_path: Path) -> Input:
    (tmp_path / "corpus.txt").write_text("\n".join([*RIVER, *MONEY, *OTHERS, *RIVER[:2]]) + "\n")
    return Input(str(tmp_path / "corpus.txt"))


def extractor() -> Extractor:
    return Extractor(ENCODER, ["last"], batch_size=16, devices=jax.devices()[:1])


def plain_vector(text: str, word: str) -> np.ndarray:
    """The mean over the word's pieces, found by their offsets, of one text by itself."""
    encoded = TOKENIZER.encode(text)
    row, length = np.pad(encoded.input_ids, (0, 32 - len(encoded.input_ids)))[None], len(encoded.input_ids)
    mask = (np.arange(32) < length)[None]
    batch = {"input_ids": row, "token_type_ids": np.zeros_like(row), "attention_mask": mask}
    sequence = APPLY({"params": PARAMS["encoder"]}, batch).sequence
    [match] = re.finditer(rf"\b{word}\b", text, re.IGNORECASE)
    places = [i for i, (a, b) in enumerate(encoded.offsets) if b > a and match.start() <= a and b <= match.end()]
    vector = np.asarray(sequence)[0, places].mean(axis=0)
    return vector / np.linalg.norm(vector)


def test_scores_are_cosines_of_the_mean_of_the_pieces(corpus: Input):
    queries = ["The old bank by the river.", MONEY[0]]
    found, counts = find_neighbours(extractor(), "bank", queries, read_texts(corpus), best=5)
    assert counts == {"texts": 13, "occurrences": 7, "beyond": 0}  # one of eight is asked for
    for one, query in zip(found, queries, strict=True):
        others = [text for text in RIVER + MONEY if text not in queries]
        scores = {text: float(plain_vector(query, "bank") @ plain_vector(text, "bank")) for text in others}
        expected = sorted(scores, key=lambda text: -scores[text])[:5]
        assert [n["text"] for n in one["neighbours"]] == expected
        assert [n["score"] for n in one["neighbours"]] == pytest.approx([scores[text] for text in expected], abs=2e-5)
        assert {n["text"][n["start"] : n["stop"]] for n in one["neighbours"]} == {"bank"}


def test_the_same_word_in_the_same_context_is_nearest(corpus: Input):
    """The random model has no senses, but a copy of the sentence in other letters is as near as can be."""
    [found], _ = find_neighbours(extractor(), "bank", [MONEY[0].upper()], read_texts(corpus), best=1)
    assert [n["text"] for n in found["neighbours"]] == [MONEY[0]]
    assert found["neighbours"][0]["score"] == pytest.approx(1.0, abs=1e-5)


def test_whole_words_alone():
    def spans(word: str, text: str, ignore_case: bool = True) -> list[tuple[int, int]]:
        return [match.span() for match in whole_word(word, ignore_case).finditer(text)]

    assert spans("bank", "Bank, embankment, banks bank_1 (bank)") == [(0, 4), (32, 36)]
    assert spans("bank", "Bank bank", ignore_case=False) == [(5, 9)]
    assert spans("银行", "中国银行在河边") == [(2, 4)]
    assert spans("a.b", "axb a.b") == [(4, 7)]
    with pytest.raises(UserError, match="--word is empty"):
        whole_word(" ", True)


def test_what_is_missing_is_an_error(corpus: Input):
    with pytest.raises(UserError, match="'No such word.' does not have the word 'bank'"):
        find_neighbours(extractor(), "bank", ["the bank", "No such word."], read_texts(corpus))
    with pytest.raises(UserError, match="none of the 13 texts has the word 'mud'"):
        find_neighbours(extractor(), "mud", ["the mud"], read_texts(corpus))
    with pytest.raises(UserError, match="comes after the 32 tokens"):
        find_neighbours(extractor(), "bank", ["the " * 40 + "bank"], read_texts(corpus))
    with pytest.raises(UserError, match="--layer=mean has no vector of a word; allowed: embeddings"):
        check_layer("mean")


def test_occurrences_after_the_length_are_counted(tmp_path: Path):
    (tmp_path / "long.txt").write_text("a bank " + "the " * 40 + "bank\n")
    _, counts = find_neighbours(extractor(), "bank", ["the bank"], read_texts(Input(str(tmp_path / "long.txt"))))
    assert (counts["occurrences"], counts["beyond"]) == (1, 1)


def test_long_texts_are_shown_around_the_word():
    assert mark("x" * 5 + "bank" + "y" * 5, 5, 9, around=3) == "...xxx[bank]yyy..."
    assert mark("a bank", 2, 6) == "a [bank]"


def test_the_command(tmp_path: Path, corpus: Input, capsys: pytest.CaptureFixture[str]):
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), tmp_path / "model", "a card")
    line = ["neighbours", f"--init={tmp_path / 'model'}", f"--input={corpus.path}", "--word=bank", "--best=2"]
    assert run([*line, "He sat on the bank of the river."]) == 0
    output = capsys.readouterr()
    shown = output.out.splitlines()
    assert shown[0] == "He sat on the [bank] of the river."
    assert len(shown) == 3
    assert all("[bank]" in text for text in shown)
    assert output.err.strip() == "8 other occurrences of 'bank' in 13 texts"
    assert run([*line, "--json", "the bank", "a bank"]) == 0
    records = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [record["text"] for record in records] == ["the bank", "a bank"]
    assert len(records[0]["neighbours"]) == 2
    assert set(records[0]["neighbours"][0]) == {"score", "id", "text", "start", "stop"}
    assert run([*line, "--layer=cls", "the bank"]) == 2
