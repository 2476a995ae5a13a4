"""Tagging on frozen features: which layers it reads, from which tokens, and what of it learns."""

import json
import typing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.interchange.loading import load
from bert_jax.models import heads
from bert_jax.models.heads import LayerMix
from bert_jax.models.model import Model
from bert_jax.parts import catalogue
from bert_jax.tasks.base import Setting
from bert_jax.tasks.feature_tagging import Config, Task
from bert_jax.text.tokenizer import wordpiece
from tests.models.helpers import random_batch, tiny
from tests.tasks import toy_tasks
from tests.toy import learn_wordpiece

MODEL = tiny(num_layers=4, layers="scanned", hidden_size=24, mlp_dim=16)
LAYERS = typing.get_args(heads.Layers)


def inputs() -> dict[str, Any]:
    batch = {name: value for name, value in random_batch(rows=2).items() if name.endswith(("ids", "mask"))}
    firsts = np.random.default_rng(3).random(batch["input_ids"].shape) < 0.6
    word_ids = np.cumsum(firsts, axis=1) * firsts * batch["attention_mask"]
    return {name: jnp.asarray(value, jnp.int32) for name, value in {**batch, "word_ids": word_ids}.items()}


def tagger(layers: Any) -> tuple[Model, Any]:
    given = setting(4, ("encoder",))
    model = Task(Config(layers=layers, lstm_size=5), given).module(MODEL)
    return model, nn.unbox(jax.jit(model.init)(jax.random.key(0), inputs())["params"])


@pytest.mark.parametrize("layers", ["last", "weighted_sum_all"])
def test_no_gradient_reaches_the_encoder_and_the_rest_has_one(layers: str):
    model, params = tagger(layers)

    def loss(params: Any) -> jax.Array:
        return jnp.sum(model.apply({"params": params}, inputs())["logits"] ** 2)

    gradients = jax.jit(jax.grad(loss))(params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradients["encoder"]))
    assert set(params) - {"encoder"} == {"bilstm", "classifier"} | ({"layer_mix"} if "weighted" in layers else set())
    rest = {name: gradients[name] for name in gradients if name != "encoder"}
    for path, leaf in jax.tree_util.tree_leaves_with_path(rest):
        assert np.any(leaf), jax.tree_util.keystr(path)


def test_words_are_read_by_their_first_pieces_alone():
    """What stands elsewhere in the encoder's last layer makes no difference; every first piece does."""
    model, params = tagger("last")
    batch = inputs()
    hidden = np.random.default_rng(0).normal(size=(2, 16, 24)).astype(np.float32)

    def logits(x: np.ndarray) -> np.ndarray:
        def above(module: Any, x: jax.Array) -> jax.Array:
            outputs = module.bilstm({"sequence": x}, batch, None)
            return module.classifier(outputs, batch, None)["logits"]  # type: ignore[no-any-return]

        return np.asarray(model.apply({"params": params}, jnp.asarray(x), method=above))

    firsts = np.asarray(batch["word_ids"]) > 0
    before = logits(hidden)
    elsewhere = np.where(firsts[..., None], hidden, 9.0)
    np.testing.assert_array_equal(logits(elsewhere)[firsts], before[firsts])
    row, place = np.argwhere(firsts)[-1]
    hidden[row, place] += 1.0
    first_of_row = np.flatnonzero(firsts[row])[0]
    assert np.abs(logits(hidden)[row, first_of_row] - before[row, first_of_row]).max() > 1e-6, "both directions"


@pytest.mark.parametrize("layers", LAYERS)
def test_what_is_read_of_the_layers(layers: Any):
    h = np.random.default_rng(0).normal(size=(5, 2, 3, 24)).astype(np.float32)
    below = layers == "weighted_sum_with_embeddings"
    mix = {"weights": jnp.log(jnp.arange(1.0, 6.0) if below else jnp.arange(1.0, 5.0)), "scale": jnp.asarray(3.0)}
    expected = {
        "embeddings": h[0],
        "second_to_last": h[3],
        "last": h[4],
        "concat_last_four": np.concatenate([h[1], h[2], h[3], h[4]], axis=-1),
        "weighted_sum_with_embeddings": 3.0 * (1 * h[0] + 2 * h[1] + 3 * h[2] + 4 * h[3] + 5 * h[4]) / 15,
    }
    mixed = 3.0 * (1 * h[1] + 2 * h[2] + 3 * h[3] + 4 * h[4]) / 10
    found: Any = LayerMix(MODEL, layers).apply({"params": mix}, {"hidden": jnp.asarray(h)}, {}, None)
    np.testing.assert_allclose(found["sequence"], expected.get(layers, mixed), atol=1e-5)


def test_a_mix_begins_as_the_mean():
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3, 24)), jnp.float32)
    for layers, first in (("weighted_sum_all", 1), ("weighted_sum_with_embeddings", 0)):
        mix = LayerMix(MODEL, layers)  # type: ignore[arg-type]
        found: Any = mix.init_with_output(jax.random.key(0), {"hidden": hidden}, {}, None)[0]
        np.testing.assert_allclose(found["sequence"], np.asarray(hidden)[first:].mean(axis=0), atol=1e-6)


def setting(num_layers: int, frozen: tuple[str, ...]) -> Setting:
    examples = tuple(toy_tasks.examples("tagging", 4))
    tokenizer = wordpiece(learn_wordpiece(toy_tasks.FILLERS, 80, min_frequency=1))
    model = tiny(vocab_size=tokenizer.size, num_layers=num_layers)
    return Setting({"train": examples}, tokenizer, model, ("O", "B-PER", "I-PER", "B-LOC"), 32, 4, frozen=frozen)


def test_what_does_not_fit_is_an_error():
    with pytest.raises(UserError, match=r"config.frozen to \('encoder',\)"):
        Task(Config(), setting(4, ()))
    with pytest.raises(UserError, match="'concat_last_four', which needs 4 layers; the model has 2"):
        Task(Config(), setting(2, ("encoder",)))
    with pytest.raises(UserError, match="config.task.lstm_size is 0; at least 1"):
        Config(lstm_size=0)
    assert "feature_tagging" in catalogue.parts("tasks")


@pytest.mark.heavy
def test_the_whole_command(tmp_path: Path):
    """A tagger on the frozen encoder of another one learns; the encoder stays, and its layer weights are features."""
    model = {"num_layers": 2, "hidden_size": 24, "num_heads": 2, "mlp_dim": 32}
    toy_tasks.write_toy(tmp_path, "tagging", 96, 32, model=model)
    assert toy_tasks.finetune(tmp_path, workdir="tagger") == 0
    recipe = toy_tasks.recipe(
        "tagging", export=True, schedule={"peak_learning_rate": 3e-2}, phases={"train": {"num_epochs": 6}}
    )
    recipe["task"] = {"name": "feature_tagging", "layers": "weighted_sum_all", "lstm_size": 16}
    recipe["model"] = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"frozen": ("encoder",)}))
    assert toy_tasks.finetune(tmp_path, f"--init={tmp_path / 'tagger'}", workdir="second") == 0
    losses = [record["loss"] for record in toy_tasks.evaluations(tmp_path, "second")]
    assert losses[-1] < 0.7 * losses[0]
    assert not (tmp_path / "second" / "hugging_face").exists()
    before, after = (load(str(tmp_path / name)) for name in ("tagger", "second"))
    jax.tree.map(np.testing.assert_array_equal, before.params["encoder"], after.params["encoder"])
    weights = after.params["layer_mix"]["weights"]
    assert len(weights) == 2
    assert weights[0] != weights[1]
    assert "layer_mix" not in before.params
