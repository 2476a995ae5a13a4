"""The loss of a packed row is the sum of the losses of its pairs alone, and no pair sees another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.source import documents
from bert_jax.corpora.store import Corpus
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.objectives.base import Setting
from bert_jax.objectives.mlm_nsp import Config, Objective
from bert_jax.rows.rows_config import Packing
from bert_jax.task import Variables
from bert_jax.text.learn import learn_wordpiece
from bert_jax.text.tokenizer import Tokenizer, wordpiece
from bert_jax.training.mesh import unbox
from tests import toy
from tests.models.helpers import tiny

ROWS, LENGTH = 12, 64


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, Tokenizer]:
    folder = tmp_path_factory.mktemp("corpus")
    paths = (str(toy.write_text(folder / "text.txt")),)
    source = Source(paths=paths, format="sentences", document_boundary="blank_line")
    sentences = (sentence for document in documents(source) for sentence in document.sentences)
    tokenizer = wordpiece(learn_wordpiece(sentences, 120, min_frequency=1))
    build(source, tokenizer, folder / "store", BuildConfig(0.2))
    return Corpus(folder / "store"), tokenizer


def objective(text: tuple[Corpus, Tokenizer], dtype: str, packing: Packing = "packed") -> Objective:
    corpus, tokenizer = text
    model = bert.Config(
        tokenizer.size, 32, 1, 2, 64, max_length=LENGTH, dropout_rate=0.0, attention_dropout_rate=0.0, dtype=dtype
    )
    setting = Setting(model, {"phase1": LENGTH})
    return Objective(Config(packing=packing), setting).with_text(corpus, tokenizer)


def packed_rows(task: Objective) -> dict[str, np.ndarray]:
    source = task.source("train", "phase1", 0)
    indices = np.arange(source.rows_per_epoch)
    rows = source.rows(np.zeros_like(indices), indices)
    crowded = np.argsort(-rows["next_sentence_weights"].sum(axis=1), kind="stable")[:ROWS]
    return {name: value[crowded] for name, value in rows.items()}


def alone(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each pair of packed rows in a row of its own, from position 0, without what packing adds."""
    names = ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "masked_labels", "masked_weights")
    row_of, pair_of = np.nonzero(rows["next_sentence_weights"])
    found: dict[str, Any] = {name: np.zeros((len(row_of), *rows[name].shape[1:]), rows[name].dtype) for name in names}
    for i, (row, pair) in enumerate(zip(row_of, pair_of, strict=True)):
        here = np.flatnonzero(rows["sequence_ids"][row] == pair + 1)
        for name in names[:3]:
            found[name][i, : len(here)] = rows[name][row, here]
        masked = rows["masked_positions"][row]
        slots = np.flatnonzero((rows["masked_weights"][row] > 0) & (masked >= here[0]) & (masked <= here[-1]))
        found["masked_positions"][i, : len(slots)] = masked[slots] - here[0]
        found["masked_labels"][i, : len(slots)] = rows["masked_labels"][row, slots]
        found["masked_weights"][i, : len(slots)] = 1
    found["cls_positions"] = np.zeros((len(row_of), 1), np.int32)
    found["next_sentence_labels"] = rows["next_sentence_labels"][row_of, pair_of][:, None]
    found["next_sentence_weights"] = np.ones((len(row_of), 1), np.float32)
    return found


def fresh(task: Objective) -> Variables:
    return jax.device_get(unbox(jax.jit(task.init)(jax.random.key(0))))


