"""The span-boundary objective: what its head reads, and which tokens count."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.models.heads import BoundaryHead
from bert_jax.objectives import span_boundary
from bert_jax.rows.masking import MaskingConfig
from bert_jax.training.mesh import unbox
from tests.objectives.texts import LENGTH, Text, counts_of, objective, rows_of

SPANS = {"strategy": "spans", "unit": "word", "fates": "span", "random_pieces": "unigram"}
DOCUMENTS = {"blocks": "document"}


def task_of(text: Text, **config: Any) -> Any:
    masking = MaskingConfig(**SPANS)  # type: ignore[arg-type]
    return objective(span_boundary, text, **{"masking": masking, "arrangement_options": DOCUMENTS, **config})


@pytest.mark.parametrize(("size", "hidden", "expected"), [("base", 768, 1_960_676), ("large", 1024, 3_389_668)])
def test_the_head_has_the_published_number_of_parameters(size: str, hidden: int, expected: int) -> None:
    """The figure is that of SpanBERT's cased models, with 20 places of 200 numbers."""
    head = BoundaryHead(bert.Config(28_996, **bert.SIZES[size]))
    outputs = {"sequence": np.zeros((1, 4, hidden), np.float32), "word_embeddings": np.zeros((28_996, hidden))}
    batch = {name: np.zeros((1, 2), np.int32) for name in BoundaryHead.reads}
    shapes = jax.eval_shape(lambda: head.init(jax.random.key(0), outputs, batch, None))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == expected


