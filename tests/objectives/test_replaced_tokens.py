"""Replaced-token detection: what is drawn and who reads it, who learns from which loss, and what counts as replaced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import albert, bert, electra
from bert_jax.models.model import Model
from bert_jax.objectives import replaced_tokens
from bert_jax.objectives.base import Setting
from bert_jax.objectives.replaced_tokens import DISCRIMINATOR, Config, draw, generator_of
from bert_jax.rows.masking import MaskingConfig
from bert_jax.task import Variables
from bert_jax.training import mesh as meshes
from tests.objectives.test_terms import same_on_every_layout
from tests.objectives.texts import LENGTH, Text, counts_of, rows_of

ROWS = 12
MASKS = MaskingConfig(rate=0.3, mask_share=1.0, random_share=0.0)


def make(text: Text, dropout: float = 0.0, dtype: Any = "float32", **config: Any) -> Any:
    """Return the objective with a 1 x 32 model on embeddings of 16, and a generator of 16, on packed rows of 64."""
    corpus, tokenizer = text
    rates = {"dropout_rate": dropout, "attention_dropout_rate": dropout}
    model = electra.Config(tokenizer.size, 32, 1, 2, 64, max_length=LENGTH, embedding_size=16, dtype=dtype, **rates)
    rows = {"masking": MASKS, "packing": "packed", "arrangement_options": {"blocks": "document"}}
    settings = Config(**{**rows, "generator_size": 0.5, **config})
    return replaced_tokens.Objective(settings, Setting(model, {"phase1": LENGTH})).with_text(corpus, tokenizer)


class Made:
    """An objective with parameters from N(0, 0.4), its rows, and its functions, each compiled once."""

    def __init__(self, text: Text):
        self.task = task = make(text)
        rng = np.random.default_rng(0)
        shapes = meshes.unbox(jax.eval_shape(task.init, jax.random.key(0))).params
        self.params = jax.tree.map(lambda x: rng.normal(0.0, 0.4, x.shape).astype("f"), shapes)
        last = self.params["discriminator_head"]["dense"]
        last["kernel"], last["bias"] = 5 * last["kernel"], last["bias"] + 14.3  # so that it says both of some tokens
        self.rows = rows_of(task, ROWS)
        self.rng = RowRng.create(0, 3, jnp.arange(ROWS, dtype=jnp.uint32))
        self.forward = jax.jit(lambda batch, rng: task.forward(Variables(self.params, {}), batch, rng))
        self.evaluate = jax.jit(lambda batch: task.loss(Variables(self.params, {}), batch, None))


@pytest.fixture(scope="module")
def made(text: Text) -> Made:
    return Made(text)


def slots(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return which positions [B, L] are masked."""
    found = np.zeros(rows["input_ids"].shape, bool)
    for row, slot in zip(*np.nonzero(rows["masked_weights"]), strict=True):
        assert not found[row, rows["masked_positions"][row, slot]], "drawn twice"
        found[row, rows["masked_positions"][row, slot]] = True
    return found


