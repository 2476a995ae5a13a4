"""Standard errors: formulas beside scipy and scikit-learn, and the errors of every task beside a plain jackknife."""

import copy
import math
import warnings

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics as sklearn_metrics

from bert_jax.tasks.metrics import standard_errors
from tests.tasks import questions, toy_tasks
from tests.tasks.test_sentence_embeddings import LETTERS

NUMBER = 12  # examples, or groups of them


def test_a_share_has_the_error_of_the_binomial_distribution():
    """Of 100 rows 61.5 % are right: 0.0487; scipy gives the same for a mean of zeros and ones."""
    assert standard_errors.of_share(0.615, 100) == pytest.approx(0.04865953, rel=1e-6)
    assert standard_errors.of_share(0.3, 50) == pytest.approx(scipy.stats.binom.std(50, 0.3) / 50, rel=1e-12)
    for share in (0.0, 1.0):
        assert standard_errors.of_share(share, 5) == pytest.approx(math.sqrt(0.09 / 5))
    assert standard_errors.of_share(0.0, 0) == 0
    values = np.random.default_rng(0).normal(size=37)
    assert standard_errors.of_mean(values) == pytest.approx(scipy.stats.sem(values), rel=1e-12)
    assert standard_errors.of_mean([1.0]) == standard_errors.of_mean([]) == 0


def statistics():
    """(function of the numbers of the rows, rows) of scores of scipy and scikit-learn."""
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, 200)
    found = np.where(rng.random(200) < 0.7, truth, rng.integers(0, 3, 200))
    x = rng.normal(size=200)
    y = x + rng.normal(size=200)
    return {
        "f1": lambda i: sklearn_metrics.f1_score(truth[i] == 1, found[i] == 1),
        "matthews": lambda i: sklearn_metrics.matthews_corrcoef(truth[i], found[i]),
        "spearman": lambda i: scipy.stats.spearmanr(x[i], y[i]).statistic,
    }


@pytest.mark.parametrize("name", statistics())
def test_the_jackknife_is_near_the_bootstrap(name):
    score = statistics()[name]
    theirs = scipy.stats.bootstrap(
        (np.arange(200),), score, vectorized=False, n_resamples=300, method="percentile", rng=0
    )
    assert standard_errors.jackknife(score, 200) == pytest.approx(theirs.standard_error, rel=0.2)


def test_groups_of_many_examples_are_near_single_examples(monkeypatch):
    values = np.random.default_rng(1).normal(size=1500)
    groups = standard_errors.jackknife(lambda kept: float(np.mean(values[kept])), len(values))
    assert groups == standard_errors.jackknife(lambda kept: float(np.mean(values[kept])), len(values))
    assert groups == pytest.approx(scipy.stats.sem(values), rel=0.15)
    monkeypatch.setattr(standard_errors, "EACH", 2000)
    each = standard_errors.jackknife(lambda kept: float(np.mean(values[kept])), len(values))
    assert each == pytest.approx(scipy.stats.sem(values), rel=1e-9)
    assert standard_errors.jackknife(lambda kept: 0.0, 1) == 0
    assert standard_errors.jackknife(lambda kept: 0.7, 5) == standard_errors.of_share(1.0, 5), "all are right"


def answered(count, version_2):
    rng = np.random.default_rng(5)
    found = []
    for i in range(count):
        context = " ".join(rng.choice(list("abcdefgh"), 9))
        found.append(questions.question(context, None if version_2 and i % 3 == 0 else context[4:7]) | {"id": str(i)})
    return found


def paired(count):
    texts = [f"{LETTERS[i % 20]} {LETTERS[i // 20]} a" for i in range(count)]
    return [
        {"id": str(i), "text": t, "positive": f"b {t}", "similarity": i * i / 100.0 + 0.6} for i, t in enumerate(texts)
    ]


def task_of(kind, examples):
    """A task whose split "dev" has ``examples``; its name may be followed by what differs."""
    name, _, how = kind.partition(":")
    splits = {"train": examples, "dev": examples}
    if name == "span_qa":
        return questions.make_task(splits, version_2=how == "version_2")
    if name == "sentence_embeddings":
        return toy_tasks.make_task(name, splits, 16, packing="none")
    every = ("accuracy", "f1", "f1_macro", "precision_weighted", "matthews_correlation")
    configs = {
        "classification": {"metrics": every},
        "regression": {"metrics": ("pearson", "spearmanr", "mean_squared_error", "mean_absolute_error")},
        "tagging:accuracy": {"metrics": "accuracy"},
    }
    whole = toy_tasks.examples(name, NUMBER) if name == "classification" else examples  # both labels are known
    return toy_tasks.make_task(name, {"train": whole, "dev": examples}, config=configs.get(kind))


