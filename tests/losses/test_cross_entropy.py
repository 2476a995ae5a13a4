"""Cross entropy against its definition, in numpy and float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.losses.cross_entropy import cross_entropy
from bert_jax.objectives.terms import MLM, punctuation, with_words_alone
from bert_jax.task import measure_terms
from bert_jax.text.tokenizer import wordpiece

SHAPE, V = (3, 5), 11


def draw(scale: float = 3.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """logits [3, 5, V], labels [3, 5], weights [3, 5] of which some are 0."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 2.0, SHAPE) * (rng.random(SHAPE) < 0.7)
    logits = rng.normal(0.0, scale, (*SHAPE, V)).astype(np.float32)
    labels = np.where(rng.random(SHAPE) < 0.5, logits.argmax(-1), rng.integers(0, V, SHAPE)).astype(np.int32)
    return logits, labels, weights.astype(np.float32)


def by_definition(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Sums of weighted nll and of weighted hits."""
    exact = logits.astype(np.float64)
    exact -= exact.max(-1, keepdims=True)
    log_probabilities = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_probabilities, labels[..., None], -1)[..., 0]
    return float((nll * weights).sum()), float(((logits.argmax(-1) == labels) * weights).sum())


@pytest.mark.parametrize("scale", [0.1, 3.0, 1e4], ids=["flat", "usual", "far beyond the range of exp"])
def test_against_the_definition(scale: float) -> None:
    logits, labels, weights = draw(scale)
    loss, accuracy = cross_entropy(jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(weights))
    nll, hits = by_definition(logits, labels, weights)
    assert 0 < hits < weights.sum()
    assert float(loss.value) == pytest.approx(nll, rel=2e-6)
    assert float(accuracy.value) == pytest.approx(hits, rel=1e-6)
    assert float(loss.count) == float(accuracy.count) == pytest.approx(weights.sum(), rel=1e-6)


def test_labels_of_weight_0_count_nowhere() -> None:
    logits, labels, weights = map(jnp.asarray, draw())
    others = jnp.where(weights == 0, (labels + 1) % V, labels)
    assert bool((others != labels).any())

    def values(labels: jax.Array) -> list[float]:
        return [float(x) for pair in cross_entropy(logits, labels, weights) for x in pair]

    assert values(others) == values(labels)
    assert values(labels)[1] == pytest.approx(float(weights.sum()))
    gradient = jax.grad(lambda x: cross_entropy(x, labels, weights)[0].value)(logits)
    assert not bool(gradient[weights == 0].any())


def test_accuracy_without_punctuation_leaves_out_labels_that_are_signs_alone() -> None:
    logits, labels, weights = draw()
    table = np.arange(V) % 3 == 0
    batch = {"masked_labels": jnp.asarray(labels), "masked_weights": jnp.asarray(weights)}
    outputs = {"mlm_logits": jnp.asarray(logits)}
    losses, metrics, _ = measure_terms({"mlm": with_words_alone(MLM, table)}, outputs, batch)
    nll, hits = by_definition(logits, labels, weights * ~table[labels])
    assert 0 < hits < (weights * ~table[labels]).sum() < weights.sum()
    assert metrics["mlm_loss"] == losses["mlm"]
    found = metrics["mlm_accuracy_no_punctuation"]
    assert (float(found.value), float(found.count)) == pytest.approx((hits, (weights * ~table[labels]).sum()), rel=1e-6)
    other = measure_terms({"": with_words_alone(MLM._replace(baseline="none"), table)}, outputs, batch).metrics
    assert other.keys() == {"loss", "accuracy"}


def test_punctuation_is_pieces_of_signs_alone() -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "，", "。」", "##—", "a.", "床", "$", "##s", "-"]
    table = punctuation(wordpiece(pieces, lowercase=True), len(pieces) + 3)
    assert [pieces[i] for i in np.flatnonzero(table)] == ["，", "。」", "##—", "-"]
    assert len(table) == len(pieces) + 3
    assert not punctuation(None, 5).any()


def test_no_weight_at_all_gives_zeros() -> None:
    logits, labels, _ = map(jnp.asarray, draw())
    loss, accuracy = cross_entropy(logits, labels, jnp.zeros(SHAPE))
    assert [float(x) for x in (*loss, *accuracy)] == [0.0] * 4


def test_the_gradient_is_softmax_minus_one_hot() -> None:
    logits, labels, weights = draw()
    gradient = jax.grad(lambda x: cross_entropy(x, jnp.asarray(labels), jnp.asarray(weights))[0].value)(
        jnp.asarray(logits)
    )
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    expected = (powers / powers.sum(-1, keepdims=True) - np.eye(V)[labels]) * weights[..., None]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits, labels, weights = draw()
    rounded = jnp.asarray(logits, jnp.bfloat16)
    loss, accuracy = cross_entropy(rounded, jnp.asarray(labels), jnp.asarray(weights))
    nll, _ = by_definition(np.asarray(rounded, np.float32), labels, weights)
    assert loss.value.dtype == accuracy.value.dtype == jnp.float32
    assert float(loss.value) == pytest.approx(nll, rel=2e-6)
