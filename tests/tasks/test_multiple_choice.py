"""Multiple choice: rows of choices, those that pad, and how labels name choices."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.multiple_choice import reading
from tests.tasks import toy_tasks

TWO = {"id": "two", "context": "the film was", "choices": ["great", "awful"], "label": 1}
FOUR = {
    "id": "four",
    "context": "the town",
    "question": "was",
    "choices": ["dull", "lovely", "a film", "in"],
    "label": 2,
}


def test_a_sequence_for_every_choice():
    task = toy_tasks.make_task("multiple_choice", {"train": [TWO, FOUR]})
    assert task.num_choices == 4
    batch = task.rows["train"].take(np.arange(2), 32)
    assert batch["input_ids"].shape == (2, 4, 32)
    assert batch["choice_weights"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    tokenizer = task.setting.tokenizer
    for choice, text in enumerate(FOUR["choices"]):
        expected = tokenizer.encode(FOUR["context"], f"was {text}")
        length = len(expected.input_ids)
        assert batch["input_ids"][1, choice, :length].tolist() == list(expected.input_ids)
        assert batch["attention_mask"][1, choice].sum() == length
        assert batch["token_type_ids"][1, choice].sum() == 2 + len(tokenizer.encode_batch([text])[0])


def test_a_question_that_is_the_context_stands_once():
    example = {**TWO, "question": TWO["context"]}
    task = toy_tasks.make_task("multiple_choice", {"train": [example], "dev": [TWO]})
    assert task.rows["train"].sequences["input_ids"].tolist() == task.rows["dev"].sequences["input_ids"].tolist()


def test_the_loss_is_over_the_choices_that_are_there():
    task = toy_tasks.make_task("multiple_choice", {"train": [TWO, FOUR]})
    batch = task.rows["train"].take(np.arange(2), 32)
    logits = np.array([[0.3, -1.0, 50.0, 9.0], [1.0, 0.0, 2.0, -1.0]])
    expected = -np.log(np.exp([-1.0, 2.0]) / [np.exp(logits[0, :2]).sum(), np.exp(logits[1]).sum()]).sum()
    sums, gradient = jax.value_and_grad(lambda x: (s := task.score({"logits": x}, batch)["loss"]).value + 0 * s.count)(
        jnp.asarray(logits, jnp.float32)
    )
    assert float(sums) == pytest.approx(expected, rel=1e-6)
    assert gradient[0, 2:].tolist() == [0, 0]
    assert task.finish("train", {"logits": logits}) == {"accuracy": 0.5}
    first, second = task.predictions("train", {"logits": logits})
    assert (first["prediction"], first["text"], first["label"]) == (0, "great", 1)
    assert len(first["probabilities"]) == 2
    assert (second["prediction"], second["text"]) == (2, "a film")
    assert sum(second["probabilities"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ([1, 2], "index"),
        (["1", "0"], "index"),
        (["A", "D"], "letter"),
        (["awful", "in"], "text"),
        (["b", "C"], "letter"),
    ],
)
def test_how_labels_name_choices(labels, name):
    examples = [{**example, "label": label} for example, label in zip((TWO, FOUR), labels, strict=True)]
    assert reading("auto", examples) == name


def test_choices_that_are_numbers_follow_all_examples():
    """ "1" is an index or a choice: what the other labels are decides."""
    numbers = {"id": "n", "context": "the film", "choices": ["1", "2", "0"], "label": "1"}
    assert reading("auto", [numbers]) == "index"
    assert reading("auto", [numbers, {**numbers, "choices": ["7", "9"], "label": "9"}]) == "text"


BAD = {
    "out of range": ({**TWO, "label": 2}, r"1 labels name no choice: 2 in two of 2 choices; allowed is the index"),
    "unknown": ({**TWO, "label": "neither"}, "'neither' in two"),
    "one choice": ({**TWO, "choices": ["great"], "label": 0}, "1 examples have fewer than 2 choices, such as two"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_choices(name):
    example, said = BAD[name]
    with pytest.raises(UserError, match=said):
        toy_tasks.make_task("multiple_choice", {"train": [FOUR, example]})


@pytest.mark.usefixtures("one_device")
def test_a_run_learns(tmp_path: Path) -> None:
    toy_tasks.write_toy(tmp_path, "multiple_choice", phase={"num_epochs": 2}, packing="none")
    assert toy_tasks.finetune(tmp_path) == 0
    metrics, records = toy_tasks.results(tmp_path)["metrics"]["dev"], toy_tasks.predictions(tmp_path)
    assert metrics["accuracy"] > 0.9
    assert metrics["accuracy"] == np.mean([record["prediction"] == record["label"] for record in records])
    assert [len(record["probabilities"]) for record in records] == [
        len(example["choices"]) for example in toy_tasks.examples("multiple_choice", 48, 2)
    ]
