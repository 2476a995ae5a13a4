"""Submission files: names, headers and spellings as the benchmarks want them; what they would refuse is not written."""

import json
import re

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.submissions import SUBMISSIONS, write_submission

FILES = {  # as listed on gluebenchmark.com
    "cola": "CoLA.tsv",
    "sst2": "SST-2.tsv",
    "mrpc": "MRPC.tsv",
    "stsb": "STS-B.tsv",
    "qqp": "QQP.tsv",
    "mnli_matched": "MNLI-m.tsv",
    "mnli_mismatched": "MNLI-mm.tsv",
    "qnli": "QNLI.tsv",
    "rte": "RTE.tsv",
    "wnli": "WNLI.tsv",
    "ax": "AX.tsv",
}


def by_row(values):
    return {f"test-{i}": value for i, value in enumerate(values)}


@pytest.mark.parametrize("task", FILES)
def test_a_file_of_each_glue_task(tmp_path, task):
    labels = [1.5, 2, 3] if task == "stsb" else [*(SUBMISSIONS[task].spelling or {})]
    target = write_submission(task, by_row(labels), str(tmp_path / "new"))
    assert target.name == FILES[task]
    lines = target.read_text().split("\n")
    assert lines[0] == "index\tprediction"
    assert lines[-1] == ""
    rows = [line.split("\t") for line in lines[1:-1]]
    assert [row[0] for row in rows] == [str(i) for i in range(len(labels))]
    allowed = {
        "stsb": {"1.500", "2.000", "3.000"},
        "qnli": {"entailment", "not_entailment"},
        "rte": {"entailment", "not_entailment"},
        **dict.fromkeys(("mnli_matched", "mnli_mismatched", "ax"), {"entailment", "neutral", "contradiction"}),
    }
    assert {row[1] for row in rows} == allowed.get(task, {"0", "1"})


def test_glue_has_the_same_tasks_everywhere():
    assert SUBMISSIONS.keys() == FILES.keys() | {"squad", "squad_null_odds"}


def written(tmp_path, kind, predictions):
    return write_submission(kind, predictions, str(tmp_path)).read_text(encoding="utf-8")


def test_names_of_labels_and_numbers_are_spelled_alike(tmp_path):
    one = written(tmp_path, "mrpc", by_row(["equivalent", "not_equivalent"]))
    assert one == written(tmp_path, "mrpc", by_row([1, 0])) == written(tmp_path, "mrpc", by_row(["1", "0"]))
    assert one == "index\tprediction\n0\t1\n1\t0\n"


def test_similarities_are_cut_to_the_scale(tmp_path):
    found = written(tmp_path, "stsb", by_row([-0.2, 5.3, 2.34567, 0]))
    assert found == "index\tprediction\n0\t0.000\n1\t5.000\n2\t2.346\n3\t0.000\n"


def test_ids_give_the_order(tmp_path):
    expected = "index\tprediction\n" + "".join(f"{i}\t{i % 2}\n" for i in range(11))
    for form in ("{}", "test-{}", "test-mismatched-{}"):
        shuffled = {form.format(i): i % 2 for i in (10, 3, 2, 1, 0, 4, 9, 8, 7, 6, 5)}
        assert written(tmp_path, "cola", shuffled) == expected


def test_answers_and_odds(tmp_path):
    answers = {"q2": "naïve 北京", "q1": ""}
    assert json.loads(written(tmp_path, "squad", answers)) == answers
    assert "北京" in (tmp_path / "predictions.json").read_text(encoding="utf-8")
    odds = {"q1": -0.5, "q2": 3.0}
    assert json.loads(written(tmp_path, "squad_null_odds", odds)) == {"q1": -0.5, "q2": 3.0}
    assert (tmp_path / "null_odds.json").exists()


@pytest.mark.parametrize(
    ("kind", "predictions", "message"),
    [
        ("sst-2", {"0": 1}, "unknown kind of submission 'sst-2'; did you mean 'sst2'? valid: ax, cola, mnli"),
        (
            "rte",
            by_row(["entailment", 1]),
            "1 predictions of rte cannot be submitted, such as 1 (row 1); allowed: entailment, not",
        ),
        ("cola", {"0": "2"}, "such as '2' (row 0); allowed: 0, 1, unacceptable, acceptable"),
        (
            "stsb",
            by_row([float("nan"), 2.0]),
            "1 predictions of stsb cannot be submitted, such as nan (row 0); allowed: finite",
        ),
        ("cola", {"0": 1, "2": 1}, "2 predictions are of 2 rows from 0 to 2; GLUE wants each row"),
        ("cola", {"dev-0": 1, "test-0": 1}, "2 predictions are of 1 rows"),
        ("cola", {"first": 1}, "1 ids of predictions hold no row number, such as 'first'"),
        ("squad_null_odds", {"q": float("inf")}, "1 null odds are not finite, such as that of 'q'"),
    ],
)
def test_what_would_be_refused_is_not_written(tmp_path, kind, predictions, message):
    with pytest.raises(UserError, match=re.escape(message)):
        write_submission(kind, predictions, str(tmp_path))
    assert not list(tmp_path.iterdir())