def original(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return the text [B, L] before masking."""
    ids = rows["input_ids"].copy()
    for row, slot in zip(*np.nonzero(rows["masked_weights"]), strict=True):
        ids[row, rows["masked_positions"][row, slot]] = rows["masked_labels"][row, slot]
    return ids


def test_the_discriminator_reads_the_text_with_what_is_drawn(made: Made, text: Text) -> None:
    """It never reads a mask that was not drawn, and its outputs are those of a model of its own on these ids."""
    rows, outputs = made.rows, jax.device_get(made.forward(made.rows, made.rng))
    ids, masked, before = outputs["drawn_ids"], slots(rows), original(rows)
    np.testing.assert_array_equal(ids[~masked], rows["input_ids"][~masked])
    assert (rows["input_ids"][masked] == text[1].mask_id).all()
    assert not np.isin(before[masked], [text[1].pad_id, text[1].cls_id, text[1].sep_id]).any()
    np.testing.assert_array_equal(outputs["is_replaced"], ids != before)
    assert 0.9 < outputs["is_replaced"][masked].mean() <= 1.0
    assert (ids[masked] == text[1].mask_id).mean() < 0.1
    alone = Model(made.task.setting.model, (DISCRIMINATOR,))
    params = {name: made.params[name] for name in ("encoder", "discriminator_head")}
    found = jax.jit(lambda batch: alone.apply({"params": params}, batch))({**rows, "input_ids": ids})
    np.testing.assert_allclose(found["replaced_logits"], outputs["replaced_logits"], atol=1e-5)  # type: ignore[index]


def test_losses_and_measures_are_those_of_numpy(made: Made) -> None:
    rows = {**made.rows, "row_weights": np.where(np.arange(ROWS) == 1, 0.0, 1.0).astype("f")}
    outputs, losses = jax.device_get((made.forward(rows, None), made.evaluate(rows)))
    real = (rows["attention_mask"] > 0) & (rows["row_weights"][:, None] > 0)
    logits, labels = outputs["replaced_logits"][real].astype(float), outputs["is_replaced"][real]
    likely = 1 / (1 + np.exp(-logits))
    expected = -np.sum(np.where(labels > 0, np.log(likely), np.log(1 - likely)))
    assert losses.terms["replaced"].value == pytest.approx(expected, rel=1e-5)
    assert losses.terms["replaced"].count == real.sum() == counts_of(made.task, rows)["replaced"]
    found = {name: float(one.value / one.count) for name, one in losses.metrics.items()}
    said, there = logits > 0, labels > 0
    assert found["replaced_accuracy"] == pytest.approx(np.mean(said == there))
    assert found["replaced_precision"] == pytest.approx(there[said].mean())
    assert found["replaced_recall"] == pytest.approx(said[there].mean())
    assert found["replaced_rate"] == pytest.approx(there.mean())
    assert losses.terms["mlm"].count == rows["masked_weights"].sum()
    assert made.task.loss_weights == {"mlm": 1.0, "replaced": 50.0}
    assert set(made.task.titles) <= {*found, "mlm_accuracy_no_punctuation"}


def test_a_token_that_is_drawn_as_it_was_is_original(made: Made) -> None:
    drawn = np.asarray(made.forward(made.rows, made.rng)["drawn_ids"])
    labels = np.take_along_axis(drawn, made.rows["masked_positions"], axis=1)
    outputs = made.forward({**made.rows, "masked_labels": labels}, made.rng)
    np.testing.assert_array_equal(outputs["drawn_ids"], drawn)
    assert not outputs["is_replaced"].any()


def test_what_was_masked_does_not_leak(made: Made) -> None:
    """Other words under the masks change no bit of either network; another word in sight changes both."""
    before = jax.device_get(made.forward(made.rows, made.rng))
    labels = (made.rows["masked_labels"] + 7) % made.task.setting.model.vocab_size
    after = jax.device_get(made.forward({**made.rows, "masked_labels": labels}, made.rng))
    for name in ("mlm_logits", "drawn_ids", "replaced_logits"):
        np.testing.assert_array_equal(after[name], before[name])
    first = made.rows["sequence_ids"] == 1
    changed = np.where(first & ~slots(made.rows), made.rows["input_ids"][:, ::-1], made.rows["input_ids"])
    after = jax.device_get(made.forward({**made.rows, "input_ids": changed}, made.rng))
    others = made.rows["sequence_ids"] > 1
    assert others.any()
    np.testing.assert_array_equal(after["drawn_ids"][others], before["drawn_ids"][others])  # packed, yet apart
    np.testing.assert_array_equal(after["replaced_logits"][others], before["replaced_logits"][others])
    assert np.abs(after["replaced_logits"][first] - before["replaced_logits"][first]).max() > 1e-2


def test_draws_belong_to_a_row(made: Made) -> None:
    """In training to seed, step and row; in an evaluation to what the row holds, wherever it stands."""
    train = np.asarray(made.forward(made.rows, made.rng)["drawn_ids"])
    order = np.random.default_rng(0).permutation(ROWS)
    moved = {name: x[order] for name, x in made.rows.items()}
    same = RowRng(made.rng.key, made.rng.rows[order])
    np.testing.assert_array_equal(made.forward(moved, same)["drawn_ids"], train[order])
    for seed, step in ((1, 3), (0, 4)):
        other = made.forward(made.rows, RowRng.create(seed, step, jnp.arange(ROWS, dtype=jnp.uint32)))["drawn_ids"]
        assert (np.asarray(other) != train)[slots(made.rows)].mean() > 0.5
    first, again = (np.asarray(made.forward(rows, None)["drawn_ids"]) for rows in (made.rows, moved))
    np.testing.assert_array_equal(again, first[order])
    assert (first != train)[slots(made.rows)].mean() > 0.5


def test_draws_are_those_of_the_softmax() -> None:
    """20,480 of each of two distributions, by chi-square; rows and slots have draws of their own."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 1.5, (2, 9)).astype("f")
    shares = special.softmax(logits.astype(float), axis=1)
    rows = RowRng.create(5, 7, jnp.arange(2048, dtype=jnp.uint32))
    wide = jnp.asarray(np.broadcast_to(np.repeat(logits, 10, axis=0), (2048, 20, 9)))
    drawn = np.asarray(jax.jit(draw)(wide, rows))
    for i in range(2):
        counts = np.bincount(drawn[:, 10 * i : 10 * i + 10].ravel(), minlength=9)
        assert stats.chisquare(counts, shares[i] * counts.sum()).pvalue > 1e-4
        assert stats.chisquare(counts, shares[1 - i] * counts.sum()).pvalue < 1e-12  # the power check
    together = np.mean(drawn[:, 0] == drawn[:, 1]), np.mean(drawn[:-1, 0] == drawn[1:, 0])
    chance = float((shares[0] ** 2).sum())
    for share in together:
        assert abs(share - chance) < 4 * np.sqrt(chance * (1 - chance) / 2047)


def test_no_gradient_passes_a_draw(made: Made) -> None:
    """Leaf by leaf: each loss trains its own network, and both the embeddings, layer norm included."""

    def losses(params: Any) -> jax.Array:
        terms = made.task.loss(Variables(params, {}), made.rows, made.rng).terms
        return jnp.stack([terms["mlm"].value, terms["replaced"].value])

    grads = jax.device_get(jax.jit(jax.jacrev(losses))(made.params))
    shared = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        name = "/".join(str(key.key) for key in path)
        mlm, replaced = (np.abs(of_loss).max() for of_loss in leaf)
        if name.startswith("encoder/embeddings"):
            assert min(mlm, replaced) > 1e-3, name
            shared += 1
        else:
            own, other = (mlm, replaced) if name.startswith("generator/") else (replaced, mlm)
            assert other == 0.0, name
            assert own > 1e-6 or "key/bias" in name, name  # what shifts all keys alike changes nothing
    assert shared == 5
    assert "embeddings" not in grads["generator"]["encoder"]


@pytest.mark.heavy
def test_every_layout_gives_the_same_step(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout in both networks, which do not share its bits: 1 and 8 devices, whole or in parts."""
    with jax.enable_x64(True):
        task = make(text, dropout=0.1, dtype="float64")
        assert same_on_every_layout(task, monkeypatch)[0]["replaced_rate"] > 0.1


def test_the_networks_do_not_share_dropout() -> None:
    """Two networks of the same shape and parameters drop out differently."""
    config = electra.Config(50, 16, 1, 2, 32, max_length=16, embedding_size=16)
    setting = Setting(config, {"phase1": 16})
    task = replaced_tokens.Objective(Config(generator_size=1.0), setting)
    params = meshes.unbox(jax.jit(task.init)(jax.random.key(0))).params
    kernel = [tree["layer_0"]["mlp"]["input"]["kernel"] for tree in (params["encoder"], params["generator"]["encoder"])]
    assert np.abs(kernel[0] - kernel[1]).max() > 1e-2  # nor their first values
    params = {**params, "generator": {**params["generator"], "encoder": params["encoder"]}}
    ids = np.ones((2, 16), np.int32)
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": ids, "masked_positions": ids[:, :1]}
    rng, generator = RowRng.create(0, 0, jnp.arange(2, dtype=jnp.uint32)), task.generator._replace(parts=())

    @jax.jit
    def both(rng: Any) -> Any:
        own = Model(config).apply({"params": {"encoder": params["encoder"]}}, batch, rng)
        return own["sequence"], generator.apply(params, batch, rng)["sequence"]  # type: ignore[index]

    one, other = both(rng)
    assert np.abs(one - other).max() > 0.1
    np.testing.assert_array_equal(*both(None))


def test_the_generator_of_each_published_size() -> None:
    found = {
        name: generator_of(electra.Config(30_522, **electra.SIZES[name]), Config(generator_size=share), "config")
        for name, share in (("small", None), ("base", 1 / 3), ("large", 0.25))
    }
    shapes = {n: (c.hidden_size, c.num_heads, c.mlp_dim, c.num_layers, c.embedding_size) for n, c in found.items()}
    assert shapes == {
        "small": (64, 1, 256, 12, 128),
        "base": (256, 4, 1024, 12, 768),
        "large": (256, 4, 1024, 24, 1024),
    }
    shallow = generator_of(bert.Config(50), Config(generator_layers=0.25), "config")
    assert (shallow.hidden_size, shallow.num_layers) == (
        768,
        3,
    )  # BERT's embeddings have no width of their own
    assert generator_of(albert.Config(50), Config(), "config").hidden_size == 192


def test_flops_are_those_of_both_networks(made: Made) -> None:
    task, spec = made.task, made.task.batch_specs["phase1"]
    head, predicted = 6 * LENGTH * (32 * 32 + 32), spec["masked_positions"].shape[0]
    both = task.setting.model.train_flops(LENGTH), task.generator.config.train_flops(LENGTH, predicted)
    assert task.flops_per_row["phase1"] == sum(both) + head
    assert task.generator.config.vocab_size == task.setting.model.vocab_size


BAD = {
    "whole heads": (
        electra.Config(50, **electra.SIZES["base"]),
        {"generator_size": 0.3},
        r"^config.objective.generator_size is 0.3: 230 of 768 numbers, which 4 attention heads do not divide; 0.33333 ",
    ),
    "no width of their own": (
        bert.Config(50),
        {"generator_size": 0.25},
        "^config.objective.generator_size is 0.25, and in the encoder 'bert' embeddings, .*; leave it out, or take",
    ),
    "too wide": (electra.Config(50), {"generator_size": 2.0}, "^config.objective.generator_size is 2.0; more than 0"),
    "no layers": (electra.Config(50), {"generator_layers": 0.0}, "^config.objective.generator_layers is 0.0; more"),
    "weight": (electra.Config(50), {"replaced_weight": -1.0}, "^config.objective.replaced_weight is -1.0; at least 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_one_line(name: str) -> None:
    model, config, message = BAD[name]
    with pytest.raises(UserError, match=message) as raised:
        replaced_tokens.Objective(build(Config, config, "config.objective"), Setting(model, {"phase1": 64}))
    assert "\n" not in str(raised.value)
