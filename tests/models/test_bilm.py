"""ELMo: what each direction sees, packed and padded rows, its state across rows, its counts, and torch's values."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interchange.conversion import leaf
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bilm
from bert_jax.models.heads import Classifier, LayerMix
from bert_jax.models.model import LM_HEAD, POOLER, Model, Part, shapes_of
from tests.models.golden import tree_of
from tests.models.golden_bilm import GOLDEN, LENGTH, F, P, V, batch_of, config_of, loss_of

DOUBLE = config_of(dtype="float64")
FORWARD, BACKWARD = slice(0, P), slice(P, None)
IDS = np.random.default_rng(0).integers(0, V, (1, LENGTH))


@functools.cache
def params_of(config: bilm.Config) -> Any:
    with jax.enable_x64(True):
        _, shapes = shapes_of(Model(config, (POOLER, LM_HEAD)), ("cls_positions",))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda one: rng.normal(0.0, 0.5, one.shape), shapes)


@functools.cache
def compiled(config: bilm.Config) -> Any:
    return jax.jit(lambda batch: Model(config, (POOLER, LM_HEAD)).apply({"params": params_of(config)}, batch))


def run(ids: np.ndarray, config: bilm.Config = DOUBLE, **others: Any) -> dict[str, np.ndarray]:
    """Return the outputs in float64."""
    with jax.enable_x64(True):
        batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), **others}
        return jax.device_get(compiled(config)(jax.tree.map(jnp.asarray, batch)))  # type: ignore[no-any-return]


def test_what_torch_gave() -> None:
    stored = np.load(GOLDEN)
    params, batch = tree_of(stored, "params"), jax.tree.map(jnp.asarray, tree_of(stored, "batch"))
    config = config_of(clip=None)
    run = jax.jit(jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True))
    (loss, hidden), gradients = run(params)
    assert abs(float(loss) - float(stored["loss"])) <= 2e-5
    np.testing.assert_allclose(hidden, stored["hidden"], atol=2e-5, rtol=0)
    names = [name for name in stored.files if name.startswith("gradients/")]
    assert len(names) == 3 + 2 * 2 * 4
    for name in names:
        got, expected = np.asarray(leaf(gradients, name.removeprefix("gradients/"))), stored[name]
        assert np.abs(got - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max()), name


def test_each_direction_sees_its_side_alone_and_both_together_see_all() -> None:
    """Each token is replaced: the vectors of the other side do not change in any bit, all others do."""
    tokens = np.tile(IDS, (LENGTH + 1, 1))
    tokens[np.arange(LENGTH), np.arange(LENGTH)] = (IDS[0] + 1) % V
    found = run(tokens)
    changes = {name: np.abs(found[name][:-1] - found[name][-1]) for name in found}  # [replaced, place, D]
    replaced, place = np.indices((LENGTH, LENGTH))
    for half, seen, logits in (
        (FORWARD, replaced <= place, "forward_logits"),
        (BACKWARD, replaced >= place, "backward_logits"),
    ):
        for change in (changes["sequence"][..., half], changes[logits]):
            assert np.all(change[~seen] == 0)
            assert change[seen].max(axis=-1).min() > 1e-6  # the power check
    assert changes["sequence"].max(axis=-1).min() > 1e-6, "the concatenation sees every token"


def test_the_first_layer_has_no_residual_connection_and_the_others_have() -> None:
    params = jax.tree.map(np.copy, params_of(DOUBLE))
    for layer in params["encoder"]["forward"].values():
        layer["projection"] *= 0  # each LSTM returns zeros
    with jax.enable_x64(True):
        encoder = bilm.Encoder(DOUBLE)
        batch = {"input_ids": jnp.asarray(IDS), "attention_mask": jnp.ones_like(IDS)}
        hidden = encoder.apply({"params": params["encoder"]}, batch, None, "all").hidden  # type: ignore[union-attr]
        assert hidden.shape == (3, 1, LENGTH, 2 * P)
        np.testing.assert_array_equal(hidden[0, ..., FORWARD], hidden[0, ..., BACKWARD])  # the embeddings, twice
        assert not hidden[1:, ..., FORWARD].any()
        params["encoder"]["forward"]["layer_0"]["projection"] += 0.3
        hidden = encoder.apply({"params": params["encoder"]}, batch, None, "all").hidden  # type: ignore[union-attr]
        np.testing.assert_array_equal(hidden[2, ..., FORWARD], hidden[1, ..., FORWARD])
        assert hidden[1, ..., FORWARD].any()


def test_packed_sequences_are_as_if_alone() -> None:
    sequence_ids = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 0]])
    firsts = np.array([[0, 4, 7]])
    packed = run(IDS, sequence_ids=sequence_ids, attention_mask=(sequence_ids > 0) * 1, cls_positions=firsts)
    for number, part in enumerate((slice(0, 4), slice(4, 7), slice(7, 8))):
        alone = run(IDS[:, part])
        for name in ("sequence", "forward_logits", "backward_logits"):
            np.testing.assert_allclose(packed[name][:, part], alone[name], atol=1e-12, rtol=0)
        np.testing.assert_allclose(packed["pooled"][:, number], alone["pooled"], atol=1e-12, rtol=0)
    assert np.abs(run(IDS)["sequence"] - packed["sequence"]).max() > 0.01  # the power check


def test_padding_is_not_read_and_a_text_is_what_each_direction_has_at_its_end() -> None:
    mask = (np.arange(LENGTH) < 6)[None] * 1
    padded, alone = run(IDS, attention_mask=mask), run(IDS[:, :6])
    np.testing.assert_allclose(padded["sequence"][:, :6], alone["sequence"], atol=1e-12, rtol=0)
    assert not padded["sequence"][:, 6:].any()
    forward, backward = alone["sequence"][0, -1, FORWARD], alone["sequence"][0, 0, BACKWARD]
    for found in (padded, alone):
        np.testing.assert_allclose(found["pooled"][0], np.concatenate([forward, backward]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_two_rows_with_the_state_are_one_long_row(clip: float | None) -> None:
    """Of the forward direction; the backward direction begins anew in each row."""
    config = config_of(dtype="float64", memory_length=1, clip=clip)
    with jax.enable_x64(True):
        past = {name: np.zeros((1, *one.shape), one.dtype) for name, one in bilm.Encoder.past(config).items()}
    whole, begin = run(IDS, config, **past), run(IDS[:, :4], config, **past)
    end = run(IDS[:, 4:], config, **{name: begin[name] for name in past})
    for name, half in (("sequence", FORWARD), ("forward_logits", slice(None))):
        both = np.concatenate([begin[name], end[name]], axis=1)
        np.testing.assert_allclose(both[..., half], whole[name][..., half], atol=1e-10, rtol=0)
    for name in past:
        np.testing.assert_allclose(end[name], whole[name], atol=1e-10, rtol=0)
    anew = run(IDS[:, 4:], config, **past)
    np.testing.assert_array_equal(anew["sequence"][..., BACKWARD], end["sequence"][..., BACKWARD])
    assert np.abs(anew["sequence"] - end["sequence"])[..., FORWARD].max() > 0.01  # the power check
    assert (np.abs(whole["past_cells"]).max() <= 0.2) == (clip is not None)


def test_no_gradient_flows_into_the_state() -> None:
    config = config_of(memory_length=1)
    past = {name: jnp.ones((1, *one.shape), one.dtype) for name, one in bilm.Encoder.past(config).items()}
    batch = {"input_ids": jnp.asarray(IDS), "attention_mask": jnp.ones_like(IDS), **past}

    def state_after(params: Any) -> jax.Array:
        outputs: Any = Model(config).apply({"params": params}, batch)
        return sum(outputs[name].sum() for name in past)  # type: ignore[return-value]

    params = {"encoder": jax.tree.map(jnp.float32, params_of(DOUBLE)["encoder"])}
    assert not any(np.any(one) for one in jax.tree.leaves(jax.grad(state_after)(params)))


@pytest.mark.parametrize("layers", [1, 3])
def test_counts_are_the_kernels_of_the_parameters(layers: int) -> None:
    config = config_of(num_layers=layers)
    sizes = jax.tree.map(lambda one: math.prod(one.shape), shapes_of(Model(config))[1]["encoder"])
    biases = sum(sizes[name][f"layer_{i}"].pop("bias") for name in ("forward", "backward") for i in range(layers))
    assert biases == 2 * layers * 4 * F
    assert config.num_parameters == sum(jax.tree.leaves(sizes))
    del sizes["embeddings"]
    assert config.products(7) == 7 * sum(jax.tree.leaves(sizes)), "each entry is multiplied once for each token"


def test_the_published_sizes() -> None:
    """Of the LSTMs alone; the rest of 93.6, 28.0 and 13.6 million is of characters (allennlp.org/elmo)."""
    found = {name: bilm.Config(1, **size).products(1) for name, size in bilm.SIZES.items()}
    assert (found["base"], found["medium"], found["small"]) == (75_497_472, 18_874_368, 4_718_592)


def test_a_mix_of_frozen_layers_learns_its_weights_and_the_head_alone() -> None:
    """ELMo's weights sum to 1, all layers count alike at first, and no gradient reaches the encoder."""
    parts = (
        Part.of("layer_mix", LayerMix, layers="weighted_sum_with_embeddings"),
        Part.of("classifier", Classifier, num_outputs=3, vectors="sequence"),
    )
    config = config_of()
    model = Model(config, parts, trains_encoder=False)
    batch = {name: jnp.asarray(x) for name, x in batch_of().items() if name != "row_weights"}
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda one: jnp.asarray(rng.normal(0, 0.5, one.shape), one.dtype), shapes_of(model)[1])
    assert params["layer_mix"]["weights"].shape == (3,)
    gradients = jax.grad(lambda p: (model.apply({"params": p}, batch)["logits"] ** 2).sum())(params)  # type: ignore[index]
    assert not any(np.any(one) for one in jax.tree.leaves(gradients["encoder"]))
    assert all(np.all(one) for one in jax.tree.leaves({n: gradients[n] for n in ("layer_mix", "classifier")}))
    assert abs(float(gradients["layer_mix"]["weights"].sum())) < 1e-4, "softmax: what one gains, the others lose"

    encoder: Any = bilm.Encoder(config)
    hidden = encoder.apply({"params": params["encoder"]}, batch, None, "all").hidden
    fresh = {"weights": jnp.zeros(3), "scale": jnp.ones(())}
    mixed: Any = LayerMix(config, "weighted_sum_with_embeddings").apply({"params": fresh}, {"hidden": hidden}, {}, None)
    np.testing.assert_allclose(mixed["sequence"], hidden.mean(axis=0), atol=1e-6)


