"""Entities against seqeval, on random tag sequences, well formed and not."""

import lzma

import numpy as np
import pytest
import seqeval.metrics
from seqeval import scheme as seqeval_schemes

from bert_jax.errors import UserError
from bert_jax.tasks.metrics.entities import entity_metrics

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
PREFIXES = {"IOB2": "BI", "IOE2": "IE", "IOBES": "BIES", "BILOU": "BILU"}


def sentences(rng, prefixes, num_sentences=30):
    tags = ["O", "O", *(f"{p}-{t}" for p in prefixes for t in ("PER", "LOC", "A-B"))]
    return [rng.choice(tags, rng.integers(0, 9)).tolist() for _ in range(num_sentences)]


def noisy(rng, given, share):
    tags = sorted({tag for sentence in given for tag in sentence} | {"O"})
    return [[str(rng.choice(tags)) if rng.random() < share else tag for tag in sentence] for sentence in given]


def seqeval_scores(labels, predictions, **options):
    report = seqeval.metrics.classification_report(labels, predictions, output_dict=True, zero_division=0, **options)
    micro = report.pop("micro avg")
    scores = {"precision": micro["precision"], "recall": micro["recall"], "f1": micro["f1-score"]}
    scores["accuracy"] = seqeval.metrics.accuracy_score(labels, predictions)
    for type_ in report.keys() - {"macro avg", "weighted avg"}:
        renamed = {"precision": "precision", "recall": "recall", "f1-score": "f1", "support": "support"}
        scores |= {f"{type_}_{ours}": float(report[type_][theirs]) for theirs, ours in renamed.items()}
    return scores


@pytest.mark.parametrize("prefixes", ["BI", "I", "B", "BIES", "IE", "BE", "BIS"])
def test_conll_mode_is_seqevals_default(prefixes):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        labels = sentences(rng, prefixes)
        predictions = noisy(rng, labels, rng.choice([0, 0.1, 0.5, 1]))
        assert entity_metrics(labels, predictions) == pytest.approx(seqeval_scores(labels, predictions), abs=1e-9)


@pytest.mark.parametrize("scheme", PREFIXES)
def test_strict_mode_is_seqevals(scheme):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        labels = sentences(rng, PREFIXES[scheme])
        predictions = noisy(rng, labels, rng.choice([0, 0.1, 0.5, 1]))
        theirs = seqeval_scores(labels, predictions, mode="strict", scheme=getattr(seqeval_schemes, scheme))
        assert entity_metrics(labels, predictions, "strict", scheme) == pytest.approx(theirs, abs=1e-9)
        detected = seqeval_scores(labels, predictions, mode="strict")
        assert entity_metrics(labels, predictions, "strict") == pytest.approx(detected, abs=1e-9)


def test_modes_differ_where_an_entity_begins_with_i():
    labels, predictions = [["B-PER", "I-PER", "O"]], [["I-PER", "I-PER", "O"]]
    assert entity_metrics(labels, predictions)["f1"] == 1
    strict = entity_metrics(labels, predictions, "strict")
    assert (strict["f1"], strict["recall"], strict["PER_support"]) == (0, 0, 1)
    assert strict["accuracy"] == pytest.approx(2 / 3)


def test_nothing_to_find():
    zero = {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert entity_metrics([], []) == {**zero, "accuracy": 0.0}
    assert entity_metrics([["O", "O"], []], [["O", "O"], []]) == {**zero, "accuracy": 1.0}
    assert entity_metrics([["O", "O"]], [["B-X", "O"]])["X_support"] == 0


def test_the_same_entities_in_iob1_and_iob2_of_real_text(shared_data):
    """CoNLL-2003 is spread in both schemes, whose tags differ and whose entities do not."""
    folder = shared_data("conll2003_ner")
    iob1, iob2 = tags_of(folder / "eng.testb.iob1.xz"), tags_of(folder / "test.txt.xz")
    assert iob1 != iob2
    assert list(map(len, iob1)) == list(map(len, iob2))
    found = entity_metrics(iob1, iob2)
    assert (found["f1"], found["PER_support"], found["LOC_support"]) == (1, 1617, 1668)
    rng = np.random.default_rng(0)
    wrong = noisy(rng, iob2, 0.1)
    assert entity_metrics(iob2, wrong) == pytest.approx(seqeval_scores(iob2, wrong), abs=1e-9)
    assert 0.5 < entity_metrics(iob2, wrong)["f1"] < 0.95


def tags_of(file):
    blocks = lzma.decompress(file.read_bytes()).decode().split("\n\n")
    rows = [[line.split() for line in block.splitlines() if line.strip()] for block in blocks]
    return [[row[-1] for row in block] for block in rows if block and block[0][0] != "-DOCSTART-"]


@pytest.mark.parametrize(
    ("labels", "predictions", "mode", "scheme", "message"),
    [
        ([["PER", "o"]], [["O", "O"]], "conll", None, "2 tags belong to no known scheme: 'PER', 'o'"),
        ([["U-PER"]], [["O"]], "conll", None, "take mode strict"),
        ([["I-PER"]], [["O"]], "strict", None, "more than one scheme; name one of IOB2"),
        ([["B-PER", "U-PER", "S-PER"]], [["O"] * 3], "strict", None, "B, S, U: that fits no scheme"),
        ([["E-PER"]], [["O"]], "strict", "IOB2", "scheme IOB2 allows B, I and O"),
        ([["B-PER"]], [["O"]], "strict", "IOB", "unknown scheme of tags 'IOB'; did you mean"),
    ],
)
def test_bad_tags(labels, predictions, mode, scheme, message):
    with pytest.raises(UserError, match=message):
        entity_metrics(labels, predictions, mode, scheme)
