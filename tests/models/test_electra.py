"""ELECTRA: the published numbers of parameters, alone and together, and what PyTorch gave for stored weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.interchange.conversion import leaf
from bert_jax.models.encoders import electra
from bert_jax.models.model import LM_HEAD, EncoderPart, Model
from bert_jax.objectives.replaced_tokens import DISCRIMINATOR, Config, generator_of
from bert_jax.training.mesh import unbox
from tests.models.golden import tree_of
from tests.models.golden_electra import GOLDEN, SIZES, V, loss_of, objective
from tests.models.helpers import random_batch

# By size: the generator's share of it, then parameters of the encoder, with its head, of the generator alone, of both.
COUNTS = {
    "small": (1 / 4, 13_483_008, 13_549_057, 4_620_026, 14_196_219),
    "small++": (1.0, 13_483_008, 13_549_057, 13_546_682, 23_122_875),
    "base": (1 / 3, 108_891_648, 109_483_009, 33_740_602, 119_386_427),
    "large": (1 / 4, 334_092_288, 335_142_913, 51_295_290, 354_655_291),
}


def count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_are_the_published_ones(size: str) -> None:
    """google-research/electra; the closed forms of the two networks, whose embeddings and layer norm are one."""
    share, of_encoder, of_discriminator, of_generator, of_both = COUNTS[size]
    config = electra.Config(30_522, **electra.SIZES[size.rstrip("+")], layers="scanned")
    part = EncoderPart("generator", generator_of(config, Config(generator_size=share), "config"), (LM_HEAD,))
    assert part.config.hidden_size // part.config.num_heads == 64

    def init() -> tuple[Any, Any]:
        rng, batch = jax.random.key(0), random_batch()
        return Model(config, (DISCRIMINATOR,)).init(rng, batch)["params"], part.init(rng, batch)

    own, beside = unbox(jax.eval_shape(init))
    assert (count(own["encoder"]), count(own)) == (of_encoder, of_discriminator)
    assert count(part.whole({**own, "generator": beside})) == of_generator
    assert count(own) + count(beside) == of_both
    kernels = [x for path, x in jax.tree_util.tree_leaves_with_path(own["encoder"]) if path[-1].key == "kernel"]
    tables = [x for name, x in own["encoder"]["embeddings"].items() if name != "layer_norm"]
    assert config.num_parameters == count(kernels + tables)
    projection = 6 * 16 * config.embedding_size * config.hidden_size if config.embedding_size == 128 else 0
    layers = 6 * 16 * (count(kernels) + 2 * config.num_layers * config.hidden_size * 16)
    assert config.train_flops(16) == layers
    assert (projection > 0) == ("embedding_projection" in own["encoder"])


def test_what_torch_gave() -> None:
    """Logits of both networks, the text that the second reads, the loss of both, and every gradient."""
    stored = np.load(GOLDEN)
    params, batch, gradients = (tree_of(stored, kind) for kind in ("params", "batch", "gradients"))
    task = objective(electra.Config(V, **SIZES))
    (loss, outputs), grads = jax.jit(jax.value_and_grad(lambda p: loss_of(task, p, batch), has_aux=True))(params)
    for name in ("drawn_ids", "is_replaced"):
        np.testing.assert_array_equal(outputs[name], stored[name])
    real = batch["attention_mask"] > 0
    np.testing.assert_allclose(outputs["mlm_logits"], stored["mlm_logits"], atol=2e-5, rtol=0)
    np.testing.assert_allclose(outputs["replaced_logits"][real], stored["replaced_logits"][real], atol=2e-5, rtol=0)
    assert float(loss) == pytest.approx(float(stored["loss"]), rel=2e-6)
    paths = ["/".join(str(k.key) for k in path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    shown = [path for path in paths if not path.endswith("key/bias")]  # that of the keys' bias is rounding
    assert len(shown) > 40
    for path in shown:
        expected = leaf(gradients, path)
        assert np.abs(np.asarray(leaf(grads, path)) - expected).max() <= 1e-5 * np.abs(expected).max(), path
