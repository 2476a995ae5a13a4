"""The line about labels says how many there are, and when they look like scores or like missing ones."""

from bert_jax.examples.labels import described


def test_labels_that_look_like_scores_are_said_to() -> None:
    assert described(["0", "1"]) == "labels: 0, 1"
    assert described(["0.0", "1.0", "2.0"]) == "labels: 0.0, 1.0, 2.0", "whole numbers are classes"
    assert described(["0.5", "other", "x"]) == "labels: 0.5, other, x"
    line = described([str(i / 4) for i in range(25)])
    assert line.endswith("4.75 and 5 more; they are numbers with fractions: --config=regression learns scores")


def test_a_label_that_looks_missing_is_said_to() -> None:
    hint = " looks like a missing label: --config.data.drop_labels=\"('%s',)\" leaves it out"
    assert described(["-", "entailment", "neutral"]) == "labels: -, entailment, neutral; '-'" + hint % "-"
    assert described(["None", "a"]).endswith(hint % "None")
    assert described(["-1", "0", "1", "2"]).endswith(hint % "-1")
    assert described(["-1", "0", "1"]) == "labels: -1, 0, 1", "negative, neutral, positive"
    assert described(["-2", "-1", "0", "1", "2"]) == "labels: -2, -1, 0, 1, 2"
