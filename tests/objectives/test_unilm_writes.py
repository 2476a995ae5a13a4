"""Writing with the direction "sequence to sequence": [MASK] after the last token, whose place the next token takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.models.encoders import bert
from bert_jax.models.model import LM_HEAD, Model
from bert_jax.objectives import unilm
from bert_jax.objectives.base import Setting
from bert_jax.task import Variables
from tests.models.helpers import random_params

PAD, CLS, SEP, MASK = 0, 2, 3, 4
LETTERS = np.arange(5, 10)
LONGEST = 4  # the most letters of a source; its target has twice as many
LENGTH = 3 * LONGEST + 3
SIZES = {"vocab_size": 15, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "mlp_dim": 128, "max_length": 16}
QUIET = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "type_vocab_size": 6}
CONFIG = bert.Config(**SIZES, **QUIET)


class Writer:
    """Writes targets of sources, token by token, with the kept keys and values of all tokens but [MASK]."""

    def __init__(self, config: Any, params: Any, types: tuple[int, int] = (4, 5)):
        model = Model(config, (LM_HEAD,))
        variables = {"params": {name: params[name] for name in ("encoder", "mlm_head")}}
        self.types, self.mask = types, MASK
        self.run = jax.jit(lambda kept, batch: model.apply({**variables, **kept}, batch, mutable=["memory"]))

    def start(self, sources: np.ndarray, lengths: np.ndarray, most: int) -> None:
        """Read sources [B, P] of ``lengths`` [B]: ``[CLS] A [SEP]``, padded; ``most``: the most tokens of a target."""
        rows, self.first = sources.shape
        places = np.arange(self.first + most + 1)[None]
        self.lengths = lengths
        self.slots = ((places < lengths[:, None]) | (places >= self.first)).astype(int)
        self.places = np.where(places < self.first, places, places - self.first + lengths[:, None])
        batch = {
            "input_ids": sources,
            "attention_mask": self.slots[:, : self.first],
            "token_type_ids": np.full_like(sources, self.types[0]),
            "masked_positions": np.zeros((rows, 1), int),
            "memory_ids": self.slots,
        }
        self.written, self.kept = 0, self.run({}, {n: jnp.asarray(x, jnp.int32) for n, x in batch.items()})[1]

    def step(self, last: np.ndarray) -> np.ndarray:
        """Return logits [B, V] of the next token; ``last`` [B] are the tokens before it. The first call reads none."""
        begun = self.written > 0  # else [MASK] stands in both places, and the first is read
        slot = self.first + max(self.written - 1, 0)
        batch = {
            "input_ids": np.stack([last if begun else np.full_like(last, MASK), np.full_like(last, MASK)], axis=1),
            "attention_mask": np.ones((len(last), 2), int),
            "token_type_ids": np.full((len(last), 2), self.types[1]),
            "position_ids": self.places[:, slot : slot + 2],
            "masked_positions": np.full((len(last), 1), int(begun)),
            "memory_ids": self.slots,
            "memory_positions": self.places,
            "memory_slot": np.asarray(slot),
        }
        out, self.kept = self.run(self.kept, {n: jnp.asarray(x, jnp.int32) for n, x in batch.items()})
        self.written += 1
        return np.asarray(out["mlm_logits"][:, 0])


# The stepper "a mask at the end" of tests/generation/test_steppers.py is compared in the quick tests.
@pytest.mark.heavy
def test_a_step_gives_what_the_whole_row_gives() -> None:
    """Sources of unlike lengths, float64; the whole row goes through the objective's ``inputs``."""
    steps, lengths = 5, np.array([4, 6])
    config = bert.Config(**{**SIZES, "hidden_size": 16, "mlp_dim": 24, "num_layers": 3}, **QUIET, dtype="float64")
    with jax.enable_x64(True):
        rng, params = np.random.default_rng(0), random_params(config)
        task = unilm.Objective(unilm.Config(), Setting(config, {"phase1": LENGTH}))
        whole = jax.jit(lambda batch: task.outputs(Variables(params, {}), batch)["mlm_logits"][:, 0])
        sources = np.where(np.arange(6)[None] < lengths[:, None], rng.integers(5, 15, (2, 6)), PAD)
        written = rng.integers(5, 15, (steps, 2))
        writer = Writer(config, params)
        writer.start(sources, lengths, steps)
        for number in range(steps):
            ids = np.zeros((2, LENGTH), int)
            for row, length in enumerate(lengths):
                ids[row, : length + number + 1] = [*sources[row, :length], *written[:number, row], MASK]
            places, last = np.arange(LENGTH)[None], (lengths + number)[:, None]
            rows = {"input_ids": ids, "attention_mask": places <= last, "masked_positions": last}
            rows["token_type_ids"] = (places >= lengths[:, None]) & (places <= last)
            expected = whole({name: jnp.asarray(x, jnp.int32) for name, x in rows.items()})
            found = writer.step(written[max(number - 1, 0)])
            np.testing.assert_allclose(found, expected, atol=1e-12)
        assert np.abs(found - np.asarray(whole({**rows, "token_type_ids": ids * 0}))).max() > 1e-2, "the power check"


