"""How many batches of each task an epoch has, against plain recomputations."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.tasks.mixing import Mixing

BATCHES = {"mnli": 900, "rte": 90, "stsb": 10}


def batches(epoch: int, num_epochs: int = 3, **keys: Any) -> dict[str, float]:
    mixing = configuration.build(Mixing, keys, "config.mixing")
    mixing.check(BATCHES)
    passes = mixing.passes(BATCHES, num_epochs)
    return {name: BATCHES[name] * of[min(epoch, len(of) - 1)] for name, of in passes.items()}


def test_every_example_once() -> None:
    assert batches(0) == batches(2) == BATCHES


def test_shares() -> None:
    found = batches(1, shares={"mnli": 2, "rte": 1, "stsb": 1.0})
    assert found == pytest.approx({"mnli": 500, "rte": 250, "stsb": 250})


def test_alpha_is_annealed_over_the_epochs() -> None:
    """With alpha = 1 - 0.8 (e - 1) / (E - 1) in epoch e of E, as Stickland & Murray (2019, section 3.2) have it."""
    for epoch in range(5):
        alpha = 1 - 0.8 * epoch / 4
        whole = 900**alpha + 90**alpha + 10**alpha
        wanted = {name: 1000 * n**alpha / whole for name, n in BATCHES.items()}
        assert batches(epoch, 5, alpha=1.0, alpha_end=0.2) == pytest.approx(wanted)
    assert batches(0, alpha=1.0) == pytest.approx(BATCHES)
    assert batches(2, alpha=0.0) == pytest.approx(dict.fromkeys(BATCHES, 1000 / 3))
    assert batches(0, 1, alpha=0.0, alpha_end=1.0) == pytest.approx(dict.fromkeys(BATCHES, 1000 / 3)), "one epoch"


def test_ratio_limits_the_others() -> None:
    assert batches(0, ratio=0.5, main="rte") == pytest.approx(
        {"mnli": 45 * 900 / 910, "rte": 90, "stsb": 45 * 10 / 910}
    )
    assert batches(0, ratio=2.0, main="mnli") == BATCHES, "at most all"


WRONG = {
    "has shares and alpha; one way to mix is allowed": {"shares": {"mnli": 1}, "alpha": 0.5},
    "config.mixing.ratio needs config.mixing.main": {"ratio": 0.5},
    "config.mixing.main needs config.mixing.ratio": {"main": "rte"},
    "config.mixing.alpha_end needs config.mixing.alpha;": {"alpha_end": 0.5},
    "config.mixing.alpha is -0.5; a number from 0 to": {"alpha": -0.5},
    "config.mixing.ratio is 0.0; a number above 0": {"ratio": 0.0, "main": "rte"},
    "config.mixing.shares.rte is 0; a number above 0": {"shares": {"mnli": 1, "rte": 0, "stsb": 1}},
    "config.mixing.shares.rte is -1; a number above 0": {"shares": {"mnli": 1, "rte": -1, "stsb": 1}},
    "config.mixing.shares lacks stsb; give every task": {"shares": {"mnli": 1, "rte": 1}},
    "config.mixing.shares names 'rtee', which is no task; did you mean 'rte'?": {
        "shares": {"mnli": 1, "rtee": 1, "stsb": 1}
    },
    "config.mixing.main names 'all', which is no task": {"ratio": 1.0, "main": "all"},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_one_line(message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        batches(0, **WRONG[message])


@pytest.mark.parametrize(("ratio", "others"), [(0.5, 2), (0.01, 1), (1.0, 3), (9.0, 6)])
def test_the_main_task_keeps_all_its_batches(ratio: float, others: int) -> None:
    """The others have whole batches together, at least one, and at most all."""
    passes = Mixing(main="a", ratio=ratio).passes({"a": 3, "b": 4, "c": 2}, 1)
    assert passes["a"] == (1.0,)
    assert 4 * passes["b"][0] + 2 * passes["c"][0] == pytest.approx(others)
