"""Logits, loss and gradients that PyTorch gave for stored weights (written by tests/parity/test_heads.py)."""

import jax
import numpy as np
import pytest

from bert_jax.interchange.conversion import leaf
from bert_jax.models.encoders import bert
from tests.models.golden import tree_of
from tests.models.golden_heads import KINDS, SIZES, V, batch_of, golden, loss_of


@pytest.mark.parametrize("kind", KINDS)
def test_what_torch_gave(kind: str) -> None:
    stored = np.load(golden(kind))
    params = tree_of(stored, "params")
    batch = batch_of(kind)
    batch = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in batch.items()}
    config = bert.Config(V, **SIZES)
    quickly = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile, not to run
    step = jax.jit(
        jax.value_and_grad(lambda p: loss_of(kind, config, p, batch), has_aux=True), compiler_options=quickly
    )
    (loss, outputs), grads = step(params)
    assert abs(float(loss) - float(stored["loss"])) <= 2e-5 * max(1.0, abs(float(stored["loss"])))
    real = batch["attention_mask"] > 0
    for name, found in outputs.items():
        expected, found = stored[f"outputs/{name}"], np.asarray(found)
        if name == "sequence":
            expected, found = expected[real], found[real]
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
    compared = [name for name in stored.files if name.startswith("gradients/")]
    assert len(compared) >= 2
    for name in compared:
        expected = stored[name]
        error = np.abs(np.asarray(leaf(grads, name.removeprefix("gradients/"))) - expected).max()
        assert error <= 1e-5 * np.abs(expected).max(), name
