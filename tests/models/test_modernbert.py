"""ModernBERT: published sizes and initial values, who sees whom in a layer, scans, packed rows, torch's values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.interchange.conversion import leaf
from bert_jax.interchange.family import family_of
from bert_jax.models.config import Block
from bert_jax.models.encoders import bert, modernbert
from bert_jax.models.heads import Classifier
from bert_jax.models.model import LM_HEAD, POOLER, Model, Part, fresh_params
from bert_jax.models.transformer import scanned_from, stack_layers, unstack_layers
from tests.models.golden import tree_of
from tests.models.golden_modernbert import GOLDEN, LENGTH, batch_of, config_of

CLASSIFIER = Part.of("classifier", Classifier, num_outputs=9)


def random_params(config: modernbert.Config) -> Any:
    rng, shapes = np.random.default_rng(0), jax.eval_shape(lambda: fresh_params(config))
    return jax.tree_util.tree_map_with_path(
        lambda path, x: (rng.normal(0, 0.2, x.shape) + (path[-1].key == "scale")).astype(np.float32), shapes
    )


def test_parameter_counts_are_the_published_ones() -> None:
    """ModernBERT's with its head (Hugging Face), and Ettin's encoders (section 20 of its sizes)."""

    def count(size: str, *parts: str) -> int:
        config = modernbert.Config(50_368, **modernbert.SIZES[size], layers="scanned")  # traced quickly
        shapes = jax.eval_shape(lambda: fresh_params(config))
        return sum(x.size for part in ("encoder", *parts) for x in jax.tree.leaves(shapes[part]))

    assert (count("base", "mlm_head"), count("large", "mlm_head")) == (149_655_232, 395_881_664)
    ettin = [count(f"ettin_{size}") for size in ("17m", "32m", "68m", "150m", "400m", "1b")]
    assert ettin == [16_797_440, 31_883_136, 68_144_640, 149_014_272, 394_781_696, 1_028_050_688]
    base = modernbert.Config(50_368)
    assert base == modernbert.Config(50_368, **modernbert.SIZES["base"])
    assert base.num_parameters == 149_014_272 - (2 * 22 + 1) * 768
    for fields in modernbert.SIZES.values():
        build(modernbert.Config, {"vocab_size": 10, **fields}, "config.model")


def test_initial_values_are_the_published_ones() -> None:
    """A normal distribution that is cut at two deviations has 0.8796 of its deviation (initialization.py)."""
    params = fresh_params(modernbert.Config(1024, 128, 7, 2, 192, layers="scanned"))
    layer = params["encoder"]["layers"]["layer_0"]
    of_in, of_out = 0.02 * 0.8796, 0.02 * 0.8796 / np.sqrt(2 * 7)
    wanted = {
        of_in: [layer["attention"]["qkv"], layer["mlp"]["input"], params["mlm_head"]["transform"]],
        of_out: [layer["attention"]["output"], layer["mlp"]["output"]],
    }
    for deviation, kernels in wanted.items():
        for kernel in kernels:
            assert np.std(kernel["kernel"]) == pytest.approx(deviation, rel=0.02)
    assert np.std(params["encoder"]["embeddings"]["word_embeddings"]) == pytest.approx(of_in, rel=0.02)
    head = Model(modernbert.Config(64, 256, 1, 4, 8), (POOLER, CLASSIFIER))
    batch = {name: np.ones((1, 4), int) for name in ("input_ids", "attention_mask")}
    drawn: Any = jax.jit(lambda key: head.init(key, batch)["params"]["classifier"])(jax.random.key(0))
    assert np.std(nn.unbox(drawn)["dense"]["kernel"]) == pytest.approx(0.8796 / 16, rel=0.1)


def test_a_local_layer_sees_what_is_near_and_a_global_one_everything() -> None:
    """The gradient of a token's vector into the embeddings of the others, by layer; 4 tokens away is near, 5 is not."""

    def reach(every: int) -> np.ndarray:
        config = config_of(num_layers=1 if every == 1 else 2, global_every=every)
        params = random_params(config)["encoder"]
        if every > 1:  # the first layer is global: it adds nothing here
            params["layer_0"]["attention"]["output"]["kernel"] *= 0
        ids = np.arange(40, dtype=np.int32)[None]

        def middle(table: Any) -> Any:
            own = params | {"embeddings": params["embeddings"] | {"word_embeddings": table}}
            batch = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            return modernbert.Encoder(config).apply({"params": own}, batch).sequence[0, 20, 3]

        return np.abs(jax.jit(jax.grad(middle))(params["embeddings"]["word_embeddings"])).sum(-1)[:40]

    assert np.flatnonzero(reach(2)).tolist() == [*range(16, 25)]
    assert (reach(1) > 0).all()


