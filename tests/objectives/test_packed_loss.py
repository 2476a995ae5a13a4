"""The loss of a packed row is the sum of the losses of its pairs alone, and no pair sees another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.objectives import mlm_nsp
from bert_jax.objectives.base import Setting
from bert_jax.rows.ngram_models import HIDDEN, cloze_of_rows
from bert_jax.rows.rows_config import Packing
from bert_jax.task import Variables
from tests.models.helpers import tiny
from tests.objectives.texts import LENGTH, Text, fresh, objective

ROWS = 12


def packed_rows(task: mlm_nsp.Objective) -> dict[str, np.ndarray]:
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


def sums(task: mlm_nsp.Objective, batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """Sums of the two losses and their counts, and the gradient of their total."""
    params = fresh(task).params

    def total(params: Any) -> tuple[jax.Array, Any]:
        terms = task.loss(Variables(params, {}), jax.tree.map(jnp.asarray, batch), None).terms
        return terms["mlm"].value + terms["nsp"].value, terms

    (_, terms), gradient = jax.device_get(jax.jit(jax.value_and_grad(total, has_aux=True))(params))
    return terms, gradient


def test_a_packed_row_costs_what_its_pairs_cost(text: Text) -> None:
    with jax.enable_x64(True):
        task = objective(mlm_nsp, text, dtype="float64", packing="packed")
        rows = packed_rows(task)
        assert rows["next_sentence_weights"].sum(axis=1).max() > 2
        (terms, gradients), (expected, wanted) = sums(task, rows), sums(task, alone(rows))
        for name in ("mlm", "nsp"):
            assert terms[name].count == expected[name].count
            assert float(terms[name].value) == pytest.approx(float(expected[name].value), rel=1e-12)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(wanted))
        for got, want in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
            assert np.abs(got - want).max() <= 1e-11 * largest


def test_a_pair_does_not_see_its_neighbours(text: Text) -> None:
    task = objective(mlm_nsp, text, packing="packed")
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


def test_baselines_of_packed_rows_are_of_their_pairs(text: Text) -> None:
    """The neighbours of a masked position are of its own pair, since [CLS] and [SEP] stand between two."""
    task = objective(mlm_nsp, text, packing="packed")
    rows, tokenizer = packed_rows(task), text[1]
    special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
    found, wanted = cloze_of_rows(rows, special), cloze_of_rows(alone(rows), special)
    for name in found._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert (found.left == HIDDEN).any()
    assert 0.5 <= task.baselines("phase1", 50)["nsp_majority_rate"] < 1


def test_every_kind_of_batch_is_declared_before_there_is_a_corpus(text: Text) -> None:
    def batch_specs(packing: Packing, **masking: Any) -> Any:
        lengths = {"phase1": 32, "phase2": 64}
        setting = Setting(tiny(max_length=64), lengths, changes={"phase2": {"masking": masking}})
        return mlm_nsp.Objective(mlm_nsp.Config(packing=packing), setting).batch_specs

    specs = batch_specs("bucketed", rate=0.3)
    assert list(specs) == ["phase1", "phase1/16", "phase2", "phase2/32", "phase2/16"]
    assert specs["phase2/16"]["masked_positions"].shape == (5,)  # 0.3 * 16
    assert batch_specs("packed")["phase2"]["cls_positions"].shape == (4,)
    task = objective(mlm_nsp, text, packing="bucketed")
    assert task.batch_specs.keys() == task.flops_per_row.keys() == {"phase1", "phase1/32", "phase1/16"}
    held_out = task.source("eval", "phase1", 0)
    assert held_out.buckets == ()
    assert held_out.rows(np.zeros(2), np.arange(2))["input_ids"].shape == (2, LENGTH)
    with pytest.raises(UserError, match="config.phases.phase2.masking.rte; did you mean 'rate'"):
        batch_specs("none", rte=0.3)
