"""Which rows phases and evaluations have: masks of held-out rows, and shares of a mixture."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.mixture import Mixture, check_shares, normalised
from bert_jax.corpora.store import Corpus
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.objectives import ltr, mlm
from bert_jax.objectives.base import Setting
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.mixture import TURN
from tests import toy
from tests.objectives.texts import Text, rows_of


def task(text: Text, rate: float, corpus: Any = None, objective: Any = mlm, **setting: Any) -> Any:
    own, tokenizer = text
    model = bert.Config(tokenizer.size, 32, 1, 2, 64, max_length=64)
    masking = MaskingConfig() if objective is ltr else MaskingConfig(rate=rate)
    one = objective.Objective(
        objective.Config(masking=masking), Setting(model, {"phase1": 64, "phase2": 64}, **setting)
    )
    return one.with_text(corpus or own, tokenizer)


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("trained", [0.3, 0.1])
def test_held_out_rows_have_masks_of_their_own(text: Text, trained: float) -> None:
    """They are those of a run that trains at that rate; the rows to train on are as before."""
    one = task(text, trained, heldout_masking={"rate": 0.15})
    assert_same(rows_of(one, split="eval"), rows_of(task(text, 0.15), split="eval"))
    assert_same(rows_of(one), rows_of(task(text, trained)))
    before = rows_of(task(text, trained), split="eval")["masked_weights"]
    assert abs(rows_of(one, split="eval")["masked_weights"].sum() / before.sum() - 0.15 / trained) < 0.1


def test_a_rate_that_falls_leaves_held_out_rows_as_they_are(text: Text) -> None:
    """Ettin masks 30 %, then 15 %: the last phase is evaluated, at every step of the run."""
    one = task(text, 0.3, changes={"phase2": {"masking": {"rate": 0.15}}}, heldout_masking={"rate": 0.2})
    indices = np.arange(12)
    masked = {
        (split, kind): one.source(split, kind, 0).rows(0 * indices, indices)["masked_weights"].sum()
        for split in ("train", "eval")
        for kind in ("phase1", "phase2")
    }
    assert masked["train", "phase2"] < 0.6 * masked["train", "phase1"]
    assert masked["eval", "phase2"] == masked["eval", "phase1"]


def test_masks_that_an_objective_cannot_have(text: Text) -> None:
    with pytest.raises(UserError, match="config.training.eval_masking is set, but the objective 'ltr' masks nothing"):
        task(text, 0.15, objective=ltr, heldout_masking={"rate": 0.3})
    with pytest.raises(UserError, match="unknown key config.training.eval_masking.rat; did you mean 'rate'"):
        task(text, 0.15, heldout_masking={"rat": 0.3})
    with pytest.raises(UserError, match="config.training.eval_masking.rate is 1.5; more than 0 and at most 1"):
        task(text, 0.15, heldout_masking={"rate": 1.5})


def test_a_phase_has_shares_of_its_own(text: Text, tmp_path: Path) -> None:
    """Held-out rows, and the phases without, have those of the run."""
    path = toy.write_text(tmp_path / "text.txt", documents=30, seed=5)
    source = Source(paths=(str(path),), format="sentences", document_boundary="blank_line")
    build(source, text[1], tmp_path / "store", BuildConfig(0.2))
    other = Corpus(tmp_path / "store")
    mixture = Mixture({"en": text[0], "fr": other}, {"en": 0.75, "fr": 0.25})
    own = {"phase2": normalised({"en": 1, "fr": 7})}
    one, plain = task(text, 0.15, mixture, shares=own), task(text, 0.15, mixture)
    indices = np.arange(TURN)
    for kind, count in {"phase1": 768, "phase2": 128}.items():
        source = one.source("train", kind, 0)
        assert np.bincount(source.locate(0 * indices, indices)[0]).tolist() == [count, TURN - count]
    assert_same(rows_of(one), rows_of(plain))
    assert_same(one.heldout_rows("phase2", 8), plain.heldout_rows("phase2", 8))

    alone = task(text, 0.15, mixture, shares={"phase1": normalised({"en": 0, "fr": 2})})
    assert_same(rows_of(alone), rows_of(task(text, 0.15, other)))


BAD = {
    "unknown": ({"en": 1, "de": 1}, "shares names 'de', no part of the corpus; .*valid: en, fr"),
    "missing": ({"en": 1}, "shares lacks fr; give every part one, 0 to leave it out of the phase"),
    "negative": (
        {"en": 1, "fr": -1},
        "shares is {'en': 1, 'fr': -1}; numbers of 0 or more are needed, and one above 0",
    ),
    "only 0": ({"en": 0, "fr": 0.0}, "shares is .*; numbers of 0 or more"),
    "a word": ({"en": "half", "fr": 1}, "shares is .*; numbers of 0 or more"),
}


@pytest.mark.parametrize("name", BAD)
def test_shares_that_do_not_fit(name: str) -> None:
    shares, message = BAD[name]
    with pytest.raises(UserError, match=f"config.phases.decay.{message}"):
        check_shares(shares, ("en", "fr"), "config.phases.decay.shares")
    with pytest.raises(UserError, match="config.phases.decay.shares is set, and the corpus has no parts; leave it out"):
        check_shares(shares, (), "config.phases.decay.shares")
