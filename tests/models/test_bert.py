"""One model, whatever the way it is computed."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders.bert import Encoder
from bert_jax.models.transformer import stack_layers, unstack_layers
from tests.models.helpers import as_jax, loss, pretraining, random_batch, random_params, random_targets, tiny

RNG = RowRng.create(0, 3, jnp.arange(4))


@functools.cache
def value_and_gradient(config: ModelConfig) -> tuple[Any, Any]:
    """Return value and gradient with dropout, at the same unrolled parameters for every config."""
    model, params = pretraining(config), random_params(tiny())
    params = stack_layers(params) if config.layers == "scanned" else params
    batch, targets = as_jax(random_batch()), as_jax(random_targets())
    value, gradient = jax.jit(jax.value_and_grad(lambda p: loss(model, p, batch, targets, RNG)))(as_jax(params))
    return value, unstack_layers(gradient) if config.layers == "scanned" else gradient


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Each leaf within ``tolerance`` of its largest entry; key biases, whose gradient is rounding noise, absolutely."""

    def check(path: Any, a: Any, e: Any) -> None:
        key_bias = [k.key for k in path[-2:]] == ["key", "bias"]
        scale = 1.0 if key_bias else max(float(np.abs(e).max()), 1e-9)
        np.testing.assert_allclose(a, e, atol=tolerance * scale, rtol=0, err_msg=str(path))

    jax.tree_util.tree_map_with_path(check, actual, expected)


def test_scanned_and_unrolled_are_one_model() -> None:
    value, gradient = value_and_gradient(tiny())
    scanned_value, scanned_gradient = value_and_gradient(tiny(layers="scanned"))
    assert scanned_value == pytest.approx(float(value), rel=1e-6)
    assert_close(scanned_gradient, gradient, 1e-5)


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
@pytest.mark.parametrize("remat", ["dots", "full"])
def test_remat_changes_nothing(layers: Any, remat: Any) -> None:
    value, gradient = value_and_gradient(tiny(layers=layers))
    remat_value, remat_gradient = value_and_gradient(tiny(layers=layers, remat=remat))
    assert remat_value == pytest.approx(float(value), rel=1e-6)
    assert_close(remat_gradient, gradient, 1e-5)


def test_dropout_does_not_depend_on_the_micro_batch() -> None:
    model, params, batch = pretraining(tiny()), as_jax(random_params(tiny())), as_jax(random_batch())

    @jax.jit
    def logits(part: Any, rng: RowRng | None) -> jax.Array:
        return model.apply({"params": params}, part, rng)["mlm_logits"]  # type: ignore[call-overload, index, return-value]

    whole = logits(batch, RNG)
    assert float(jnp.abs(whole - logits(batch, None)).max()) > 0.1
    for rows in (np.array([0, 2]), np.array([3, 1])):
        part = {name: value[rows] for name, value in batch.items()}
        np.testing.assert_allclose(logits(part, RowRng.create(0, 3, jnp.asarray(rows))), whole[rows], atol=1e-5)


def test_stack_and_unstack_are_inverse_and_keep_numpy() -> None:
    params = random_params(tiny())
    back = unstack_layers(stack_layers(params))
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, back, params)))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(stack_layers(params)))
    scanned = random_params(tiny(layers="scanned"))
    assert jax.tree.structure(stack_layers(params)) == jax.tree.structure(scanned)


def test_all_hidden_states() -> None:
    batch = as_jax(random_batch())
    ids = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    unrolled, scanned = Encoder(tiny()), Encoder(tiny(layers="scanned"))

    @jax.jit
    def run(params: Any) -> Any:
        every = unrolled.apply({"params": params}, ids, hidden_states="all")
        again = scanned.apply({"params": stack_layers(params)}, ids, hidden_states="all")
        return every, again, unrolled.apply({"params": params}, ids)

    every, again, alone = run(as_jax(random_params(tiny()))["encoder"])
    assert every.hidden.shape == (3, 4, 16, 32)
    np.testing.assert_allclose(every.hidden, again.hidden, atol=1e-5)
    np.testing.assert_array_equal(every.hidden[-1], every.sequence)
    np.testing.assert_array_equal(every.sequence, alone.sequence)
    assert alone.hidden is None


def test_initial_values() -> None:
    config = tiny(vocab_size=2000, hidden_size=64, num_layers=1)
    params = nn.unbox(jax.jit(pretraining(config).init)(jax.random.key(0), random_batch()))["params"]
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path[-1].key
        if name in ("bias", "output_bias", "scale"):
            assert np.all(np.asarray(leaf) == (name == "scale")), path
        else:
            assert float(jnp.abs(leaf).max()) <= 2 * 0.02 + 1e-7, path
    words = params["encoder"]["embeddings"]["word_embeddings"]
    assert float(words.std()) == pytest.approx(0.88 * 0.02, rel=0.01)  # of a normal cut at two deviations


def test_every_parameter_has_logical_axes() -> None:
    for layers, leading in (("unrolled", ()), ("scanned", ("layers",))):
        boxed = jax.eval_shape(pretraining(tiny(layers=layers)).init, jax.random.key(0), random_batch())["params"]
        boxes = jax.tree.leaves(boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
        assert all(isinstance(b, nn.LogicallyPartitioned) and len(b.names) == b.value.ndim for b in boxes)
        encoder = boxed["encoder"]
        layer = encoder["layers"] if leading else encoder["layer_0"]
        assert layer["attention"]["query"]["kernel"].names == (*leading, "embed", "heads", "head_dim")
        assert layer["attention"]["output"]["kernel"].names == (*leading, "heads", "head_dim", "embed")
        assert layer["mlp"]["input"]["kernel"].names == (*leading, "embed", "mlp")
        assert encoder["embeddings"]["word_embeddings"].names == ("vocab", "embed")


def test_bfloat16_is_close_and_parameters_stay_float32() -> None:
    value, gradient = value_and_gradient(tiny())
    half_value, half_gradient = value_and_gradient(tiny(dtype="bfloat16"))
    assert half_value.dtype == jnp.float32
    assert half_value == pytest.approx(float(value), rel=0.02)
    assert abs(float(half_value) - float(value)) > 0  # it did compute in bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half_gradient))
    words = ("encoder", "embeddings", "word_embeddings")
    a, b = (np.ravel(g[words[0]][words[1]][words[2]]) for g in (gradient, half_gradient))
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.99


def test_rows_longer_than_the_positions_are_refused() -> None:
    batch = random_batch(length=40)
    with pytest.raises(UserError, match="rows of 40 positions exceed the model's 32"):
        pretraining(tiny()).init(jax.random.key(0), batch)
