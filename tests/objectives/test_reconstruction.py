"""All tokens reconstructed: which are predicted, what is measured of the masked ones, and that it trains."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.encoders import bert, lstm
from bert_jax.objectives import mlm, reconstruction
from bert_jax.objectives.base import Setting
from bert_jax.task import Variables
from tests.models.helpers import random_params
from tests.objectives.test_terms import same_on_every_layout
from tests.objectives.texts import LENGTH, Text, counts_of, rows_of


def of_text(module: Any, text: Text, packing: Any) -> Any:
    corpus, tokenizer = text
    model = bert.Config(tokenizer.size, 16, 1, 2, 24, max_length=LENGTH, dropout_rate=0.0, attention_dropout_rate=0.0)
    return module.Objective(module.Config(packing=packing), Setting(model, {"phase1": LENGTH})).with_text(
        corpus, tokenizer
    )


def originals(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return the rows before masking, one token at a time."""
    ids = rows["input_ids"].copy()
    for row, slot in zip(*np.nonzero(rows["masked_weights"]), strict=True):
        ids[row, rows["masked_positions"][row, slot]] = rows["masked_labels"][row, slot]
    return ids


@pytest.mark.parametrize("packing", ["none", "packed"])
def test_targets_are_all_tokens_of_the_text(text: Text, packing: str) -> None:
    task, masked_alone = (of_text(module, text, packing) for module in (reconstruction, mlm))
    rows, (_, tokenizer) = rows_of(task, 6), text
    for name, value in rows_of(masked_alone, 6).items():
        np.testing.assert_array_equal(rows[name], value)  # corrupted alike
    rows["row_weights"][-1] = rows["masked_weights"][-1] = 0
    found = jax.device_get(task.inputs({name: jnp.asarray(x) for name, x in rows.items()}))
    ids, is_text = originals(rows), rows["attention_mask"] > 0
    is_text &= ~np.isin(ids, [tokenizer.role_ids["cls"], tokenizer.role_ids["sep"]])
    is_text[-1] = False
    np.testing.assert_array_equal(found["text_weights"], is_text)
    np.testing.assert_array_equal(found["masked_labels"][is_text], ids[is_text])
    assert (found["masked_labels"] != rows["input_ids"]).any()
    hidden = np.zeros(ids.shape)
    hidden[np.nonzero(rows["masked_weights"])[0], rows["masked_positions"][rows["masked_weights"] > 0]] = 1
    np.testing.assert_array_equal(found["masked_weights"], hidden)
    counts = counts_of(task, rows)
    assert counts["reconstruction"] == is_text.sum() > 4 * counts["mlm"] > 0


def test_the_masked_tokens_are_measured_as_mlm_measures_them(text: Text) -> None:
    task, other = (of_text(module, text, "packed") for module in (reconstruction, mlm))
    rows, variables = rows_of(task, 6), Variables(random_params(task.setting.model), {})
    found, expected = (jax.jit(lambda b, t=t: t.loss(variables, b, None).metrics)(rows) for t in (task, other))
    assert expected.keys() < found.keys()
    for name, wanted in expected.items():
        assert float(found[name].value) == pytest.approx(float(wanted.value), rel=1e-5), name
        assert float(found[name].count) == float(wanted.count), name
    assert float(found["reconstruction_loss"].count) > float(found["mlm_loss"].count)
    assert task.loss_weights == {"mlm": 0.0, "reconstruction": 1.0}
    size, unmasked = task.setting.model, LENGTH - rows["masked_positions"].shape[1]
    head = 6 * unmasked * size.hidden_size * (size.hidden_size + size.vocab_size)
    assert task.flops_per_row["phase1"] == other.flops_per_row["phase1"] + head


def test_the_loss_is_of_all_tokens(text: Text) -> None:
    """Against the definition in numpy."""
    task = of_text(reconstruction, text, "packed")
    rows, variables = rows_of(task, 3), Variables(random_params(task.setting.model), {})
    outputs = jax.jit(lambda batch: task.outputs(variables, batch))(rows)
    scores, ids = np.asarray(outputs["mlm_logits"], np.float64), originals(rows)
    nll = np.log(np.exp(scores).sum(-1)) - np.take_along_axis(scores, ids[..., None], -1)[..., 0]
    weights = np.asarray(task.inputs({name: jnp.asarray(x) for name, x in rows.items()})["text_weights"])
    term = jax.jit(lambda batch: task.loss(variables, batch, None).terms["reconstruction"])(rows)
    assert float(term.value) == pytest.approx((nll * weights).sum(), rel=1e-5)


@pytest.mark.parametrize("layout", [pytest.param("eight devices", marks=pytest.mark.heavy), "eight devices, sharded"])
def test_every_layout_gives_the_same_step(text: Text, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With micro-batches, and of a recurrent encoder."""
    with jax.enable_x64(True):
        corpus, tokenizer = text
        model = lstm.Config(tokenizer.size, 16, 2, max_length=LENGTH, dtype="float64")
        setting = Setting(model, {"phase1": LENGTH})
        task = reconstruction.Objective(reconstruction.Config(packing="packed"), setting).with_text(corpus, tokenizer)
        same_on_every_layout(task, monkeypatch, [layout])
