"""What BERT can and ELMo cannot (Devlin et al. 2019, section 1): read both sides of a token together.

Toy text: triples of a left letter a, a middle token and a right letter b. The middle is token (a + b) modulo 7, or
[MASK] in two triples of three. In 60 % of the triples a and b are the same letter, so each direction has to keep the
letter that it has read. ELMo and BERT read the same text. Then the middle of triples of independent letters is
classified from frozen vectors; it is [MASK] there, and neither letter alone says anything about it. A vector of ELMo is
what the forward direction says about the left side, beside what the backward direction says about the right side. The
scores of a linear layer on a mix of its layers are a sum f(a) + g(b), and the best of these sums is the same for all
classes. Another layer between can add the letters up. BERT has done so in its vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders import bert, bilm
from bert_jax.models.heads import Classifier, Head, LayerMix
from bert_jax.models.model import LM_HEAD, Model, Part, encoder_of
from bert_jax.objectives.bilm import Config, Objective
from bert_jax.objectives.setting import Setting
from bert_jax.task import Variables
from bert_jax.training.mesh import unbox
from tests.objectives.learning import Batch, masked_lm

N, TRIPLES = 7, 3  # classes, which are as many as letters; triples of a row
CLS, SEP, MASK, LEFT = 1, 2, 3, 4
MIDDLE, RIGHT = LEFT + N, LEFT + 2 * N
SIZE, LENGTH = LEFT + 3 * N, 3 * TRIPLES + 2
ROWS, TRAINED, TESTED, WIDTH = 128, 4_096, 2_048, 64
CHANCE, MASKED, ALIKE = 1 / N, 2, 0.6  # masks of a row, and triples of one letter, in the text that is learned


class Hidden(Head):
    """A layer between the vectors and the classifier."""

    @nn.compact
    def __call__(self, outputs: Any, batch: Any, rng: Any) -> dict[str, jax.Array]:
        return {"sequence": jax.nn.relu(nn.Dense(256, name="dense")(outputs["sequence"]))}


HEAD = Part.of("classifier", Classifier, num_outputs=N, vectors="sequence")
BETWEEN = Part.of("between", Hidden)
ELMO = Part.of("layer_mix", LayerMix, layers="weighted_sum_with_embeddings")


def text(rng: np.random.Generator, rows: int, alike: float) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of triples [rows, LENGTH], whose middles are all there, and the sums [rows, TRIPLES].

    ``alike``: the share of triples whose letters are the same for another reason than chance.
    """
    left, right = rng.integers(N, size=(2, rows, TRIPLES))
    right = np.where(rng.random(right.shape) < alike, left, right)
    sums = (left + right) % N
    triples = np.stack([LEFT + left, MIDDLE + sums, RIGHT + right], axis=2).reshape(rows, -1)
    return np.pad(triples, ((0, 0), (1, 1)), constant_values=((CLS, SEP),) * 2), sums


def features(ids: np.ndarray) -> Batch:
    zeros = np.zeros_like(ids)
    batch = {"input_ids": ids, "attention_mask": zeros + 1, "token_type_ids": zeros}
    return {name: x.astype(np.int32) for name, x in batch.items()} | {"row_weights": np.ones(len(ids), np.float32)}


def with_masks(rng: np.random.Generator, rows: int, masked: int = 1, alike: float = 0.0) -> Batch:
    """Return rows in which so many middles are [MASK], with their places, and the tokens that were there."""
    ids, sums = text(rng, rows, alike)
    triples = rng.random((rows, TRIPLES)).argsort(axis=1)[:, :masked]
    places, labels = 3 * triples + 2, np.take_along_axis(sums, triples, axis=1)
    np.put_along_axis(ids, places, MASK, axis=1)
    of_masks = {"masked_positions": places, "masked_labels": MIDDLE + labels, "classes": labels}
    weights = {"masked_weights": np.ones(places.shape, np.float32)}
    return features(ids) | {name: x.astype(np.int32) for name, x in of_masks.items()} | weights


def elmo_loss(config: ModelConfig) -> tuple[Model, Callable[[Any, Any], jax.Array]]:
    task = Objective(Config(), Setting(config, {"phase1": LENGTH}))

    def loss(params: Any, batch: Any) -> jax.Array:
        terms = task.loss(Variables(params, {}), batch, None).terms
        return sum(0.5 * term.value / term.count for term in terms.values())  # type: ignore[return-value]

    return Model(config, (LM_HEAD,)), loss


def bert_loss(config: ModelConfig) -> tuple[Model, Callable[[Any, Any], jax.Array]]:
    model = Model(config, (LM_HEAD,))
    return model, lambda params, batch: masked_lm(model.apply({"params": params}, batch), batch)[0]


def train(
    params: Any, loss: Callable[[Any, Any], jax.Array], batches: Callable[[int], Batch], steps: int, rate: float
) -> Any:
    """Return the parameters after ``steps`` of Adam, with a rate that rises to ``rate`` and falls to 0."""
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, 50, steps))

    @jax.jit
    def step(params: Any, moments: Any, batch: Any) -> Any:
        updates, moments = optimizer.update(jax.grad(loss)(params, batch), moments)
        return optax.apply_updates(params, updates), moments

    moments = jax.jit(optimizer.init)(params)
    for number in range(steps):
        params, moments = step(params, moments, batches(number))
    return params


