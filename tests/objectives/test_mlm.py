"""Masked LM alone is the masked-LM half of BERT's objective, on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.corpora.mixture import Mixture
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.objectives import ltr, mlm, mlm_nsp
from bert_jax.rows.masking import MaskingConfig
from bert_jax.task import Variables
from tests.objectives.texts import LENGTH, NEXT_SENTENCE, Text, counts_of, fresh, make_text, objective, rows_of


@pytest.mark.parametrize("packing", ["none", "packed", "bucketed"])
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_rows_are_those_with_next_sentences(text: Text, packing: str, split: str) -> None:
    one, both = (objective(module, text, packing=packing) for module in (mlm, mlm_nsp))
    found, expected = rows_of(one, 4, split), rows_of(both, 4, split)
    assert found.keys() == expected.keys() - set(NEXT_SENTENCE) == set(one.batch_specs["phase1"])
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])
    assert one.source(split, "phase1", 0).buckets == both.source(split, "phase1", 0).buckets


def test_a_part_of_weight_0_is_evaluated_and_never_trained_on(text: Text, tmp_path: Path) -> None:
    apart = make_text(tmp_path)[0]
    alone, both = (
        objective(mlm, (Mixture(dict(parts), shares), text[1]))
        for parts, shares in (
            ({"own": text[0]}, {"own": 1.0}),
            ({"apart": apart, "own": text[0]}, {"apart": 0.0, "own": 1.0}),
        )
    )
    assert both.heldout_parts == ("apart", "own")
    assert both.source("eval", "phase1", 0, "apart").rows_per_epoch > 0
    for name, rows in rows_of(alone).items():
        np.testing.assert_array_equal(rows_of(both)[name], rows)


def test_loss_and_gradient_are_those_of_the_masked_lm_term(text: Text) -> None:
    one, both = objective(mlm, text, packing="packed"), objective(mlm_nsp, text, packing="packed")
    params = fresh(both).params
    assert set(fresh(one).params) == {"encoder", "mlm_head"}  # no pooler, no next-sentence head to train or decay

    def loss(task: Any, params: Any) -> tuple[jax.Array, Any]:
        terms = task.loss(Variables(params, {}), jax.tree.map(jnp.asarray, rows_of(task)), None).terms
        return terms["mlm"].value, terms

    gradient = jax.jit(jax.value_and_grad(loss, argnums=1, has_aux=True), static_argnums=0)
    (_, terms), found = gradient(one, {name: params[name] for name in ("encoder", "mlm_head")})
    (_, expected_terms), expected = gradient(both, params)
    assert set(terms) == {"mlm"} == set(one.loss_weights) == set(counts_of(one, rows_of(one)))
    assert terms["mlm"].count == expected_terms["mlm"].count == counts_of(one, rows_of(one))["mlm"]
    assert float(terms["mlm"].value) == pytest.approx(float(expected_terms["mlm"].value), rel=1e-6)
    for name, tree in found.items():
        for got, want in zip(jax.tree.leaves(tree), jax.tree.leaves(expected[name]), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5 * max(1.0, float(np.abs(want).max())))


def test_baselines_are_the_same_but_for_next_sentences(text: Text) -> None:
    found, expected = (objective(module, text).baselines("phase1", 20) for module in (mlm, mlm_nsp))
    assert found == {name: value for name, value in expected.items() if name != "nsp_majority_rate"}


def test_an_encoder_gets_only_rows_that_it_reads(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert.Encoder, "reads", frozenset({"token_type_ids"}))
    assert "position_ids" not in objective(mlm, text).batch_specs["phase1"]
    with pytest.raises(UserError, match="encoder 'bert' does not read position_ids; set config.objective.packing"):
        objective(mlm, text, packing="packed")


def test_a_phase_with_its_own_strategy_has_its_own_options(text: Text) -> None:
    masking = MaskingConfig(strategy="spans", unit="word", options={"longest": 10})

    def of_phase(**changes: Any) -> Any:
        made = objective(mlm, text, masking=masking, changes={"phase1": {"masking": changes}})
        return made._rows["phase1"].masking

    assert of_phase(rate=0.3).options == {"longest": 10}
    assert of_phase(strategy="ngrams").selection[1].longest == 3
    with pytest.raises(UserError, match=r"config.phases.phase1.masking.rate is 3.0; more than 0"):
        of_phase(rate=3.0)
    with pytest.raises(UserError, match=r"unknown key config.phases.phase1.objective.packin; did you mean 'packing'"):
        objective(mlm, text, changes={"phase1": {"packin": "none"}})


@pytest.mark.parametrize("rate", [0.15, 0.2, 0.3, 0.4])
def test_more_masks_have_room(text: Text, rate: float) -> None:
    """P follows the rate, and no row is cut to it."""
    task = objective(mlm, text, masking=MaskingConfig(rate=rate))
    rows = rows_of(task, 60)
    lengths = rows["attention_mask"].sum(axis=1)
    assert task.batch_specs["phase1"]["masked_positions"].shape == (round(rate * LENGTH),)
    np.testing.assert_array_equal(rows["masked_weights"].sum(axis=1), np.maximum(1, np.rint(rate * lengths)))


# [MASK], kept, random: the rows of Devlin et al. 2019, table 8.
MIXES = [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.0, 0.2), (0.8, 0.2, 0.0), (0.0, 0.2, 0.8), (0.0, 0.0, 1.0)]


@pytest.mark.parametrize("shares", MIXES)
def test_the_published_corruption_mixes(text: Text, shares: tuple[float, float, float]) -> None:
    tokenizer = text[1]
    task = objective(mlm, text, masking=MaskingConfig(rate=0.4, mask_share=shares[0], random_share=shares[2]))
    rows = rows_of(task, task.source("train", "phase1", 0).rows_per_epoch)
    real = rows["masked_weights"] > 0
    seen = np.take_along_axis(rows["input_ids"], rows["masked_positions"], axis=1)[real]
    labels, chance = rows["masked_labels"][real], shares[2] / tokenizer.size  # a random piece may be either
    for hits, rate in ((seen == tokenizer.mask_id, shares[0] + chance), (seen == labels, shares[1] + chance)):
        deviation = np.sqrt(max(rate * (1 - rate), 1e-12) / len(hits))
        assert abs(hits.mean() - rate) <= 4 * deviation + 1e-9
    if shares[2] == 0:  # nothing but the two
        assert ((seen == tokenizer.mask_id) | (seen == labels)).all()


def test_an_encoder_of_one_direction_is_refused(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert.Config, "__dataclass_fields__", {})
    with pytest.raises(UserError, match="'ltr' reads what came before, and encoder 'bert' cannot: its Config has no"):
        objective(ltr, text)


def test_the_objective_says_who_sees_whom(text: Text) -> None:
    for module, causal in ((mlm, False), (mlm_nsp, False), (ltr, True)):
        for attention in ("causal", "bidirectional"):
            assert objective(module, text, attention).setting.model.causal == causal
