"""Which layers of a teacher teach, and what is compared of them."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.losses.cross_entropy import prediction
from bert_jax.losses.distillation import _soft_losses
from bert_jax.losses.teacher import SoftConfig, TeacherConfig, pairs_of
from bert_jax.models.encoders import albert
from bert_jax.models.model import Model
from bert_jax.models.transformer import factors_of


def test_the_map_of_layers() -> None:
    """A student of 4 layers learns from layers 3, 6, 9 and 12 of 12 (Jiao et al. 2020, section 4)."""
    assert pairs_of("uniform", 4, 12) == ((0, 0), (1, 3), (2, 6), (3, 9), (4, 12))
    assert pairs_of("every_second", 6, 12) == ((0, 0), (1, 2), (2, 4), (3, 6), (4, 8), (5, 10), (6, 12))
    assert pairs_of("last", 6, 12) == ((6, 12),)
    assert pairs_of((1, 12), 2, 12) == ((0, 0), (1, 1), (2, 12))


def test_layers_that_share_their_parameters_have_scores_of_their_own() -> None:
    batch = {name: np.ones((2, 8), np.int32) for name in ("input_ids", "attention_mask", "token_type_ids")}
    batch["input_ids"] = np.arange(16, dtype=np.int32).reshape(2, 8)
    config = albert.Config(16, 16, 3, 2, 32, max_length=8, embedding_size=8)
    params = Model(config).init(jax.random.key(0), batch)
    found = []
    for layers in ("unrolled", "scanned"):
        model = Model(dataclasses.replace(config, layers=layers))
        _, seen = model.apply(params, batch, mutable=["intermediates"])
        found.append(np.stack([np.stack(one) for one in factors_of(seen["intermediates"]["encoder"])]))
    assert found[0].shape == (3, 2, 2, 8, 2, 8)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0][0] - found[0][2]).max() > 1e-3


def test_terms_of_a_loss_whose_only_term_has_no_name() -> None:
    config = TeacherConfig("there", soft=SoftConfig(terms=("mlm",)))
    with pytest.raises(UserError, match="has one term, without a name: leave it out"):
        _soft_losses(config, {"": prediction("logits", "labels", "label_weights")})