def test_dropout_differs_by_direction_and_layer() -> None:
    config = config_of(dropout_rate=0.5)
    params = jax.tree.map(jnp.float32, params_of(DOUBLE)["encoder"])
    params["backward"] = params["forward"]
    same = {"input_ids": jnp.full((1, 1), 3), "attention_mask": jnp.ones((1, 1), jnp.int32)}
    rng = RowRng.create(0, 0, jnp.zeros(1, jnp.uint32))
    encoder = bilm.Encoder(config)
    hidden = encoder.apply({"params": params}, same, rng, "all").hidden  # type: ignore[union-attr]
    first, second = hidden[1, 0, 0, FORWARD], hidden[1, 0, 0, BACKWARD]
    assert np.abs(first - second).max() > 1e-3
    without = encoder.apply({"params": params}, same, None, "all").hidden  # type: ignore[union-attr]
    np.testing.assert_array_equal(without[1, 0, 0, FORWARD], without[1, 0, 0, BACKWARD])
    assert np.abs(first - without[1, 0, 0, FORWARD]).max() > 1e-3
    np.testing.assert_array_equal(hidden[0], without[0])  # the embeddings of a mix are whole


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"hidden_size": 7}, "config.model.hidden_size is 7; an even number is needed: half of it is the width of a"),
        ({"cell_size": 0}, "config.model.cell_size is 0; 1 to 1,048,576 are allowed"),
        ({"clip": 0.0}, "config.model.clip is 0.0; more than 0, or None, is needed"),
        ({"memory_length": 20}, "config.model.memory_length is 20; 0 and 1 are allowed: a state is one vector"),
    ],
)
def test_a_wrong_size_is_one_line(field: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_of(**field)
