"""Regression: the loss, and what labels may be. ``test_several`` has a run."""

import math

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.regression import Config, Task
from tests.tasks import toy_tasks

EXAMPLES = [
    {"id": "a", "text": "the film", "pair": "was great", "label": "3.8"},
    {"id": "b", "text": "a town", "pair": "was dull", "label": 1},
    {"id": "c", "text": "many", "pair": "people", "label": 0.0},
]


def test_the_loss_and_the_messages():
    task = toy_tasks.make_task("regression", {"train": EXAMPLES, "test": [{"id": "t", "text": "the", "pair": "in"}]})
    batch = task.rows["train"].take(np.arange(3), 16)
    logits = np.array([[3.0], [2.0], [0.5]], np.float32)
    loss = task.score({"logits": logits}, batch)["loss"]
    assert float(loss.value) == pytest.approx(0.8**2 + 1 + 0.25, rel=1e-5)
    assert float(loss.count) == 3
    metrics = task.finish("train", {"logits": logits})
    assert metrics["pearson"] == pytest.approx(np.corrcoef([3.8, 1, 0], [3, 2, 0.5])[0, 1], rel=1e-6)
    assert metrics["spearmanr"] == pytest.approx(1)
    assert task.notes == ["train: labels from 0 to 3.8, mean 1.6"]
    assert task.predictions("train", {"logits": logits})[0] == {"id": "a", "prediction": 3.0, "label": 3.8}
    assert task.predictions("test", {"logits": logits[:1]}) == [{"id": "t", "prediction": 3.0}]
    unlabelled = task.score({"logits": logits[:1]}, task.rows["test"].take(np.arange(1), 16))["loss"]
    assert float(unlabelled.count) == float(unlabelled.value) == 0


@pytest.mark.parametrize("label", ["high", math.nan, "inf"])
def test_labels_that_are_no_numbers(label):
    wrong = [{**EXAMPLES[0], "id": "x", "label": label}, {**EXAMPLES[0], "id": "y", "label": label}]
    with pytest.raises(
        UserError, match="2 labels are not finite numbers: x of train has .*name='classification' takes"
    ):
        toy_tasks.make_task("regression", {"train": [*EXAMPLES, *wrong]})


def test_unknown_metrics():
    with pytest.raises(UserError, match="did you mean 'pearson'"):
        toy_tasks.make_task("regression", {"train": EXAMPLES}, config={"metrics": ("pearsn",)})


def test_the_main_metric_is_measured() -> None:
    assert Task.metric(Config()) == "spearmanr"
    assert Task.metric(Config(metrics=("mean_squared_error", "pearson"))) == "mean_squared_error"
