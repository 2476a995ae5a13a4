"""Closing tags in the sentences of a corpus."""

import pytest

from bert_jax.inspection.fit import markup


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("<p>A text.</p>", "bad"),
        ("< p > a text . < / p >", "bad"),
        ("the end. </doc>", "bad"),
        ("if a < b and c > d / e, or <name>", "ok"),
        ("<s> a sentence </s>", "ok"),
        ("he wrote < / > and </3", "ok"),
    ],
)
def test_a_text_with_a_closing_tag_is_markup(text, status):
    assert markup([text, "A text of 3 words."] * 5).status == status


def test_a_few_tags_in_many_sentences_are_no_fault():
    assert markup(["<p>A text.</p>", *["A text."] * 399]).status == "ok"
    assert markup(["<p>A text.</p>", *["A text."] * 50]).status == "warn"
    assert markup([]).status == "ok"