def drawn(init: Any) -> Any:
    """Parameters like those of ``init``, from N(0, 0.5)."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.5, leaf.shape).astype("f"), unbox(jax.eval_shape(init)))


def drawn_head(positions: int = 20) -> tuple[BoundaryHead, Any, dict[str, Any], dict[str, Any]]:
    """A small head with parameters from N(0, 0.5), outputs of an encoder and a batch of 3 targets."""
    rng = np.random.default_rng(0)
    head = BoundaryHead(bert.Config(50, 8, 1, 2, 16, max_length=32), positions=positions)
    outputs = {"sequence": rng.normal(size=(2, 32, 8)).astype("f"), "word_embeddings": rng.normal(size=(50, 8))}
    places = {"span_left": [[2, 2, 9], [0, 7, 7]], "span_right": [[5, 5, 12], [3, 30, 30]]}
    batch = {name: np.array(value) for name, value in {**places, "span_offsets": [[0, 1, 1], [0, 5, 21]]}.items()}
    return head, drawn(lambda: head.init(jax.random.key(0), outputs, batch, None)), outputs, batch


def test_the_head_is_the_published_formula() -> None:
    head, params, outputs, batch = drawn_head()
    found = head.apply(params, outputs, batch, None)["boundary_logits"]
    own, erf = params["params"], np.vectorize(math.erf)

    def layer(dense: str, norm: str, x: np.ndarray) -> np.ndarray:
        x = x @ own[dense]["kernel"] + own[dense]["bias"]
        x = 0.5 * x * (1 + erf(x / math.sqrt(2)))
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
        return x * own[norm]["scale"] + own[norm]["bias"]

    for row in range(2):
        for target in range(3):
            left, right, offset = (int(batch[name][row, target]) for name in BoundaryHead.reads)
            sequence, place = outputs["sequence"][row], own["position_embeddings"][min(offset, 19)]
            x = layer("input", "input_layer_norm", np.concatenate([sequence[left], sequence[right], place]))
            x = layer("transform", "layer_norm", x)
            expected = x @ outputs["word_embeddings"].T + own["output_bias"]
            np.testing.assert_allclose(found[row, target], expected, rtol=2e-5, atol=2e-5)


def test_a_prediction_sees_the_two_sides_and_the_place_alone() -> None:
    """The vectors of the span itself, and of all the rest of the row, leak nothing."""
    head, params, outputs, batch = drawn_head()
    run = jax.jit(lambda sequence, batch: head.apply(params, {**outputs, "sequence": sequence}, batch, None))
    before = run(outputs["sequence"], batch)["boundary_logits"][0]
    others = np.setdiff1d(np.arange(32), [2, 5, 9, 12])
    changed = outputs["sequence"].copy()
    changed[:, others] = 7.0
    np.testing.assert_array_equal(run(changed, batch)["boundary_logits"][0], before)
    for position, seen in ((2, [1, 1, 0]), (5, [1, 1, 0]), (9, [0, 0, 1]), (12, [0, 0, 1])):  # the power check
        changed = outputs["sequence"].copy()
        changed[:, position] *= -1
        differs = np.abs(run(changed, batch)["boundary_logits"][0] - before).max(axis=1) > 1e-3
        assert differs.tolist() == [bool(x) for x in seen]
    moved = {**batch, "span_offsets": batch["span_offsets"] + 3}
    assert (np.abs(run(outputs["sequence"], moved)["boundary_logits"][0] - before).max(axis=1) > 1e-3).all()


def expected_counts(rows: dict[str, np.ndarray], text: Text, positions: int) -> tuple[int, int]:
    """Targets, and those with boundaries, found one by one from positions and ids."""
    tokenizer, targets, with_sides = text[1], 0, 0
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}
    for row, ids in enumerate(rows["input_ids"]):
        chosen = rows["masked_positions"][row][rows["masked_weights"][row] > 0].tolist()
        targets += len(chosen)
        for position in chosen:
            left = next(p for p in range(position, -1, -1) if p not in chosen)
            right = next(p for p in range(position, LENGTH) if p not in chosen)
            with_sides += not special & {ids[left], ids[right]} and position - left <= positions
    return targets, with_sides


@pytest.mark.parametrize("packing", ["none", "packed"])
@pytest.mark.parametrize("positions", [20, 2])
def test_targets_beside_special_tokens_or_too_far_in_do_not_count(text: Text, packing: str, positions: int) -> None:
    task = task_of(text, packing=packing, boundary_positions=positions)
    rows = rows_of(task, 12)
    targets, with_sides = expected_counts(rows, text, positions)
    counts = counts_of(task, rows)
    assert (counts["mlm"], counts["boundary"]) == (targets, with_sides)
    assert 0 < with_sides < targets
    none = counts_of(task, {**rows, "masked_weights": 0 * rows["masked_weights"]})  # rows that pad an evaluation
    assert none["boundary"] == none["mlm"] == 0


def test_a_packed_row_costs_what_its_sequences_cost(text: Text) -> None:
    """An epoch of packed rows has the sequences of an epoch of unpacked ones, so the sums over both are equal."""
    sums, variables = {}, drawn(lambda: task_of(text).init(jax.random.key(0)))
    for packing in ("none", "packed"):
        task = task_of(text, packing=packing)
        rows = rows_of(task, task.source("train", "phase1", 0).rows_per_epoch)
        terms = jax.jit(lambda rows, task=task: task.loss(variables, rows, None).terms)(rows)
        sums[packing] = {name: (float(term.value), float(term.count)) for name, term in terms.items()}
    assert len(sums["none"]) == 2
    for name, (value, count) in sums["none"].items():
        assert count == sums["packed"][name][1] > 50
        assert value == pytest.approx(sums["packed"][name][0], rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"boundary_weight": -1.0}, "config.objective.boundary_weight is -1.0; at least 0"),
        ({"boundary_positions": 0}, "config.objective.boundary_positions is 0; 1 to 1000"),
    ],
)
def test_bad_values_are_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(span_boundary.Config, wrong, "config.objective")


def test_any_strategy_goes_with_it(text: Text) -> None:
    for strategy in ("token", "whole_unit", "ngrams", "bernoulli"):
        task = task_of(text, masking=MaskingConfig(strategy=strategy))
        rows = rows_of(task, 12)
        assert counts_of(task, rows)["boundary"] == expected_counts(rows, text, 20)[1] > 0
