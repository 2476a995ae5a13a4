"""What is said of predictions: right ones left out, the surest wrong ones first, figures as the metrics have them."""

import pytest

from bert_jax.tasks import classification, multiple_choice, regression, sentence_embeddings, span_qa, tagging
from bert_jax.tasks.findings import MAX_CONFUSION, clip, findings

CLASSES, TAGS, ANSWERS = classification.Task.judge, tagging.Task.judge, span_qa.Task.judge
NUMBERS, CHOICES, PAIRS = regression.Task.judge, multiple_choice.Task.judge, sentence_embeddings.Task.judge


def classified(truth, shares):
    """A record over the labels a, b, c."""
    found = dict(zip("abc", shares, strict=True))
    return {"id": "x", "prediction": max(found, key=found.get), "label": truth, "probabilities": found}


def test_classes_are_counted_and_the_surest_wrong_prediction_leads():
    records = [
        classified("a", (0.9, 0.05, 0.05)),
        classified("a", (0.2, 0.6, 0.2)),
        classified("b", (0.1, 0.1, 0.8)),
        classified("c", (0.1, 0.2, 0.7)),
    ]
    found = findings(CLASSES, ["a", "b", "c"], [{"text": f"t{i}"} for i in range(4)], records)
    assert found["confusion"]["counts"] == [[1, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert found["num_wrong"] == 2
    assert found["num_answered"] == 4
    assert [one["text"] for one in found["wrong"]] == ["t2", "t1"]
    assert found["wrong"][0] | {"share": 0.8, "label_share": 0.1, "label": "b"} == found["wrong"][0]
    assert found["per_label"]["a"] == pytest.approx({"precision": 1, "recall": 0.5, "f1": 2 / 3, "support": 2})


def test_what_has_no_answer_is_left_out():
    records = [classified("a", (0.1, 0.8, 0.1)), {**classified("b", (0.1, 0.8, 0.1)), "label": None}]
    found = findings(CLASSES, ["a", "b", "c"], [{"text": "t"}, {"text": "u"}], records)
    assert found["num_answered"] == 1
    assert findings(CLASSES, ["a", "b", "c"], [{"text": "u"}], [records[1]]) == {}


def test_of_many_labels_the_commonest_confusions_are_listed():
    names = [f"l{i}" for i in range(MAX_CONFUSION + 1)]
    pairs = [(name, name) for name in names] * 5 + [("l3", "l4")] * 2 + [("l7", "l1")] * 3
    records = [{"id": "x", "label": a, "prediction": b, "probabilities": {b: 0.9}} for a, b in pairs]
    found = findings(CLASSES, names, [{"text": "t"}] * len(pairs), records)
    assert found["confused"] == [["l7", "l1", 3, 8], ["l3", "l4", 2, 7]]
    assert "confusion" not in found


def test_tags_by_type_and_the_sentence_with_the_surest_slip_first():
    examples = [{"words": ["anna", "in", "oslo"]}] * 2
    record = {"words": ["anna", "in", "oslo"], "label": ["B-PER", "O", "B-LOC"]}
    records = [
        {**record, "id": "0", "prediction": ["B-PER", "O", "O"], "probabilities": [0.99, 0.9, 0.6]},
        {**record, "id": "1", "prediction": ["O", "O", "B-LOC"], "probabilities": [0.8, 0.9, 0.9]},
    ]
    entities = {"mode": "conll", "scheme": None}
    found = findings(TAGS, ["O", "B-LOC", "B-PER"], examples, records, entities)
    assert [one["id"] for one in found["wrong"]] == ["1", "0"]
    assert found["wrong"][0]["share"] == 0.8
    assert found["per_label"]["LOC"] == pytest.approx({"precision": 1, "recall": 0.5, "f1": 2 / 3, "support": 2})
    assert findings(TAGS, ["O", "B-LOC", "B-PER"], examples, records)["per_label"]["O"]["support"] == 2
    assert sum(map(sum, found["confusion"]["counts"])) == 6


def answered(prediction, start, answers, **more):
    entries = [{"text": prediction, "score": 1.0, "probability": 0.7}]
    end = None if start is None else start + len(prediction)
    return {
        "id": "q",
        "prediction": prediction,
        "start": start,
        "end": end,
        "answers": answers,
        "n_best": entries,
        **more,
    }


def test_answers_are_compared_as_the_metric_compares_them_and_shown_in_their_place():
    context = "x" * 300 + " The red house stood by the sea. " + "y" * 300
    example = {"question": "Which?", "context": context, "answers": [{"text": "red house", "answer_start": 305}]}
    assert ANSWERS.weigh(answered("the red house", 301, ["red house"]))[0] == 0
    record = answered("sea", context.index("sea"), ["red house"])
    [one] = findings(ANSWERS, (), [example], [record])["wrong"]
    marks = {mark: text for text, mark in one["context"] if mark in ("predicted", "right")}
    assert marks == {"predicted": "sea", "right": "red house"}
    assert [mark for _, mark in (one["context"][0], one["context"][-1])] == ["gap", "gap"]
    assert "".join(text for text, mark in one["context"] if mark != "gap") in context
    assert ANSWERS.weigh(answered("", None, []))[0] == 0
    assert ANSWERS.weigh(answered("sea", 5, []))[0] == 1


def test_numbers_have_their_largest_errors():
    records = [{"id": str(i), "label": float(i), "prediction": i * 1.5} for i in range(40)]
    found = findings(NUMBERS, (), [{"text": "t"}] * 40, records)
    assert [one["id"] for one in found["wrong"][:2]] == ["39", "38"]
    assert "num_wrong" not in found


def test_choices_and_pairs():
    example = {"context": "c", "choices": ["one", "two"]}
    record = {"id": "m", "prediction": 1, "text": "two", "label": 0, "probabilities": [0.3, 0.7]}
    found = findings(CHOICES, (), [example], [record])
    assert found["wrong"] == [
        {"id": "m", "context": "c", "choices": ["one", "two"], "label": 0, "prediction": 1, "shares": [0.3, 0.7]}
    ]
    pairs = [{"text": "a", "positive": "b"}, {"text": "c", "positive": "d"}]
    found = findings(PAIRS, (), pairs, [{"id": "0", "prediction": 0.9}, {"id": "1", "prediction": 0.2}])
    assert [one["text"] for one in found["wrong"]] == ["c", "a"]


def test_long_texts_are_cut_and_empty_lines_go():
    assert clip("a\n\n\nb") == "a\nb"
    assert len(clip("word " * 1000)) <= 480