def sums(task: Objective, batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """Sums of the two losses and their counts, and the gradient of their total."""
    params = fresh(task).params

    def total(params: Any) -> tuple[jax.Array, Any]:
        terms = task.loss(Variables(params, {}), jax.tree.map(jnp.asarray, batch), None).terms
        return terms["mlm"].value + terms["nsp"].value, terms

    (_, terms), gradient = jax.device_get(jax.jit(jax.value_and_grad(total, has_aux=True))(params))
    return terms, gradient


def test_a_packed_row_costs_what_its_pairs_cost(text: tuple[Corpus, Tokenizer]) -> None:
    with jax.enable_x64(True):
        task = objective(text, "float64")
        rows = packed_rows(task)
        assert rows["next_sentence_weights"].sum(axis=1).max() > 2
        (terms, gradients), (expected, wanted) = sums(task, rows), sums(task, alone(rows))
        for name in ("mlm", "nsp"):
            assert terms[name].count == expected[name].count
            assert float(terms[name].value) == pytest.approx(float(expected[name].value), rel=1e-12)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(wanted))
        for got, want in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
            assert np.abs(got - want).max() <= 1e-11 * largest


def test_a_pair_does_not_see_its_neighbours(text: tuple[Corpus, Tokenizer]) -> None:
    task = objective(text, "float32")
    rows = packed_rows(task)
    variables = fresh(task)

    @jax.jit
    def outputs(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return task.outputs(variables, batch)

    first = rows["sequence_ids"] == 1
    changed = {**rows, "input_ids": np.where(first, rows["input_ids"][:, ::-1], rows["input_ids"])}
    before, after = jax.device_get([outputs(rows), outputs(changed)])
    others = rows["sequence_ids"] > 1
    np.testing.assert_array_equal(before["sequence"][others], after["sequence"][others])
    assert np.abs(before["sequence"][first] - after["sequence"][first]).max() > 0.1
    pairs = np.flatnonzero(rows["next_sentence_weights"][0])
    np.testing.assert_array_equal(before["nsp_logits"][0, pairs[1:]], after["nsp_logits"][0, pairs[1:]])
    assert (before["nsp_logits"][0, 0] != after["nsp_logits"][0, 0]).any()
    # Power: as one sequence the same change is seen everywhere.
    together = [{**batch, "sequence_ids": batch["attention_mask"]} for batch in (rows, changed)]
    seen, then = (np.asarray(outputs(batch)["sequence"]) for batch in together)
    assert np.abs(seen[others] - then[others]).max() > 1e-3


def test_baselines_of_packed_rows_are_of_their_pairs(text: tuple[Corpus, Tokenizer]) -> None:
    """The neighbours of a masked position are of its own pair, since [CLS] and [SEP] stand between two."""
    from bert_jax.rows.ngram_models import HIDDEN, cloze_of_rows

    task = objective(text, "float32")
    rows, tokenizer = packed_rows(task), text[1]
    special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
    found, wanted = cloze_of_rows(rows, special), cloze_of_rows(alone(rows), special)
    for name in found._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert (found.left == HIDDEN).any()
    assert 0.5 <= task.baselines("phase1", 50)["nsp_majority_rate"] < 1


def test_every_kind_of_batch_is_declared_before_there_is_a_corpus(text: tuple[Corpus, Tokenizer]) -> None:
    def batch_specs(packing: Packing, **masking: Any) -> Any:
        lengths = {"phase1": 32, "phase2": 64}
        setting = Setting(tiny(max_length=64), lengths, changes={"phase2": {"masking": masking}})
        return Objective(Config(packing=packing), setting).batch_specs

    specs = batch_specs("bucketed", rate=0.3)
    assert list(specs) == ["phase1", "phase1/16", "phase2", "phase2/32", "phase2/16"]
    assert specs["phase2/16"]["masked_positions"].shape == (5,)  # 0.3 * 16
    assert batch_specs("packed")["phase2"]["cls_positions"].shape == (4,)
    task = objective(text, "float32", "bucketed")
    assert task.batch_specs.keys() == task.flops_per_row.keys() == {"phase1", "phase1/32", "phase1/16"}
    held_out = task.source("eval", "phase1", 0)
    assert held_out.buckets == ()
    assert held_out.rows(np.zeros(2), np.arange(2))["input_ids"].shape == (2, LENGTH)
    with pytest.raises(UserError, match="config.phases.phase2.masking.rte; did you mean 'rate'"):
        batch_specs("none", rte=0.3)
