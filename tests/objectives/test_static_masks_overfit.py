"""What masks drawn anew are for (Liu et al. 2019, section 4.1): masks that come again are learned by heart.

Toy text: a Markov chain, so little of it that each row is seen 150 times.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.objectives.learning import BATCH, Learner
from tests.rows.fakes import FACTS, FakeSplit

STATES, LENGTH, ROWS, EPOCHS = 40, 32, 256, 150


def text(seed: int, rows: int) -> FakeSplit:
    """A document a row, of one sentence; each state is followed by one of four."""
    followers = np.random.default_rng(99).integers(STATES, size=(STATES, 4))
    rng = np.random.default_rng(seed)
    states = [rng.integers(STATES, size=rows)]
    for _ in range(LENGTH - 3):
        states.append(followers[states[-1], rng.integers(4, size=rows)])
    return FakeSplit([np.array([LENGTH - 2])] * rows, 5 + np.stack(states, axis=1).ravel())


@functools.cache
def gap(copies: int | None, seed: int) -> float:
    """Train, and return the held-out loss less that of the last epoch's rows."""
    learner = Learner(5 + STATES, LENGTH)
    config = RowsConfig(
        LENGTH,
        masking=MaskingConfig(copies=copies),
        arrangement="sentences",
        arrangement_options={"blocks": "document"},
    )
    source = SequenceRows(config, text(seed, ROWS), FACTS, seed=seed)
    steps = ROWS * EPOCHS // BATCH
    params = learner.learn(source, seed, steps)
    heldout = SequenceRows(config, text(10_000 + seed, 1000), FACTS, seed=seed)
    seen = learner.measure(params, learner.rows(source, ROWS * (EPOCHS - 1), ROWS))[0]
    return float(learner.measure(params, learner.rows(heldout, 0, 1000))[0] - seen)


@pytest.mark.heavy
def test_masks_that_come_again_overfit_more() -> None:
    """Three seeds; the means differ by more than two standard errors."""
    static, dynamic = (np.array([gap(copies, seed) for seed in range(3)]) for copies in (10, None))
    error = np.sqrt((static.var(ddof=1) + dynamic.var(ddof=1)) / 3)
    print(f"\nheld-out less train loss: ten copies {static.round(3)}, drawn anew {dynamic.round(3)}")
    assert static.mean() - dynamic.mean() > max(0.05, 2 * error)
