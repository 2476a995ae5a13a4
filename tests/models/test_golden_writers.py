"""What PyTorch gave for stored weights of models that write: the prefix mask of UniLM, and an encoder with a decoder.

The files are written by tests/parity/test_unilm.py and test_seq2seq.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.interchange.conversion import leaf
from bert_jax.models.encoders import bert, seq2seq
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.objectives import unilm
from bert_jax.objectives.base import Setting
from bert_jax.task import Variables
from tests.models.golden import GOLDEN, tree_of

Found = tuple[jax.Array, jax.Array]  # loss and logits


def of_unilm(batch: dict[str, Any]) -> Callable[[Any], Found]:
    config = bert.Config(64, 32, 3, 4, 64, max_length=32, type_vocab_size=6)
    task = unilm.Objective(unilm.Config(), Setting(config, {"phase1": batch["input_ids"].shape[1]}))

    def run(params: Any) -> Found:
        variables = Variables(params, {})
        nll = task.loss(variables, batch, None).terms["mlm"]
        return nll.value / nll.count, task.outputs(variables, batch)["mlm_logits"]

    return run


def of_seq2seq(batch: dict[str, Any]) -> Callable[[Any], Found]:
    """A BERT that reads a BERT."""
    fields: dict[str, Any] = {"layer_norm_eps": 1e-12, "lm_head": "bert", "word_scale": "one"}
    config = seq2seq.Config(64, 32, 2, 4, 48, max_length=24, num_decoder_layers=3, **fields)
    labels = batch.pop("labels")

    def run(params: Any) -> Found:
        logits: jax.Array = Model(config, (LM_HEAD,)).apply({"params": params}, batch)["mlm_logits"]  # type: ignore[index]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean(), logits

    return run


@pytest.mark.parametrize(("kind", "made"), [("unilm", of_unilm), ("seq2seq", of_seq2seq)])
def test_what_torch_gave(kind: str, made: Callable[[dict[str, Any]], Callable[[Any], Found]]) -> None:
    stored = np.load(GOLDEN.with_name(f"golden_{kind}.npz"))
    params, batch = tree_of(stored, "params"), jax.tree.map(jnp.asarray, tree_of(stored, "batch"))
    gradients = [name for name in stored.files if name.startswith("gradients/")]
    (loss, logits), found = jax.jit(jax.value_and_grad(made(batch), has_aux=True))(params)
    scores = stored["logits"]
    np.testing.assert_allclose(logits, scores, atol=2e-5 * max(1.0, np.abs(scores).max()), rtol=0)
    assert abs(float(loss) - float(stored["loss"])) <= 2e-5
    assert len(gradients) > 15
    for name in gradients:
        got, expected = np.asarray(leaf(found, name.removeprefix("gradients/"))), stored[name]
        assert np.abs(got - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max()), name