def examples_of(kind):
    """``NUMBER`` lists of examples, each of which is left out at a time."""
    name, _, how = kind.partition(":")
    if name == "span_qa":
        return [[one] for one in answered(NUMBER, how == "version_2")]
    if name == "sentence_embeddings":
        return [[one] for one in paired(NUMBER)]
    if name == "multiple_choice":
        return [
            [{"id": str(i), "context": "the", "choices": ["great", "dull", "bright"], "label": i % 3}]
            for i in range(NUMBER)
        ]
    if name == "ranking":
        groups = [
            {"id": str(i), "text": "the film", "candidates": ["great", "dull", "awful"], "right": i % 3}
            for i in range(NUMBER)
        ]
        return [toy_tasks.candidates(group) for group in groups]
    return [[one] for one in toy_tasks.examples(name, NUMBER)]


def outputs_of(kind, task):
    rng, rows, length = np.random.default_rng(0), len(task.rows["dev"]), task.lengths["train"]
    name, number = kind.partition(":")[0], len(task.setting.labels)
    if name == "span_qa":
        return questions.random_outputs(task, "dev")
    if name == "sentence_embeddings":
        vectors = rng.normal(size=(rows, 2, 4))
        vectors[:, 1] += vectors[:, 0]
        return {"embeddings": vectors}
    if name == "tagging":
        right = task.rows["dev"].take(np.arange(rows), length)["labels"]
        predicted = np.where(rng.random(right.shape) < 0.7, right, rng.integers(0, number, right.shape))
        return {"predicted": predicted, "confidence": np.full(predicted.shape, 0.5)}
    columns = {"regression": 1, "classification": number}.get(name, 3)
    return {"logits": rng.normal(size=(rows, columns))}


KINDS = (
    "classification", "regression", "tagging", "tagging:accuracy", "multiple_choice", "ranking", "span_qa",
    "span_qa:version_2", "sentence_embeddings",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_errors_of_a_task_equal_a_jackknife_by_hand(kind):
    lists = examples_of(kind)
    task = task_of(kind, [one for group in lists for one in group])
    outputs = outputs_of(kind, task)
    assert len(task.rows["dev"]) == NUMBER, "a row for each is left out"
    scores = []
    for i in range(NUMBER):
        other = task_of(kind, [one for j, group in enumerate(lists) if j != i for one in group])
        metrics = copy.copy(other).finish("dev", {name: np.delete(x, i, axis=0) for name, x in outputs.items()})
        if kind == "classification":
            truth = np.delete(task.rows["dev"].arrays["labels"], i)
            found = np.delete(outputs["logits"].argmax(axis=1), i)
            metrics["accuracy"] = sklearn_metrics.accuracy_score(truth, found)
        if kind == "regression":
            metrics["loss"] = metrics["mean_squared_error"]
        scores.append(metrics)
    errors = task.errors("dev", outputs)
    assert {task.main_metric, *errors} == {task.main_metric} | set(errors) & set(scores[0])
    assert task.main_metric in errors
    for name, error in errors.items():
        values = np.array([one[name] for one in scores])
        expected = math.sqrt((NUMBER - 1) / NUMBER * np.sum((values - values.mean()) ** 2))
        if name == "accuracy" and not kind.startswith("tagging"):  # a binomial distribution's, which has n for n - 1
            expected *= math.sqrt((NUMBER - 1) / NUMBER)
        if "@" in name:
            continue  # a text that is left out is no candidate either; see below
        assert error == pytest.approx(expected, rel=1e-6), name
        assert error > 0, name


def test_retrieval_has_the_error_of_a_mean_over_queries():
    task = task_of("sentence_embeddings", paired(NUMBER))
    outputs = outputs_of("sentence_embeddings", task)
    unit = outputs["embeddings"] / np.linalg.norm(outputs["embeddings"], axis=-1, keepdims=True)
    cosines = unit[:, 0] @ unit[:, 1].T
    ranks = (cosines > np.diag(cosines)[:, None]).sum(axis=1)
    gains = np.where(ranks < 10, 1 / np.log2(ranks + 2), 0)
    assert task.finish("dev", outputs)["ndcg@10"] == pytest.approx(gains.mean())
    assert task.errors("dev", outputs)["ndcg@10"] == pytest.approx(scipy.stats.sem(gains))


@pytest.mark.parametrize("kind", ["classification", "tagging", "regression"])
def test_what_is_reached_without_reading_has_an_error_too(kind):
    task = task_of(kind, [one for group in examples_of(kind) for one in group])
    found = task.guess()
    if kind == "classification":
        counts = np.bincount(task.rows["dev"].arrays["labels"])
        assert found["majority_rate_standard_error"] == pytest.approx(
            scipy.stats.binom.std(NUMBER, counts.max() / NUMBER) / NUMBER
        )
    elif kind == "regression":
        labels = np.array([one["label"] for one in task.setting.splits["dev"]])
        squares = (labels - labels.mean()) ** 2
        assert found["mean_label_loss_standard_error"] == pytest.approx(scipy.stats.sem(squares))
    else:
        tags = [one["tags"] for one in task.setting.splits["dev"]]
        common = [(sum(tag == "O" for tag in one), len(one)) for one in tags]
        shares = [
            sum(a for j, (a, _) in enumerate(common) if j != i) / sum(b for j, (_, b) in enumerate(common) if j != i)
            for i in range(NUMBER)
        ]
        expected = math.sqrt(NUMBER - 1) * np.std(shares)
        assert found["majority_rate_standard_error"] == pytest.approx(expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.guess()
