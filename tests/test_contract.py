"""What the contract declares of every objective and task: the counts that the step divides by are those of the loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import catalogue
from bert_jax.task import Variables, is_weight
from bert_jax.text import tokenizer as tokenizers
from bert_jax.training.mesh import unbox
from bert_jax.training.step import count_targets
from tests import floor, toy
from tests.tasks import questions, test_sentence_embeddings, toy_tasks

ROWS = 8


def make_task(name: str) -> Any:
    if name == "span_qa":
        asked = [questions.question(f"anna met {word} here", word) for word in ("boris", "clara")]
        return questions.make_task({"train": [*asked, questions.question("nobody came", None)]}, version_2=True)
    if name == "sentence_embeddings":
        tokenizer = tokenizers.wordpiece([*test_sentence_embeddings.SPECIAL_TOKENS, *test_sentence_embeddings.LETTERS])
        return test_sentence_embeddings.make(tokenizer, {"train": test_sentence_embeddings.pairs()})
    if name == "feature_tagging":
        config, examples = {"layers": "weighted_sum_all", "lstm_size": 16}, toy_tasks.examples("tagging", ROWS)
        return toy_tasks.make_task(name, {"train": examples}, config=config, frozen=("encoder",))
    return toy_tasks.make_task(name, {"train": toy_tasks.examples(name, ROWS)})


def assert_same_counts(task: Any, kind: str) -> None:
    """On rows of which some weigh nothing."""
    source = task.source("train", kind.partition("/")[0], 0)
    indices = np.arange(ROWS) % (
        next((b.rows_per_epoch for b in source.buckets if b.rows_per_epoch), source.rows_per_epoch)
    )
    batch = source.rows(np.zeros_like(indices), indices)
    for name in filter(is_weight, batch):
        batch[name][::3] = 0
    spec = jax.eval_shape(lambda: unbox(task.init(jax.random.key(0))))
    variables = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec)

    @jax.jit
    def counts(params: Any, frozen: Any, rows: Any) -> Any:  # what the model computes is left out: nothing reads it
        terms = task.loss(Variables(params, frozen), rows, None).terms
        return {name: term.count for name, term in terms.items()}

    found, declared = counts(variables.params, variables.frozen, batch), count_targets(task, spec, batch, None)
    assert found.keys() == declared.keys() == task.loss_weights.keys()
    for name, count in declared.items():
        assert float(found[name]) == float(count) > 0, name


@pytest.mark.parametrize("name", sorted(catalogue.parts("tasks", having="Task")))
def test_counts_of_tasks(name: str) -> None:
    assert_same_counts(make_task(name), "train")


@pytest.mark.parametrize("packing", floor.PACKINGS)
@pytest.mark.parametrize("objective", sorted(catalogue.parts("objectives", having="Objective")))
def test_counts_of_objectives(
    objective: str, packing: str, tmp_path_factory: pytest.TempPathFactory, one_device: None
) -> None:
    folder = tmp_path_factory.getbasetemp() / "contract"
    folder.mkdir(exist_ok=True)
    recipe = floor.recipe(toy.write_text(folder / "text.txt", documents=120), objective, packing, 64)
    if catalogue.find("objectives", objective).Objective.arrangement == "sentences":
        del recipe["objective"]["short_row_probability"]  # of pairs alone
    assert_same_counts(floor.made(folder, recipe), "phase1")
