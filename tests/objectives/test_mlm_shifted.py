"""Masked tokens predicted at the position before them: what is read, what it costs, and what is learned together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.encoders import bert
from bert_jax.objectives import ltr, mlm, mlm_shifted
from bert_jax.objectives.base import Setting
from bert_jax.task import Variables
from tests.models.helpers import random_params
from tests.objectives.texts import LENGTH, Text, counts_of, rows_of


def of_text(module: Any, text: Text, **config: Any) -> Any:
    corpus, tokenizer = text
    model = bert.Config(tokenizer.size, 16, 2, 2, 24, max_length=LENGTH, dropout_rate=0.0, attention_dropout_rate=0.0)
    made = module.Objective(module.Config(**{"arrangement": "sentences", **config}), Setting(model, {"phase1": LENGTH}))
    return made.with_text(corpus, tokenizer)


@pytest.mark.parametrize("packing", [pytest.param("none", marks=pytest.mark.heavy), "packed", "bucketed"])
def test_rows_are_those_of_mlm_and_logits_are_of_the_position_before(text: Text, packing: str) -> None:
    pairs: dict[str, Any] = {"packing": packing, "arrangement": "sentence_pairs"}
    task, other = (of_text(module, text, **pairs) for module in (mlm_shifted, mlm))
    rows = rows_of(task, 4)
    for name, value in rows_of(other, 4).items():
        np.testing.assert_array_equal(rows[name], value)
    variables = Variables(random_params(task.setting.model), {})
    found = jax.jit(lambda batch: task.outputs(variables, batch))(rows)["mlm_logits"]
    places = np.broadcast_to(np.arange(rows["input_ids"].shape[1], dtype=np.int32), rows["input_ids"].shape)
    every = jax.jit(lambda batch: other.outputs(variables, batch))({**rows, "masked_positions": places})["mlm_logits"]
    row, slot = np.nonzero(rows["masked_weights"])
    before = rows["masked_positions"][row, slot] - 1
    np.testing.assert_allclose(found[row, slot], every[row, before], atol=1e-6)
    if packing == "packed":
        same = rows["sequence_ids"][row, before] == rows["sequence_ids"][row, before + 1]
        assert same.all()
        assert rows["sequence_ids"].max() > 1
    terms = jax.jit(lambda batch: task.loss(variables, batch, None).terms)(rows)
    scores = np.asarray(every, np.float64)[row, before]
    labels = rows["masked_labels"][row, slot]
    nll = np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(row)), labels]
    assert float(terms["mlm"].value) == pytest.approx(nll.sum(), rel=1e-5)
    assert counts_of(task, rows)["mlm"] == len(row)


def test_the_first_token_of_a_sequence_has_no_position_before_it() -> None:
    task = mlm_shifted.Objective(
        mlm_shifted.Config(packing="packed"), Setting(bert.Config(40, 16, 1, 2, 24, max_length=16), {"phase1": 16})
    )
    rows = {"masked_positions": np.array([[0, 3, 5, 0]]), "masked_weights": np.array([[1.0, 1.0, 1.0, 0.0]])}
    within = np.array([[0, 1, 2, 3, 4, 0, 1, 2]])
    for others, weights in (({"position_ids": within}, [0, 1, 0, 0]), ({}, [0, 1, 1, 0])):
        found = task.inputs({name: jnp.asarray(x) for name, x in {**rows, **others}.items()})
        assert found["masked_weights"].tolist() == [weights]
        assert found["masked_positions"].tolist() == [[0, 2, 4, 0]]


def test_no_prediction_sees_its_token_and_both_orders_answer_at_one_place(text: Text) -> None:
    """A masked token, whatever it was, changes nothing; the tokens after it do. ``ltr`` reads the same vectors."""
    task, ahead = of_text(mlm_shifted, text), of_text(ltr, text)
    rows, variables = rows_of(task, 1), Variables(random_params(task.setting.model), {})
    run = jax.jit(lambda batch: task.outputs(variables, batch)["mlm_logits"][0, 0])
    place = int(rows["masked_positions"][0, 0])
    before = run(rows)
    ids = rows["input_ids"].copy()
    ids[0, place + 1] = 5 + (ids[0, place + 1] + 1) % 50
    assert np.abs(run({**rows, "input_ids": ids}) - before).max() > 1e-5, "both sides are seen"
    np.testing.assert_array_equal(run({**rows, "masked_labels": rows["masked_labels"] * 0}), before)
    found = ahead.inputs({name: jnp.asarray(x) for name, x in rows_of(ahead, 1).items()})
    shifted = task.inputs({name: jnp.asarray(x) for name, x in rows.items()})
    assert int(shifted["masked_positions"][0, 0]) == int(found["masked_positions"][0, place - 1]) == place - 1
    assert int(found["next_token_labels"][0, place - 1]) == int(rows["masked_labels"][0, 0])
