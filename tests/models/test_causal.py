"""Left to right: nothing to the right is seen, over several layers, padded and packed."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.models.encoders.bert import Encoder
from bert_jax.models.heads import summary_positions
from bert_jax.models.masks import HIDDEN, Visible, bias
from bert_jax.models.transformer import stack_layers
from tests.models.helpers import as_jax, influence, random_params, tiny

LENGTH = 10
CONFIG = tiny(attention="causal", num_layers=3)
PARAMS = as_jax(random_params(CONFIG))["encoder"]
IDS = jnp.asarray(np.random.default_rng(0).integers(5, 64, (1, LENGTH)), jnp.int32)
ZEROS = jnp.zeros_like(IDS)
EARLIER = np.tri(LENGTH, dtype=bool)


def test_the_matrices_are_those_of_the_docstring() -> None:
    h = HIDDEN
    padded = bias(Visible(jnp.array([[1, 1, 1, 0]]), causal=True))
    assert padded.shape == (1, 1, 4, 4)
    assert np.array_equal(padded[0, 0], [[0, h, h, h], [0, 0, h, h], [0, 0, 0, h], [0, 0, 0, h]])
    packed = bias(Visible(jnp.ones((1, 4)), jnp.array([[1, 1, 2, 2]]), causal=True))
    assert np.array_equal(packed[0, 0], [[0, h, h, h], [0, 0, h, h], [h, h, 0, h], [h, h, 0, 0]])


def test_what_stands_to_the_right_is_never_read() -> None:
    seen = influence(
        Encoder(CONFIG), PARAMS, IDS, attention_mask=jnp.asarray(np.arange(LENGTH)[None, :] < 7, jnp.int32)
    )
    real = EARLIER[:7, :7]
    assert np.all(seen[:7, :7][~real] == 0)  # bit-identical
    assert np.all(seen[:7, :7][real] > 1e-5)  # the power check
    assert np.all(seen[:7, 7:] == 0)


def test_packed_pairs_are_causal_each_by_itself() -> None:
    ids = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 0, 0]])
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 0, 0, 0]])
    mask = jnp.asarray(ids > 0, jnp.int32)
    seen = influence(
        Encoder(CONFIG), PARAMS, IDS, attention_mask=mask, sequence_ids=jnp.asarray(ids), position_ids=positions
    )
    visible, real = (ids == ids.T) & EARLIER & (ids > 0), ids[0] > 0
    assert np.all(seen[real][~visible[real]] == 0)
    assert np.all(seen[real][visible[real]] > 1e-5)


def test_scanned_layers_are_causal_too() -> None:
    batch = {"input_ids": IDS, "token_type_ids": ZEROS, "attention_mask": jnp.ones_like(IDS)}
    unrolled: Any = Encoder(CONFIG).apply({"params": PARAMS}, batch)
    scanned: Any = Encoder(tiny(attention="causal", num_layers=3, layers="scanned")).apply(
        {"params": stack_layers(PARAMS)}, batch
    )
    np.testing.assert_allclose(scanned.sequence, unrolled.sequence, atol=1e-5)


def test_the_vector_of_a_whole_sequence_has_seen_it() -> None:
    mask = jnp.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    assert summary_positions(CONFIG, mask).tolist() == [[2], [3], [0]]
    assert summary_positions(tiny(), mask).tolist() == [[0], [0], [0]]
