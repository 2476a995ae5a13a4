"""Left to right: every token of a pair is predicted from those before it, and from nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.objectives import ltr, mlm_nsp
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.ngram_models import HIDDEN, next_tokens_of_rows, stream_of_rows
from tests.objectives.texts import LENGTH, MASKED, NEXT_SENTENCE, Text, counts_of, fresh, objective, rows_of


def pairs_of(rows: dict[str, np.ndarray], row: int) -> list[np.ndarray]:
    """Positions of each pair of a row."""
    sequence = rows.get("sequence_ids", rows["attention_mask"])[row]
    return [np.flatnonzero(sequence == pair) for pair in range(1, sequence.max() + 1)]


@pytest.mark.parametrize("packing", ["none", "packed", "bucketed"])
def test_the_rows_are_those_of_bert_before_masking(text: Text, packing: str) -> None:
    found = rows_of(objective(ltr, text, packing=packing), 4)
    masked = rows_of(objective(mlm_nsp, text, packing=packing), 4)
    assert found.keys() == masked.keys() - set(NEXT_SENTENCE) - set(MASKED)
    expected = masked["input_ids"].copy()
    row, slot = np.nonzero(masked["masked_weights"])
    expected[row, masked["masked_positions"][row, slot]] = masked["masked_labels"][row, slot]
    np.testing.assert_array_equal(found["input_ids"], expected)
    assert (found["input_ids"] != masked["input_ids"]).any()
    for name in found.keys() - {"input_ids"}:
        np.testing.assert_array_equal(found[name], masked[name])


@pytest.mark.parametrize("packing", ["none", "packed"])
def test_the_loss_is_written_out_pair_by_pair(text: Text, packing: str) -> None:
    """Each pair by itself through the model, its log likelihoods picked one by one."""
    task = objective(ltr, text, packing=packing)
    rows, variables = rows_of(task, 4), fresh(task)
    logits_of = jax.jit(lambda batch: task.outputs(variables, batch)["mlm_logits"])
    total, hits, count = 0.0, 0, 0
    for row in range(4):
        for here in pairs_of(rows, row):
            alone = {n: np.zeros((1, LENGTH), np.int32) for n in ("input_ids", "token_type_ids", "attention_mask")}
            for name, value in alone.items():
                value[0, : len(here)] = rows[name][row, here]
            logits = np.asarray(logits_of({**alone, "row_weights": np.ones(1, np.float32)}), np.float64)[0]
            for position in range(1, len(here)):
                scores, label = logits[position - 1], alone["input_ids"][0, position]
                total += np.log(np.exp(scores).sum()) - scores[label]
                hits += int(scores.argmax() == label)
                count += 1
    losses = jax.jit(lambda batch: task.loss(variables, batch, None))(rows)
    assert losses.terms["lm"].count == counts_of(task, rows)["lm"] == count
    assert float(losses.terms["lm"].value) == pytest.approx(total, rel=1e-5)
    assert float(losses.metrics["lm_accuracy"].value) == hits
    assert float(losses.metrics["tokens"].value) == rows["attention_mask"].sum()


def test_no_prediction_knows_its_answer(text: Text) -> None:
    task = objective(ltr, text)
    rows, variables = rows_of(task, 1), fresh(task)
    run = jax.jit(lambda batch: task.outputs(variables, batch)["mlm_logits"][0])
    before = run(rows)
    for position in (5, 20, 40):
        ids = rows["input_ids"].copy()
        ids[0, position] = 5 + (ids[0, position] + 1) % 50
        after = run({**rows, "input_ids": ids})
        np.testing.assert_array_equal(after[:position], before[:position])
        assert np.abs(after[position] - before[position]).max() > 1e-5  # the power check


def test_rows_that_pad_an_evaluation_weigh_nothing(text: Text) -> None:
    task = objective(ltr, text)
    rows = rows_of(task, 4)
    half = {**rows, "row_weights": np.array([1, 0, 1, 0], np.float32)}
    two = {name: jnp.asarray(value[[0, 2]]) for name, value in rows.items()}
    assert counts_of(task, half)["lm"] == counts_of(task, two)["lm"] < counts_of(task, rows)["lm"]
    variables = fresh(task)
    loss = jax.jit(lambda batch: task.loss(variables, batch, None).terms["lm"].value)
    found, expected = loss(half), loss(two)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_contexts_of_the_baseline_are_the_two_tokens_before() -> None:
    cls, sep = 2, 3
    rows = {
        "input_ids": np.array([[2, 7, 3, 8, 3, 2, 9, 3, 0]]),
        "attention_mask": np.array([[1, 1, 1, 1, 1, 1, 1, 1, 0]]),
        "sequence_ids": np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]]),
        "row_weights": np.ones(1),
    }
    found = next_tokens_of_rows(rows, cls, sep)
    assert found.label.tolist() == [7, 3, 8, 3, 9, 3]
    assert found.left.tolist() == [sep, 7, 3, 8, sep, 9]
    assert found.right.tolist() == [HIDDEN, sep, 7, 3, HIDDEN, sep]
    assert stream_of_rows(rows, cls).tolist() == [7, 3, 8, 3, 9, 3]


def test_the_baseline_with_context_beats_the_one_without(text: Text) -> None:
    figures = objective(ltr, text, packing="packed").baselines("phase1", 20)
    assert 0 < figures["trigram_cross_entropy"] < 0.7 * figures["unigram_cross_entropy"]
    assert objective(ltr, text, packing="bucketed").baselines("phase1", 20).keys() == figures.keys()


def test_what_makes_no_sense_is_refused(text: Text) -> None:
    with pytest.raises(UserError, match="config.objective.masking is set, but the objective 'ltr' masks nothing"):
        objective(ltr, text, masking=MaskingConfig(rate=0.3))
    with pytest.raises(UserError, match="config.phases.phase1.masking is set"):
        objective(ltr, text, changes={"phase1": {"masking": {"rate": 0.3}}})
