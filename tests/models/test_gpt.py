"""GPT-1 and GPT-2: the published sizes and initial values, who sees whom, heads without parameters, torch's values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.interchange.conversion import leaf
from bert_jax.models.encoders import gpt, gpt2
from bert_jax.models.model import LM_HEAD, POOLER, Model, encoder_file, encoder_of, fresh_params
from bert_jax.models.transformer import stack_layers
from bert_jax.objectives.reading import with_attention
from tests.models.golden import tree_of
from tests.models.golden_gpt import KINDS, LENGTH, V, batch_of, config_of, golden, loss_of
from tests.models.helpers import influence


def random_params(config: gpt2.Config) -> Any:
    rng, shapes = np.random.default_rng(0), jax.eval_shape(lambda: fresh_params(config))
    return jax.tree_util.tree_map_with_path(
        lambda path, x: (rng.normal(0, 0.2, x.shape) + (path[-1].key == "scale")).astype(np.float32), shapes
    )


def test_parameter_counts_are_the_published_ones() -> None:
    """Those of OpenAIGPTLMHeadModel and of GPT2LMHeadModel, small to xl, in transformers; the heads have none."""

    def count(config: gpt2.Config) -> int:
        shapes = jax.eval_shape(lambda: fresh_params(config))
        return sum(
            x.size for part in ("encoder", *{"mlm_head", "pooler"} & shapes.keys()) for x in leaves(shapes[part])
        )

    leaves = jax.tree.leaves
    assert count(gpt.Config(40_478, layers="scanned")) == 116_534_784
    published = {"small": 124_439_808, "medium": 354_823_168, "large": 774_030_080, "xl": 1_557_611_200}
    found = {size: count(gpt2.Config(50_257, **gpt2.SIZES[size], layers="scanned")) for size in published}
    assert found == published
    assert gpt2.SIZES.keys() - published == {"tiny"}
    assert gpt2.Config(50_257) == gpt2.Config(50_257, **gpt2.SIZES["small"])
    assert gpt.Config(40_478) == gpt.Config(40_478, **gpt.SIZES["base"])
    for kind, config in KINDS.items():
        for fields in encoder_file(kind).SIZES.values():
            build(config, {"vocab_size": 10, **fields}, "config.model")
        shapes = jax.eval_shape(lambda kind=kind: fresh_params(config_of(kind)))["encoder"]
        kernels = [x for path, x in jax.tree_util.tree_leaves_with_path(shapes) if path[-1].key == "kernel"]
        assert config_of(kind).num_parameters == sum(x.size for x in (*kernels, *leaves(shapes["embeddings"])))


def test_work_of_a_row_counts_the_products_that_a_gpt_has() -> None:
    """Three times the forward pass: the kernels, scores and mixed values, and the word embeddings as decoder."""
    config = config_of("gpt2")
    kernels, tables = 3 * (4 * 32 * 32 + 2 * 32 * 128), V * 32
    assert config.train_flops(10, 9) == 6.0 * (10 * (kernels + 3 * 2 * 32 * 10) + 9 * tables)
    assert config.train_flops(10, 0, 1) - config.train_flops(10) == 6.0 * 2 * 32


@pytest.mark.parametrize("kind", KINDS)
def test_initial_values_are_the_published_ones(kind: str) -> None:
    """A normal distribution that is cut at two deviations has 0.8796 of its deviation."""
    drawn = fresh_params(KINDS[kind](512, 128, 7, 2, 512, layers="scanned"))["encoder"]
    layer, width = drawn["layers"], 0.02 * 0.8796
    back = width / np.sqrt(2 * 7) if kind == "gpt2" else width
    for module, deviation in {
        "attention/qkv": width,
        "mlp/input": width,
        "attention/output": back,
        "mlp/output": back,
    }.items():
        assert np.std(leaf(layer, module)["kernel"]) == pytest.approx(deviation, rel=0.02)
    for table in drawn["embeddings"].values():
        assert np.std(table) == pytest.approx(width, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_to_the_right_is_never_read(kind: str) -> None:
    """In three layers, of packed sequences with padding; what may be read is read (the power check)."""
    config = config_of(kind)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, V, (1, 10)), jnp.int32)
    sequences = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 0, 0]])
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 0, 0, 0]])
    packed = {"attention_mask": jnp.asarray(sequences > 0, jnp.int32), "sequence_ids": jnp.asarray(sequences)}
    seen = influence(encoder_of(config), random_params(config)["encoder"], ids, **packed, position_ids=positions)
    visible, real = (sequences == sequences.T) & np.tri(10, dtype=bool) & (sequences > 0), sequences[0] > 0
    assert np.all(seen[real][~visible[real]] == 0)
    assert np.all(seen[real][visible[real]] > 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_have_no_parameters_and_a_text_is_its_last_token(kind: str) -> None:
    config, batch = config_of(kind), {n: jnp.asarray(x) for n, x in batch_of().items()}
    model = Model(config, (POOLER, LM_HEAD))
    features = {**batch, "masked_positions": jnp.zeros((3, 1), jnp.int32)}
    assert jax.eval_shape(model.init, jax.random.key(0), features)["params"].keys() == {"encoder"}
    params = {"encoder": random_params(config)["encoder"]}
    outputs: Any = model.apply({"params": params}, features)
    last = [LENGTH - 1, LENGTH - 6, 2]
    np.testing.assert_array_equal(outputs["pooled"], outputs["sequence"][np.arange(3), np.array(last)])
    table = params["encoder"]["embeddings"]["word_embeddings"]
    np.testing.assert_allclose(outputs["mlm_logits"][:, 0], outputs["sequence"][:, 0] @ table.T, atol=1e-5)
    packed: Any = model.apply({"params": params}, {**features, "cls_positions": jnp.array([[2, 5], [1, 0], [2, 0]])})
    np.testing.assert_array_equal(packed["pooled"][0, 1], outputs["sequence"][0, 5])


@pytest.mark.parametrize("kind", ["gpt2"])
def test_scanned_layers_and_packed_rows_compute_the_same(kind: str) -> None:
    config, scanned, batch = config_of(kind), config_of(kind, layers="scanned"), batch_of()
    params = random_params(config)["encoder"]
    plain: Any = encoder_of(config).apply({"params": params}, batch, hidden_states="all")
    stacked: Any = encoder_of(scanned).apply({"params": stack_layers(params)}, batch, hidden_states="all")
    np.testing.assert_allclose(stacked.hidden, plain.hidden, atol=2e-5)
    np.testing.assert_array_equal(plain.hidden[-1], plain.sequence)
    joined = {
        "input_ids": np.concatenate([batch["input_ids"][1:2, :11], batch["input_ids"][2:, :3]], axis=1),
        "sequence_ids": np.array([[1] * 11 + [2] * 3]),
        "position_ids": np.array([[*range(11), *range(3)]]),
    }
    found: Any = encoder_of(config).apply({"params": params}, joined | {"attention_mask": np.ones((1, 14), np.int32)})
    np.testing.assert_allclose(found.sequence[0, :11], plain.sequence[1, :11], atol=2e-5)
    np.testing.assert_allclose(found.sequence[0, 11:], plain.sequence[2, :3], atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_too_long_and_objectives_that_read_both_sides_are_refused(kind: str) -> None:
    config = config_of(kind)
    ids = jnp.zeros((1, 21), jnp.int32)
    with pytest.raises(UserError, match=r"rows of 21 positions exceed the model's 20; shorten them"):
        encoder_of(config).init(jax.random.key(0), {"input_ids": ids, "attention_mask": ids})
    assert with_attention(config, "what came before", "ltr") is config
    with pytest.raises(
        UserError, match=f"^objective 'mlm' reads both sides, and encoder '{kind}' reads what came before alone; "
    ) as e:
        with_attention(config, "both sides", "mlm")
    assert "\n" not in str(e.value)


def test_a_width_that_transformers_cannot_say_is_refused_before_training() -> None:
    with pytest.raises(UserError, match="^config.model.mlp_dim is 64; a GPT has four times hidden_size, 128, and"):
        gpt.Config(V, 32, num_heads=4, mlp_dim=64)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_loss_and_gradients_are_those_of_torch(kind: str) -> None:
    """For weights that torch drew; tests/parity/test_gpt.py writes the file."""
    with np.load(golden(kind)) as stored:
        params, wanted = tree_of(stored, "params"), tree_of(stored, "gradients")
        loss, logits = stored["loss"], stored["logits"]
    batch, config = batch_of(), config_of(kind)
    grad = jax.jit(jax.value_and_grad(lambda p: loss_of(config, p, batch), has_aux=True))
    (found, mine), gradients = grad(params)
    real = batch["attention_mask"] > 0
    assert float(found) == pytest.approx(float(loss), rel=2e-5)
    np.testing.assert_allclose(np.asarray(mine)[real], logits[real], atol=2e-5, rtol=2e-5)
    for path, gradient in jax.tree_util.tree_leaves_with_path(wanted):
        name = "/".join(key.key for key in path)
        np.testing.assert_allclose(leaf(gradients, name), gradient, atol=2e-5 * np.abs(gradient).max(), err_msg=name)
