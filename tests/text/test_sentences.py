"""Sentence splitting."""

import pytest
import sentencex

from bert_jax.corpora.prepare import CorpusConfig, find_source
from bert_jax.errors import UserError
from bert_jax.text.sentences import LANGUAGES, WINDOW, one_space, split_sentences


def test_splits_joins_lines_and_normalises_space():
    text = "  Dr. Smith came\n home.   He slept!\t\tDid he?  "
    assert split_sentences(text) == ["Dr. Smith came home.", "He slept!", "Did he?"]


def test_empty_text_has_no_sentences():
    assert split_sentences(" \n\t ") == []


def test_no_word_is_lost():
    text = "One. Two (e.g. this)... three? 'Four!' he said. 中文。句子。 End"
    assert "".join(" ".join(split_sentences(text)).split()) == "".join(text.split())


def test_other_languages():
    assert split_sentences("今天很好。明天也好。", "zh") == ["今天很好。", "明天也好。"]
    assert len(split_sentences("One. Two.", "xx")) == 2


def test_all_languages() -> None:
    assert len(LANGUAGES.split()) == 185
    assert all(sentencex.segment(code, "One. Two.") for code in LANGUAGES.split())


@pytest.mark.parametrize("code", ["english", "zh-cn", "xx", ""])
def test_what_is_no_language_is_refused(code: str) -> None:
    options = {"paths": ("a.txt",), "language": code}
    with pytest.raises(
        UserError, match=f"config.corpus.options.language is '{code}'; an ISO 639-1 code of two letters"
    ):
        find_source(CorpusConfig(source="text_files", options=options))


def test_long_text_is_split_as_short_text_is():
    sentence = "Mr. Smith, of the house, said (twice): it is well."
    text = f"{sentence} " * 1000
    assert len(text) > 10 * WINDOW
    assert split_sentences(text) == [sentence] * 1000


def test_what_never_ends_is_cut_between_words():
    assert "".join(split_sentences("word " * 5000)).count("word") == 5000
    assert all(s.split() == ["word"] * len(s.split()) for s in split_sentences("word " * 5000))


@pytest.mark.parametrize("text", ["a", " a  b ", "a\r\nb\n", "\ta\u3000b\xa0c\x1fd", "a\nb c", "é\u2028x", "", " "])
def test_one_space(text):
    assert one_space(text) == " ".join(text.split())