# ---- A task that decides ---------------------------------------------------------------------------------------------


def reverse(letters: np.ndarray) -> np.ndarray:
    """Return the letters from the last to the first."""
    return letters[::-1]


def sums(letters: np.ndarray) -> np.ndarray:
    """Return for each letter its sum with the next letter, as a letter; after the last comes the first."""
    return (letters + np.roll(letters, -1)) % len(LETTERS) + LETTERS[0]


def pairs(work: Any, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sources [n, LONGEST + 2] with [CLS] and [SEP], their lengths [n], and rows [n, LENGTH] with targets.

    A target has each letter of ``work(letters of the source)`` twice. So a model that sees both sides of a masked
    letter need not read the source: the other of the two stands beside the mask.
    """
    numbers = rng.integers(2, LONGEST + 1, count)
    sources, rows = np.zeros((count, LONGEST + 2), int), np.zeros((count, LENGTH), int)
    for i, number in enumerate(numbers):
        letters = rng.choice(LETTERS, number)
        sources[i, : number + 2] = [CLS, *letters, SEP]
        rows[i, : 3 * number + 3] = [CLS, *letters, SEP, *np.repeat(work(letters), 2), SEP]
    return sources, numbers + 2, rows


def batches(work: Any, rng: np.random.Generator, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows in which one token of each target is masked, which may be its last [SEP]; 80/10/10."""
    places = np.arange(LENGTH)[None]
    while True:
        _, lengths, rows = pairs(work, rng, size)
        real = rows > 0
        target = real & (places >= lengths[:, None])
        picked = lengths + rng.integers(0, 2 * lengths - 3)
        chosen = places == picked[:, None]
        fate = rng.random(rows.shape)
        seen = np.where(fate < 0.8, MASK, np.where(fate < 0.9, rng.choice(LETTERS, rows.shape), rows))
        yield {
            "input_ids": np.where(chosen, seen, rows).astype(np.int32),
            "token_type_ids": target.astype(np.int32),
            "attention_mask": real.astype(np.int32),
            "masked_positions": np.broadcast_to(places, rows.shape).astype(np.int32),
            "masked_labels": rows.astype(np.int32),
            "masked_weights": chosen.astype(np.float32),
            "cls_positions": np.zeros((size, 1), np.int32),
            "next_sentence_labels": np.zeros((size, 1), np.int32),
            "next_sentence_weights": np.zeros((size, 1), np.float32),
            "row_weights": np.ones(size, np.float32),
        }


def trained(work: Any, direction: Any, steps: int) -> tuple[Any, float]:
    """Return the parameters after ``steps`` steps, and the mean loss of the last tenth."""
    task = unilm.Objective(unilm.Config(direction=direction), Setting(CONFIG, {"phase1": LENGTH}))
    params = jax.tree.map(lambda x: x * 0.3 if x.ndim > 1 else x, random_params(CONFIG))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, 100, steps)
    optimizer = optax.adam(schedule)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            nll = task.loss(Variables(params, {}), batch, None).terms["mlm"]
            return nll.value / nll.count

        value, gradient = jax.value_and_grad(loss)(params)
        update, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, update), state, value

    state, losses = optimizer.init(params), []
    for batch, _ in zip(batches(work, np.random.default_rng(1), 128), range(steps), strict=False):
        params, state, value = step(params, state, batch)
        losses.append(value)
    return params, float(np.mean(losses[-steps // 10 :]))


def exact_matches(work: Any, params: Any, types: tuple[int, int]) -> float:
    """Return the share of 200 targets, [SEP] included, that are written without a mistake."""
    sources, lengths, rows = pairs(work, np.random.default_rng(2), 200)
    writer = Writer(CONFIG, params, types)
    most = 2 * LONGEST + 1
    writer.start(sources, lengths, most)
    last, written = np.zeros(len(rows), int), []
    for _ in range(most):
        last = writer.step(last).argmax(axis=1)
        written.append(last)
    found = np.stack(written, axis=1)
    targets = [row[n : 3 * n - 3] for row, n in zip(rows, lengths, strict=True)]
    return float(
        np.mean([np.array_equal(one[: len(target)], target) for one, target in zip(found, targets, strict=True)])
    )


@pytest.mark.heavy
@pytest.mark.parametrize(("work", "most"), [(reverse, 0.9), (sums, 0.1)])
def test_a_source_is_read_where_both_sides_are_not_seen(work: Any, most: float) -> None:
    """With both sides the masked tokens are learned too, but from what will not be there when the model writes.

    Copying a letter of the source in the right place is as easy as copying the twin, so the control learns some of it.
    """
    params, loss = trained(work, "sequence to sequence", 2500)
    control, of_control = trained(work, "both sides", 2500)
    found, others = exact_matches(work, params, (4, 5)), exact_matches(work, control, (0, 1))
    print(f"sequence to sequence: loss {loss:.4f}, exact {found:.3f}; both sides: {of_control:.4f}, {others:.3f}")
    assert loss < 0.1 > of_control
    assert found > 0.95
    assert others < most
