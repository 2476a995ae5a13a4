"""The bidirectional LSTM as an encoder: who sees whom, what padding and packing must not do, and how large it is."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.models.bilstm import BiLstm
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import lstm
from bert_jax.models.model import LM_HEAD, NSP_HEAD, POOLER, Model
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.pretraining import Pretraining
from tests.models.helpers import influence

LENGTH, SIZE = 8, 12
CONFIG = lstm.Config(64, SIZE, 2, max_length=32, dropout_rate=0.5)
IDS = np.random.default_rng(0).integers(5, 64, (1, LENGTH)).astype(np.int32)
ONES = np.ones_like(IDS)


@functools.cache
def params_of(config: lstm.Config) -> Any:
    batch = {"input_ids": IDS, "attention_mask": ONES}
    fresh = nn.unbox(jax.eval_shape(lambda: lstm.Encoder(config).init(jax.random.key(0), batch)))["params"]
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32), fresh)


@functools.cache
def compiled(config: lstm.Config) -> Any:
    return jax.jit(lambda batch: lstm.Encoder(config).apply({"params": params_of(config)}, batch, None, "all"))


def run(ids: np.ndarray, mask: np.ndarray, config: lstm.Config = CONFIG, **others: np.ndarray) -> Any:
    return jax.device_get(compiled(config)({"input_ids": ids, "attention_mask": mask, **others}))


def test_the_first_layer_joins_two_directions_and_the_second_reads_both() -> None:
    """Leak and power: half of a vector of layer 1 sees one side, the other half the other; layer 2 sees all."""
    before, half = run(IDS, ONES).hidden[1, 0], SIZE // 2
    changed = IDS.copy()
    changed[0, 3] = 5 + (changed[0, 3] + 7) % 50
    moved = np.abs(run(changed, ONES).hidden[1, 0] - before)
    assert np.all(moved[:3, :half] == 0)
    assert np.all(moved[4:, half:] == 0)
    assert np.all(moved[3:, :half].max(axis=1) > 1e-6)
    assert np.all(moved[:4, half:].max(axis=1) > 1e-6)
    seen = influence(lstm.Encoder(CONFIG), params_of(CONFIG), jnp.asarray(IDS), attention_mask=jnp.asarray(ONES))
    assert np.all(seen > 1e-6)


def test_packed_sequences_are_read_as_if_each_had_a_row() -> None:
    """And padding at their end is neither read nor written: rows of any width give the same vectors."""
    numbers = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 0, 0]], np.int32)
    ids = np.random.default_rng(2).integers(5, 64, numbers.shape).astype(np.int32)
    packed = run(ids, (numbers > 0).astype(np.int32), sequence_ids=numbers)
    for number in (1, 2, 3):
        here = numbers[0] == number
        width = int(here.sum())
        alone, mask = np.full((1, 10), 9, np.int32), np.zeros((1, 10), np.int32)
        alone[0, :width], mask[0, :width] = ids[0, here], 1
        np.testing.assert_allclose(packed.sequence[0, here], run(alone, mask).sequence[0, :width], atol=1e-6)
    assert np.all(packed.hidden[1, 0, 8:] == 0)
    as_one = run(ids, (numbers > 0).astype(np.int32)).sequence
    assert np.abs(as_one - packed.sequence)[0, :8].max(axis=1).min() > 1e-4, (
        "the power check: without numbers they meet"
    )


def test_hidden_states_are_the_embeddings_and_each_layer() -> None:
    """The layers are those of ``bilstm``, which has them beside torch's; the last state is normalised."""
    found, params = run(IDS, ONES), params_of(CONFIG)
    layers = {name: tree for name, tree in params.items() if name.startswith("layer_") and name != "layer_norm"}
    stacked: Any = BiLstm(CONFIG, num_layers=2).apply(
        {"params": layers}, {"sequence": found.hidden[0]}, {"attention_mask": ONES}, None
    )
    last = np.asarray(stacked["sequence"])
    norm = (last - last.mean(-1, keepdims=True)) / last.std(-1, keepdims=True)
    expected = norm * params["layer_norm"]["scale"] + params["layer_norm"]["bias"]
    assert found.hidden.shape == (3, 1, LENGTH, SIZE)
    np.testing.assert_array_equal(found.hidden[-1], found.sequence)
    np.testing.assert_allclose(found.sequence, expected, atol=1e-5)


