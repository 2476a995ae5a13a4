"""Who sees whom: leak tests, each with a check that it could fail."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.encoders.bert import Encoder
from bert_jax.models.masks import HIDDEN, Visible, bias
from tests.models.helpers import as_jax, influence, random_params, tiny

LENGTH = 10
PARAMS = as_jax(random_params(tiny()))["encoder"]
IDS = jnp.asarray(np.random.default_rng(0).integers(5, 64, (1, LENGTH)), jnp.int32)
ZEROS = jnp.zeros_like(IDS)


def test_bias_matrices_are_those_of_the_docstrings() -> None:
    h = HIDDEN
    assert np.array_equal(bias(Visible(jnp.array([[1, 1, 1, 0]])))[0, 0], [[0, 0, 0, h]])
    expected = [[0, 0, h, h], [0, 0, h, h], [h, h, 0, h], [h, h, h, h]]
    assert np.array_equal(bias(Visible(jnp.ones((1, 4)), jnp.array([[1, 1, 2, 0]])))[0, 0], expected)
    padded = bias(Visible(jnp.array([[1, 1, 1, 1, 0]]), window=1))[0, 0]
    assert np.array_equal(padded, [[0, 0, h, h, h], [0, 0, 0, h, h], [h, 0, 0, 0, h], [h, h, 0, 0, h], [h, h, h, 0, h]])
    ids = jnp.array([[1, 1, 1, 2, 2]])
    packed, causal = (bias(Visible(ids, ids, causal, 1))[0, 0] for causal in (False, True))
    assert np.array_equal(packed, [[0, 0, h, h, h], [0, 0, 0, h, h], [h, 0, 0, h, h], [h, h, h, 0, 0], [h, h, h, 0, 0]])
    assert np.array_equal(causal, [[0, h, h, h, h], [0, 0, h, h, h], [h, 0, 0, h, h], [h, h, h, 0, h], [h, h, h, 0, 0]])


def test_padding_is_never_read() -> None:
    mask = jnp.asarray(np.arange(LENGTH)[None, :] < 7, jnp.int32)
    seen = influence(Encoder(tiny()), PARAMS, IDS, attention_mask=mask)
    assert np.all(seen[:7, 7:] == 0)  # real queries, padded keys: bit-identical
    assert np.all(seen[:7, :7] > 1e-5)  # real keys: the power check


def test_packed_pairs_do_not_see_each_other() -> None:
    ids = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 0, 0]])
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 0, 0, 0]])
    seen = influence(
        Encoder(tiny()),
        PARAMS,
        IDS,
        attention_mask=jnp.asarray(ids > 0, jnp.int32),
        sequence_ids=jnp.asarray(ids),
        position_ids=positions,
    )
    visible = (ids == ids.T) & (ids > 0) & (ids.T > 0)
    real = ids[0] > 0
    assert np.all(seen[real][~visible[real]] == 0)
    assert np.all(seen[visible] > 1e-5)


def test_a_packed_row_gives_what_its_pairs_give_alone() -> None:
    ids = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]])
    positions = jnp.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]])
    row = {"input_ids": IDS, "token_type_ids": ZEROS, "attention_mask": (ids > 0).astype(jnp.int32)}
    packed = {**row, "position_ids": positions, "sequence_ids": ids}
    parts = (slice(0, 4), slice(4, 9))
    alone = [{name: x[:, part] for name, x in row.items()} for part in parts]
    read = jax.jit(lambda batches: [Encoder(tiny()).apply({"params": PARAMS}, batch).sequence for batch in batches])  # type: ignore[union-attr]
    together, *apart = read([packed, *alone])
    for part, wanted in zip(parts, apart, strict=True):
        np.testing.assert_allclose(together[:, part], wanted, atol=1e-5)
