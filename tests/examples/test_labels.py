"""The line about labels says how many there are, and when they look like scores or like missing ones."""

from bert_jax.examples.labels import label_note


def test_labels_that_look_like_scores_are_said_to() -> None:
    assert label_note(["0", "1"]) == "labels: 0, 1"
    assert label_note(["0.0", "1.0", "2.0"]) == "labels: 0.0, 1.0, 2.0", "whole numbers are classes"
    assert label_note(["0.5", "other", "x"]) == "labels: 0.5, other, x"
    line = label_note([str(i / 4) for i in range(25)])
    assert line.endswith("4.75 and 5 more; they are numbers with fractions: --config=regression learns scores")


def test_a_label_that_looks_missing_is_said_to() -> None:
    hint = " looks like a missing label: --config.data.drop_labels=\"('%s',)\" leaves it out"
    assert label_note(["-", "entailment", "neutral"]) == "labels: -, entailment, neutral; '-'" + hint % "-"
    assert label_note(["None", "a"]).endswith(hint % "None")
    assert label_note(["-1", "0", "1", "2"]).endswith(hint % "-1")
    assert label_note(["-1", "0", "1"]) == "labels: -1, 0, 1", "negative, neutral, positive"
    assert label_note(["-2", "-1", "0", "1", "2"]) == "labels: -2, -1, 0, 1, 2"