def test_dropout_is_between_the_layers_and_not_after_the_last() -> None:
    @jax.jit
    def dropped(step: jax.Array) -> Any:
        rng = RowRng.create(0, step, jnp.arange(1, dtype=jnp.uint32))
        batch = {"input_ids": IDS, "attention_mask": ONES}
        return lstm.Encoder(CONFIG).apply({"params": params_of(CONFIG)}, batch, rng, "all")

    one, other = dropped(jnp.int32(0)), dropped(jnp.int32(1))
    assert np.mean(np.asarray(one.hidden[0]) == 0) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(LENGTH * SIZE))
    assert np.all(np.asarray(one.sequence) != 0)
    assert np.abs(one.sequence - other.sequence).max() > 1e-3


@pytest.mark.parametrize("num_layers", [1, 3])
def test_it_has_the_parameters_of_torch_lstm(num_layers: int) -> None:
    """``torch.nn.LSTM(D, F, n, bidirectional=True)`` has 4F (in + F) weights and 8F biases a layer and direction."""
    config = lstm.Config(64, SIZE, num_layers, max_length=32)
    half, layers = SIZE // 2, [params_of(config)[f"layer_{i}"] for i in range(num_layers)]
    ours = sum(leaf.size for leaf in jax.tree.leaves(layers))
    of_torch = num_layers * 2 * (4 * half * (SIZE + half) + 8 * half)
    assert ours == of_torch - num_layers * 2 * 4 * half, "one bias in place of two that are added up"
    kernels = sum(leaf.size for leaf in jax.tree.leaves(layers) if leaf.ndim == 2)
    assert config.num_parameters == 64 * SIZE + kernels
    assert config.products(LENGTH) == LENGTH * kernels, "each weight is used once a token"
    assert kernels == num_layers * 6 * SIZE**2


def test_the_variants_of_the_recipe_have_equal_weights_in_layers() -> None:
    models = [
        Pretraining(PretrainingSettings.of(recipes.load(f"ablation:{name}").to_dict())).task.setting.model  # type: ignore[union-attr]
        for name in ("bert", "lstm")
    ]
    bert, recurrent = models
    tables = (bert.vocab_size + bert.type_vocab_size + bert.max_length) * bert.hidden_size
    assert bert.num_parameters - tables == recurrent.products(1) == 393_216


def test_heads_of_pretraining_read_it() -> None:
    model = Model(CONFIG, (POOLER, LM_HEAD, NSP_HEAD))
    batch = {"input_ids": IDS, "attention_mask": ONES, "masked_positions": IDS[:, :3] % LENGTH}
    shapes = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), batch)[0])
    assert {name: one.shape for name, one in shapes.items() if name.endswith("logits")} == {
        "mlm_logits": (1, 3, 64),
        "nsp_logits": (1, 2),
    }


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"name": "ltr"}, "^objective 'ltr' reads what came before, and encoder 'lstm' cannot"),
        ({"name": "unilm"}, "^objective 'unilm' says by order_ids .* and encoder 'lstm' does not read them"),
        ({"name": "permuted"}, "^objective 'permuted' needs an encoder with two streams"),
    ],
)
def test_what_it_cannot_is_refused(objective: dict[str, Any], message: str) -> None:
    config = recipes.load("ablation:lstm").to_dict()
    config["objective"] = objective
    with pytest.raises(UserError, match=message):
        Pretraining(PretrainingSettings.of(config))


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(UserError, match="^config.model.hidden_size is 33; an even number is needed: half of a vector"):
        lstm.Config(64, 33)