def test_scanned_layers_compute_what_unrolled_ones_do() -> None:
    """Also the vectors of all layers and gradients; and back again, the parameters have the same bits."""
    batch = {name: x for name, x in batch_of().items() if name != "labels"}
    plain, scanned = (config_of(num_layers=7, layers=layers) for layers in ("unrolled", "scanned"))
    params, groups = random_params(plain)["encoder"], scanned_from(plain.blocks)
    stacked = stack_layers(params, groups)
    shapes = jax.eval_shape(lambda: fresh_params(scanned))["encoder"]
    assert jax.tree.map(jnp.shape, stacked) == jax.tree.map(jnp.shape, shapes)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked, groups), params)

    def total(params: Any, config: Any) -> Any:
        found: Any = modernbert.Encoder(config).apply({"params": params}, batch, hidden_states="all")
        return jnp.sum(found.sequence**2), found.hidden

    grad = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1)
    (value, hidden), gradient = grad(params, plain)
    (other, every), back = grad(stacked, scanned)
    assert float(other) == pytest.approx(float(value), rel=1e-5)
    np.testing.assert_allclose(every, hidden, atol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max()),
        unstack_layers(back, groups),
        gradient,
    )


def test_as_few_layers_as_possible_are_compiled() -> None:
    assert scanned_from((Block(),) * 12) == (0, 1)
    sizes = {name: scanned_from(modernbert.Config(8, **fields).blocks) for name, fields in modernbert.SIZES.items()}
    assert {name: sizes[name] for name in ("base", "large", "ettin_17m")} == dict.fromkeys(
        ("base", "large", "ettin_17m"), (1, 3)
    )
    assert scanned_from(bert.Config(8).blocks) == (0, 1)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_text_is_pooled_alike_alone_and_in_a_packed_row(pooling: Any) -> None:
    config = config_of(classifier_pooling=pooling)
    params, ids = random_params(config), np.random.default_rng(1).integers(5, 60, (1, 20)).astype(np.int32)
    model = Model(config, (POOLER,))
    params = {name: params[name] for name in ("encoder", "pooler")}
    packed = {
        "input_ids": ids,
        "attention_mask": np.array([[1] * 19 + [0]], np.int32),
        "sequence_ids": np.array([[1] * 8 + [2] * 11 + [0]], np.int32),
        "position_ids": np.array([[*range(8), *range(11), 0]], np.int32),
        "cls_positions": np.array([[0, 8, 0]], np.int32),
    }
    pooled = jax.jit(lambda batch: model.apply({"params": params}, batch)["pooled"])
    together = pooled(packed)[0]
    for number, (begin, end) in enumerate(((0, 8), (8, 19))):
        row = np.pad(ids[:, begin:end], ((0, 0), (0, 3)))
        batch = {"input_ids": row, "attention_mask": (np.arange(row.shape[1]) < end - begin).astype(np.int32)[None]}
        alone = pooled(batch)[0]
        np.testing.assert_allclose(together[number], alone, atol=1e-5)


def test_what_torch_gave() -> None:
    """Logits, loss and gradients that tests/parity/test_modernbert.py has stored."""
    stored = np.load(GOLDEN)
    params = tree_of(stored, "params")
    batch = batch_of()
    everywhere = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
    read = {name: batch[name] for name in ("input_ids", "attention_mask")} | {"masked_positions": everywhere}

    def loss(params: Any) -> Any:
        logits = Model(config_of(), (LM_HEAD,)).apply({"params": params}, read)["mlm_logits"]
        given = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(batch["labels"], 0)[..., None], axis=-1)
        return -jnp.sum(given[..., 0] * (batch["labels"] >= 0)) / np.sum(batch["labels"] >= 0), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert float(value) == pytest.approx(float(stored["loss"]), rel=2e-5)
    real = batch["attention_mask"] > 0
    np.testing.assert_allclose(logits[real], stored["logits"][real], atol=1e-4)
    for name in (name for name in stored.files if name.startswith("gradients/")):
        wanted = stored[name]
        found = np.asarray(leaf(gradient, name.removeprefix("gradients/")))
        np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max(), err_msg=name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_attention": 7}, "config.model.local_attention is 7; an even number from 2 to 2,147,483,646 is"),
        ({"global_every": 0}, "config.model.global_every is 0; at least 1 is needed"),
        ({"global_theta": 1.0}, "config.model.global_theta is 1.0; more than 1 is needed"),
        ({"hidden_size": 33, "num_heads": 11}, "the width has to be even"),
    ],
)
def test_settings_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_of(**fields)


def test_rows_longer_than_the_positions_are_refused() -> None:
    ids = np.ones((1, 129), np.int32)
    with pytest.raises(UserError, match="rows of 129 positions exceed the model's 128; shorten them"):
        jax.eval_shape(
            lambda: modernbert.Encoder(config_of()).init(jax.random.key(0), {"input_ids": ids, "attention_mask": ids})
        )


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e3}},
            "m/config.json has rope_parameters {'rope_type",
        ),
        ({"rope_parameters": {"full_attention": {"factor": 4.0}}}, "what can be read is rope_type and rope_theta"),
        ({"rope_parameters": {"full_attention": 7}}, "for each of full_attention and sliding_attention"),
        ({"rope_parameters": [1]}, r"has rope_parameters \[1\]"),
        ({"layer_types": 7}, "has layer_types 7; a list"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(written: Any, message: str) -> None:
    family = family_of("modernbert")
    theirs = family.to_config(modernbert.Config(100, 32, 3, 2, 48), 0)
    assert family.from_config(theirs | {"global_attn_every_n_layers": 0}, "m") == family.from_config(theirs, "m")
    with pytest.raises(UserError, match=message):
        family.from_config(theirs | written, "m")
