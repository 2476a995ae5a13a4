"""Ranking: groups of candidates as rows, the loss within a group, bad groups, and a run."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.examples.splits import at_most, deal, keep_fraction
from bert_jax.tasks.ranking import Config, Task
from tests.tasks import toy_tasks


def example(name, text, pair, label, **more):
    return {"id": name, "text": text, "pair": pair, "label": label, **more}


TWO = [example("a0", "the film", "dull", "no"), example("a1", "the film", "great", "yes")]
THREE = [
    example(f"b{i}", "a town", word, label)
    for i, (word, label) in enumerate(zip(["by", "in", "a"], ["yes", "no", "no"], strict=True))
]
MIXED = [TWO[0], THREE[0], THREE[1], TWO[1], THREE[2]]  # groups need not stand together
LOGITS = np.array([[0.3, -1.0, 50.0], [1.0, 2.0, -1.0]])


def test_a_row_has_the_candidates_of_a_group():
    task = toy_tasks.make_task("ranking", {"train": MIXED})
    assert task.setting.labels == ("no", "yes")
    assert task.notes == ["train: 2 groups of 2 to 3 candidates"]
    batch, tokenizer = task.rows["train"].take(np.arange(2), 32), task.setting.tokenizer
    assert batch["choice_weights"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [1, 0]
    for row, group in enumerate((TWO, THREE)):
        for place, one in enumerate(group):
            expected = tokenizer.encode(one["text"], one["pair"])
            length = len(expected.input_ids)
            assert batch["input_ids"][row, place, :length].tolist() == list(expected.input_ids)
            assert batch["attention_mask"][row, place].sum() == length


def test_loss_scores_and_predictions():
    """Against the formulas, with groups of 2 and 3; a candidate that is not there has no gradient."""
    task = toy_tasks.make_task("ranking", {"train": MIXED})
    batch = task.rows["train"].take(np.arange(2), 32)
    expected = -np.log(np.exp(-1.0) / np.exp(LOGITS[0, :2]).sum()) - np.log(np.exp(1.0) / np.exp(LOGITS[1]).sum())
    found, gradient = jax.value_and_grad(lambda x: task.score({"logits": x}, batch)["loss"].value)(
        jnp.asarray(LOGITS, jnp.float32)
    )
    assert float(found) == pytest.approx(expected, rel=1e-6)
    assert gradient[0, 2] == 0
    # The right candidates are second of two and second of three: 1 of the 3 wrong ones is below its right one.
    assert task.finish("train", {"logits": LOGITS}) == {
        "accuracy": 0,
        "mrr": 0.5,
        "pairwise_accuracy": pytest.approx(1 / 3),
    }
    records = task.predictions("train", {"logits": LOGITS})
    assert [record["id"] for record in records] == [one["id"] for one in MIXED]
    assert [(record["prediction"], record["label"], record["rank"]) for record in records] == [
        ("yes", "no", 1), ("no", "yes", 2), ("yes", "no", 1), ("no", "yes", 2), ("no", "no", 3)
    ]  # fmt: skip
    assert records[0]["probability"] + records[3]["probability"] == pytest.approx(1, abs=1e-5)
    assert records[3]["probability"] == pytest.approx(1 / (1 + math.exp(1.3)), abs=1e-6)


def test_two_candidates_are_a_logistic_loss_of_the_difference():
    task = toy_tasks.make_task("ranking", {"train": TWO})
    batch = task.rows["train"].take(np.arange(1), 32)
    for wrong, right in np.random.default_rng(0).normal(0, 3, (5, 2)):
        loss = task.score({"logits": jnp.asarray([[wrong, right]], jnp.float32)}, batch)["loss"].value
        assert float(loss) == pytest.approx(math.log1p(math.exp(wrong - right)), rel=1e-5)
    assert task.finish("train", {"logits": np.array([[0.0, 0.0]])})["accuracy"] == 0  # the earlier one is first


def test_a_role_may_name_the_groups():
    """Here one text is in two groups, and one group has two texts."""
    grouped = [{**one, "group": i // 2} for i, one in enumerate([TWO[0], THREE[0], TWO[0], TWO[1]])]
    task = toy_tasks.make_task("ranking", {"train": grouped})
    assert task.groups["train"] == [[0, 1], [2, 3]]


BAD = {
    "none right": (
        [example("x", "x", "a", "no"), example("y", "x", "b", "no")],
        "1 with 0 right candidates, as that of x",
    ),
    "two right": ([example("x", "x", "a", "yes"), example("y", "x", "b", "yes")], "1 with 2 right candidates"),
    "alone": ([example("x", "x", "a", "yes")], "1 of one candidate, as that of x"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_groups(name):
    """They are a line; or, if that is wanted, they count for nothing."""
    added, said = BAD[name]
    with pytest.raises(UserError, match=f"train: 1 of 3 groups do not have one right candidate and others: {said}"):
        toy_tasks.make_task("ranking", {"train": [*MIXED, *added]})
    task = toy_tasks.make_task("ranking", {"train": [*MIXED, *added]}, config={"bad_groups": "skip"})
    assert task.rows["train"].arrays["label_weights"].tolist() == [1, 1, 0]
    assert task.notes[-1].endswith("they do not count")
    whole = toy_tasks.make_task("ranking", {"train": MIXED})
    scores = np.concatenate([LOGITS, [[9.0, 1.0, 0.0]]])
    assert task.finish("train", {"logits": scores}) == whole.finish("train", {"logits": LOGITS})


@pytest.mark.parametrize(
    ("config", "labels", "said"),
    [
        (Config(), ("a", "b", "c"), "the labels are a, b, c; a ranking needs two"),
        (Config(positive="right"), ("no", "yes"), "config.task.positive is 'right'; the labels are no, yes"),
    ],
)
def test_bad_labels(config, labels, said):
    with pytest.raises(UserError, match=said):
        Task.labels(config, [example("", "", "", label) for label in labels])
    assert Task.labels(Config(positive="no"), TWO) == ("yes", "no")


def test_groups_stay_together():
    """Where a share of the examples is taken at random."""
    every = toy_tasks.examples("ranking", 40)
    train, dev = deal(every, 0.2, 0, Task.roles.together)
    assert len(train) + len(dev) == len(every)
    assert 0.2 * len(every) <= len(dev) < 0.2 * len(every) + 4
    assert {one["group"] for one in train}.isdisjoint(one["group"] for one in dev)
    for some in (keep_fraction(every, 0.3, 0, Task.roles.together), at_most(every, 30, 0, Task.roles.together)):
        names = {one["group"] for one in some}
        assert [one for one in every if one["group"] in names] == list(some)


@pytest.mark.usefixtures("one_device")
def test_a_run_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of the groups is dev; its export is a class of transformers; typed pairs are ranked."""
    toy_tasks.write_toy(
        tmp_path,
        "ranking",
        phase={"num_epochs": 2},
        data={"splits": {"train": "train.jsonl"}, "dev_fraction": 0.2},
        packing="none",
        export=True,
    )
    assert toy_tasks.finetune(tmp_path) == 0
    metrics, records = toy_tasks.results(tmp_path)["metrics"]["dev"], toy_tasks.predictions(tmp_path)
    assert metrics["accuracy"] > 0.9
    best = [record for record in records if record["rank"] == 1]
    assert metrics["accuracy"] == pytest.approx(np.mean([record["label"] == "yes" for record in best]))
    assert "BertForMultipleChoice" in capsys.readouterr().err
    assert run(["predict", f"--workdir={tmp_path / 'run'}", "the film", "a dull town", "the film", "great people"]) == 0
    assert [line.split('"')[7] for line in capsys.readouterr().out.splitlines()] == ["no", "yes"]
