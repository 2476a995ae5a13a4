"""Which phrase begins a sentence: its class and its pieces, whatever cuts the sentence into pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpora import columns
from bert_jax.corpora.annotators import leading_phrases
from bert_jax.corpora.annotators.leading_phrases import PIECES, Annotator
from bert_jax.corpora.columns import Column
from bert_jax.corpora.shard_job import tokenize
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, Document
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.tokenizer import Tokenizer, wordpiece

SENSES = ("comparison", "contingency", "expansion", "temporal")
SENTENCES = {
    "But it rained.": ("comparison", 1),
    "HOWEVER, it rained.": ("comparison", 2),  # the comma is left out too
    "On the other hand it rained.": ("comparison", 4),
    "As a result, it rained.": ("contingency", 4),
    "In other words, it rained.": ("expansion", 4),
    "Then it rained.": ("temporal", 1),
    "Butter is here.": None,  # no word ends after "but"
    "Then-ruler is here.": None,
    "So far it rained.": None,  # "so," alone is listed
    "It rained, but so what.": None,
    "İn fact it rained.": None,  # a capital whose small letter is two characters
}
CHINESE = {
    "但是，下雨了。": ("comparison", 3),
    "因此下雨了。": ("contingency", 2),
    "下雨了。": None,
    "然后下雨": ("temporal", 2),
}


def word_tokenizer(sentences: tuple[str, ...]) -> Tokenizer:
    words = sorted({w for s in sentences for w in s.lower().replace(",", " , ").replace(".", " . ").split()})
    return wordpiece([*SPECIAL_TOKENS, *words, "-", *sorted(set("".join(CHINESE)) - set("".join(words)))])


def found_in(sentence: str, annotator: Annotator, tokenizer: Tokenizer) -> tuple[str, int] | None:
    """The class and the number of pieces of the phrase that begins ``sentence``."""
    [document] = tokenize([Document("", ("It is.", sentence))], tokenizer, [Column("phrases", "x", annotator)])
    begin = int(document.lengths[0])
    values = document.columns["phrases"]
    assert values.dtype == np.uint16
    assert np.flatnonzero(values).tolist() in ([], [begin])
    pieces, number = divmod(int(values[begin]), PIECES)
    return (annotator.identity()["classes"][number - 1], pieces) if number else None


def test_the_phrase_that_begins_a_sentence() -> None:
    tokenizer = word_tokenizer((*SENTENCES, "It is."))
    for list_of, sentences in (("connectives_en", SENTENCES), ("connectives_zh", CHINESE)):
        for sentence, wanted in sentences.items():
            assert found_in(sentence, Annotator(list_of), tokenizer) == wanted, sentence


def test_pieces_cover_the_phrase_whatever_cuts_the_text() -> None:
    """Byte-level pieces begin with a space; what is left of a sentence begins after the phrase and its comma."""
    annotator, sentences = Annotator(), tuple(s for s, wanted in SENTENCES.items() if wanted)
    tokenizer = learn_byte_bpe([*sentences * 3, "It is."], 300)
    for sentence in sentences:
        [document] = tokenize([Document("", ("It is.", sentence))], tokenizer, [Column("phrases", "x", annotator)])
        first = int(document.lengths[0])
        pieces = int(document.columns["phrases"][first]) // PIECES
        left = "".join(tokenizer.surfaces[i][0] for i in document.tokens[first + pieces :])
        assert left == "itrained.", sentence  # without spaces


@pytest.mark.parametrize("name", ["connectives_en", "connectives_zh"])
def test_the_lists_of_the_package(name: str) -> None:
    lines = Path(leading_phrases.__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").splitlines()
    phrases = [line.split("\t")[0] for line in lines]
    assert Annotator(name).identity()["classes"] == list(SENSES)
    assert len(phrases) == len(set(phrases)) > 70
    assert all(phrase == phrase.lower().strip() for phrase in phrases)
    assert list(Annotator("relevance").identity()["classes"]) == ["strong", "weak", "irrelevant"]


def test_a_list_is_its_phrases_and_classes_wherever_it_lies(tmp_path: Path) -> None:
    def identity(name: str, text: str) -> object:
        (tmp_path / name).write_text(text)
        return Annotator(str(tmp_path / name)).identity()

    assert identity("a", "yes\tup\nno\tdown\n") == identity("b", "Yes \tup\n\nno\tdown")
    assert identity("a", "yes\tup\nno\tdown\n") != identity("c", "yes\tdown\nno\tup\n")


BAD = {
    "none": ("", "has no phrases; name a file"),
    "nowhere": ("nowhere.txt", "no file of phrases nowhere.txt; name a text file of lines PHRASE<TAB>CLASS"),
    "no class": (b"but\tx\nyet\n", "has the line 'yet'; PHRASE<TAB>CLASS is needed"),
    "one class": (b"but\tx\nyet\tx\n", "has 1 classes; 2 to 255 are needed"),
    "bytes": (b"but\xff\tx\n", "is not UTF-8 at byte offset 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_list_is_one_line(name: str, tmp_path: Path) -> None:
    given, line = BAD[name]
    if isinstance(given, bytes):
        (tmp_path / "phrases.txt").write_bytes(given)
        given = str(tmp_path / "phrases.txt")
    with pytest.raises(UserError, match=line) as raised:
        columns.find({"connectives": {"annotator": "leading_phrases", "phrases": given}})
    assert "\n" not in str(raised.value)
