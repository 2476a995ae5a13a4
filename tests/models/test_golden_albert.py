"""Outputs, loss and gradients that PyTorch gave for stored weights (written by tests/parity/test_albert.py)."""

from typing import Literal

import jax
import numpy as np
import pytest

from bert_jax.interchange.conversion import leaf
from bert_jax.models.encoders import albert
from tests.models.golden import tree_of
from tests.models.golden_albert import GOLDEN, SIZES, V, loss_of


@pytest.mark.parametrize("layers", ["scanned", pytest.param("unrolled", marks=pytest.mark.heavy)])
def test_what_torch_gave(layers: Literal["unrolled", "scanned"]) -> None:
    stored = np.load(GOLDEN)
    params, batch = (tree_of(stored, kind) for kind in ("params", "batch"))
    gradients = [name for name in stored.files if name.startswith("gradients/")]
    config = albert.Config(V, **SIZES, layers=layers)
    (loss, outputs), grads = jax.jit(jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True))(params)
    np.testing.assert_allclose(outputs["mlm_logits"], stored["mlm_logits"], atol=2e-5, rtol=0)
    np.testing.assert_allclose(outputs["sop_logits"][:, 0], stored["sop_logits"], atol=2e-5, rtol=0)
    assert abs(float(loss) - float(stored["loss"])) <= 2e-5
    assert len(gradients) == len(jax.tree.leaves(params)) - 1  # that of the keys' bias is rounding
    for name in gradients:
        found, expected = np.asarray(leaf(grads, name.removeprefix("gradients/"))), stored[name]
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), name
