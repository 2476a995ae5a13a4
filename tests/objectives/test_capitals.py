"""Capitalisation: the labels of the cased text, which tokens count, and the number of the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.corpora.annotators import capitals as annotator
from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.columns import Column, find
from bert_jax.corpora.shard_job import tokenize
from bert_jax.corpora.store import Corpus
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError
from bert_jax.models.encoders import ernie
from bert_jax.objectives import capitals
from bert_jax.objectives.base import Setting
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.records import SPECIAL_TOKENS, Document
from bert_jax.runs.pretraining import Pretraining
from bert_jax.text.tokenizer import wordpiece
from tests import toy
from tests.objectives.texts import LENGTH, Text, make_text, objective, rows_of

LETTERS = "abcdefghijklmnopqrstuvwxyz0.,-äß北京"
CHARACTERS = wordpiece((*SPECIAL_TOKENS, *(part for c in LETTERS for part in (c, f"##{c}"))))


@pytest.fixture(scope="module")
def cased(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return make_text(tmp_path_factory.mktemp("cased"), "capitals")


def test_the_labels_are_of_the_text_before_it_is_in_lower_case() -> None:
    """Of single characters, and of a piece with several."""
    text = "He met NATO, in Bad-北京 ÄbcßİI 0K. iPhone"
    column = Column("capitals", "capitals", annotator.Annotator())
    [found] = tokenize([Document("", (text,))], CHARACTERS, [column])
    wanted = [1 + (c != c.lower()) for c in text if c in LETTERS or c.lower()[0] in LETTERS]
    assert found.columns["capitals"].tolist() == wanted
    words = wordpiece((*SPECIAL_TOKENS, "i", "##phone", "nato", "##s"))
    [found] = tokenize([Document("", ("iPhone NATOs natos",))], words, [column])
    assert found.columns["capitals"].tolist() == [1, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("packing", ["none", "packed"])
def test_rows_have_the_text_as_it_is_and_a_label_for_each_piece_of_it(cased: Text, packing: Any) -> None:
    """In title case the first piece of a word is a capital, and a full stop is none."""
    task, tokenizer = objective(capitals, cased, packing=packing), cased[1]
    rows = rows_of(task)
    batch = task.inputs({name: jnp.asarray(x) for name, x in rows.items()})
    assert "task_type_ids" not in batch, "a BERT has no tasks"
    pieces = [[tokenizer.vocab[i] for i in row] for row in rows["input_ids"].tolist()]
    assert not any("[MASK]" in row for row in pieces)
    is_text = np.array([[piece not in SPECIAL_TOKENS for piece in row] for row in pieces])
    first = np.array([[piece[0].isalpha() for piece in row] for row in pieces])
    np.testing.assert_array_equal(batch["capital_weights"], is_text)
    np.testing.assert_array_equal(np.asarray(batch["capital_labels"])[is_text], first[is_text])
    assert 0.3 < first[is_text].mean() < 0.95
    without = task.inputs({**batch, "row_weights": jnp.zeros(len(is_text))})
    assert not without["capital_weights"].any()
    rate = task.baselines("phase1", 20)["capitals_majority_rate"]
    assert 0.5 <= rate < 0.95


def test_the_encoder_reads_the_number_of_the_task(cased: Text) -> None:
    corpus, tokenizer = cased

    def made(tasks: int, **keys: Any) -> Any:
        config = ernie.Config(tokenizer.size, 16, 1, 2, 32, max_length=LENGTH, task_type_vocab_size=tasks)
        setting = Setting(config, {"phase1": LENGTH})
        return capitals.Objective(capitals.Config(**keys), setting).with_text(corpus, tokenizer)

    for task, wanted in ((made(2), 1), (made(8, task_id=7), 7)):
        batch = {name: jnp.asarray(x) for name, x in rows_of(task).items()}
        assert (task.inputs(batch)["task_type_ids"] == wanted).all()
        shapes = jax.eval_shape(task.init, jax.random.key(0)).params["encoder"]["embeddings"]
        assert "task_type_embeddings" in shapes
    assert "task_type_ids" not in made(0).derived
    with pytest.raises(UserError, match=r"^config.objective.task_id is 2, and the model has .* 2 tasks.*_size to 3 or"):
        made(2, task_id=2)
    with pytest.raises(UserError, match=r"^config.objective.task_id is -1; 0 or more is needed$"):
        made(2, task_id=-1)


def test_a_text_without_capitals_and_a_vocabulary_with_capitals_are_refused(tmp_path: Path, cased: Text) -> None:
    text = tmp_path / "text.txt"
    tokenizer = cased[1]
    source = Source(paths=(str(toy.write_text(text)),), format="sentences", document_boundary="blank_line")
    build(source, tokenizer, tmp_path / "store", BuildConfig(0.2), columns=find(toy.COLUMNS["capitals"]))
    with pytest.raises(UserError, match="^0.00% of the tokens of the text have a capital letter, which the ob"):
        objective(capitals, (Corpus(tmp_path / "store"), tokenizer))
    keeps = wordpiece(tokenizer.vocab, lowercase=False)
    with pytest.raises(UserError, match="^the vocabulary keeps capitals, .*; set config.vocab.lowercase to True"):
        objective(capitals, (cased[0], keeps))


def test_a_recipe_without_the_column_and_a_recipe_that_masks_are_refused(tmp_path: Path) -> None:
    recipe = toy.recipe(toy.write_text(tmp_path / "text.txt"), objective={"name": "capitals"})
    with pytest.raises(UserError, match="^the objective reads 'capitals', a column that the corpus is to be built wit"):
        Pretraining(PretrainingSettings.of(recipe))
    recipe["objective"]["masking"] = {"rate": 0.3}
    with pytest.raises(UserError, match="^config.objective.masking is set, but the objective 'capitals' masks nothing"):
        Pretraining(PretrainingSettings.of(recipe))