@functools.cache
def pretrained(name: str, seed: int) -> tuple[ModelConfig, Any]:
    """Return the config and the parameters of the encoder that has learned the text."""
    shared: dict[str, Any] = {"vocab_size": SIZE, "max_length": LENGTH, "dropout_rate": 0.0}
    config: ModelConfig
    if name == "elmo":
        config, made = bilm.Config(**shared, hidden_size=2 * WIDTH, cell_size=2 * WIDTH), elmo_loss
        steps, rate = 800, 3e-3
    else:
        sizes = {"hidden_size": 2 * WIDTH, "num_layers": 2, "num_heads": 4, "mlp_dim": 4 * WIDTH}
        config = bert.Config(**shared, **sizes, attention_dropout_rate=0.0)
        made, steps, rate = bert_loss, 1_500, 2e-3
    rng = np.random.default_rng(seed)
    model, loss = made(config)
    params = unbox(jax.jit(model.init)(jax.random.key(seed), with_masks(rng, 2))["params"])
    params = train(params, loss, lambda number: with_masks(rng, ROWS, MASKED, ALIKE), steps, rate)
    return config, params["encoder"]


class Above(nn.Module):
    """The heads alone, on hidden states [N + 1, B, 1, D] that are data."""

    config: ModelConfig
    parts: tuple[Part, ...]

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        outputs = {"hidden": hidden, "sequence": hidden[-1]}
        for name, head, options in self.parts:
            outputs |= head(self.config, **dict(options), name=name)(outputs, {}, None)  # type: ignore[operator]
        return outputs["logits"][:, 0]


def from_frozen(name: str, parts: tuple[Part, ...], seed: int) -> tuple[float, float]:
    """Return accuracy and loss of a classifier of [MASK] on held-out rows, from the vectors of the encoder."""
    config, encoder = pretrained(name, seed)
    rows = with_masks(np.random.default_rng(100 + seed), TRAINED + TESTED)
    states = jax.jit(lambda batch: encoder_of(config).apply({"params": encoder}, batch, None, "all").hidden)(rows)  # type: ignore[union-attr]
    hidden = np.take_along_axis(np.asarray(states), rows["masked_positions"][None, :, :, None], axis=2)
    above, classes = Above(config, parts), rows["classes"][:, 0]

    def loss(params: Any, batch: Any) -> jax.Array:
        return nll(above.apply({"params": params}, batch["hidden"]), batch["classes"])

    params = unbox(above.init(jax.random.key(seed), hidden[:, :2])["params"])
    train_rows = {"hidden": hidden[:, :TRAINED], "classes": classes[:TRAINED]}
    params = train(params, loss, lambda number: train_rows, 600, 1e-2)
    scores: Any = above.apply({"params": params}, hidden[:, TRAINED:])
    right = np.asarray(scores).argmax(axis=1) == classes[TRAINED:]
    return float(right.mean()), float(nll(scores, classes[TRAINED:]))


def nll(scores: Any, classes: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores, classes).mean()


def fine_tuned(name: str, seed: int) -> float:
    """Return the accuracy of a linear layer, if the encoder learns with it."""
    config, encoder = pretrained(name, seed)
    model, rng = Model(config, (HEAD,)), np.random.default_rng(100 + seed)
    heldout = with_masks(rng, TESTED)

    def scores(params: Any, batch: Any) -> jax.Array:
        logits = model.apply({"params": params}, batch)["logits"]  # type: ignore[index]
        return jnp.take_along_axis(logits, batch["masked_positions"][:, :, None], axis=1)[:, 0]  # type: ignore[no-any-return]

    params = unbox(jax.jit(model.init)(jax.random.key(seed), with_masks(rng, 2))["params"])
    params = train(
        {**params, "encoder": encoder},
        lambda params, batch: nll(scores(params, batch), batch["classes"][:, 0]),
        lambda number: with_masks(rng, ROWS),
        200,
        1e-3,
    )
    return float((np.asarray(scores(params, heldout)).argmax(axis=1) == heldout["classes"][:, 0]).mean())


@pytest.mark.heavy
def test_a_linear_layer_needs_vectors_that_have_read_both_sides_together() -> None:
    """What ELMo's vectors say is all there: another layer finds it. But its loss is no better than of a guess."""
    for seed in range(3):
        elmo, loss = from_frozen("elmo", (ELMO, HEAD), seed)
        between, _ = from_frozen("elmo", (ELMO, BETWEEN, HEAD), seed)
        of_bert, _ = from_frozen("bert", (HEAD,), seed)
        tuned = fine_tuned("bert", seed)
        print(
            f"\nseed {seed}: ELMo, linear {elmo:.3f} (loss {loss:.3f}, of a guess {np.log(N):.3f}), with a layer "
            f"between {between:.3f}; BERT, linear {of_bert:.3f}, fine-tuned {tuned:.3f}; chance {CHANCE:.3f}"
        )
        assert elmo < CHANCE + 3 * np.sqrt(CHANCE * (1 - CHANCE) / N**2), "a guess for each of the 49 pairs of letters"
        assert loss > np.log(N) - 0.02
        assert between > 0.7
        assert of_bert > 0.95
        assert tuned > 0.95
