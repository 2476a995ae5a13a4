"""Sentence splitting."""

from bert_jax.text.sentences import split_sentences


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
