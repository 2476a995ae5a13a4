"""Which steps ``config.checkpoints.at`` names, in steps, tokens and words, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from bert_jax import configuration
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.checkpoints.revisions import SERIES, remarks, steps_at
from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.errors import UserError
from bert_jax.rows.phases import Phase, Phases
from tests.checkpoints.test_checkpoints import save, workdir  # noqa: F401 - a fixture

# 100 steps of 40 positions, then 50 steps of 400.
PHASES = Phases((Phase(100, 4, 10, "phase1"), Phase(50, 4, 100, "phase2")))
WORDS = {0: 20.0, 1: 300.0}  # of a step of each phase


def at(*entries: int | str, words: Any = WORDS.__getitem__) -> dict[str, int]:
    return steps_at(entries, PHASES, words)


def test_steps_tokens_and_words_are_the_first_steps_that_reach_them() -> None:
    """In the second phase a step reads more."""
    assert at(150, "0", "1_0 steps") == {"step0": 0, "step10": 10, "step150": 150}
    assert at("0 tokens, 1 token, 41tokens") == {"0_tokens": 0, "1_tokens": 1, "41_tokens": 2}
    assert at("4k tokens", "4.001k tokens", "24k tokens") == {"4k_tokens": 100, "4.001k_tokens": 101, "24k_tokens": 150}
    assert at("1 word", "2k words", "2001 words") == {"1_words": 1, "2k_words": 100, "2001_words": 101}
    assert at("7, 99M words", words=None) == {"step7": 7}


def test_words_are_an_estimate_so_the_last_mark_is_the_last_step() -> None:
    """The run reads 2,000 + 15,000 words."""
    assert at("17k words") == {"17k_words": 150}
    assert at("17.8k words") == {"17.8k_words": 150}
    with pytest.raises(UserError, match=r"has 18k_words \(step 154\), and the run ends at step 150; leave it out"):
        at("18k words")


def test_the_series_of_pythia() -> None:
    long = Phases((Phase(143_000, 1, 1, "phase1"),))
    found = steps_at(("pythia",), long, None)
    assert len(found) == 154  # as published
    assert list(found.items())[:4] == [("step0", 0), ("step1", 1), ("step2", 2), ("step4", 4)]
    assert list(found)[10:13] == ["step512", "step1000", "step2000"]
    assert found["step143000"] == 143_000
    assert list(at("pythia").values()) == [0, 1, 2, 4, 8, 16, 32, 64, 128]


def test_the_series_of_babylm_ends_with_ten_epochs() -> None:
    every = [mark.revision for mark in SERIES["babylm"]()]
    assert (every[0], every[8], every[9], every[18], every[-1], len(every)) == (
        "chck_1M", "chck_9M", "chck_10M", "chck_100M", "chck_1000M", 28,
    )  # fmt: skip
    strict_small = steps_at(("babylm",), Phases((Phase(1000, 1, 1, "phase1"),)), lambda _: 98_000.0)
    assert list(strict_small)[-2:] == ["chck_90M", "chck_100M"]
    assert strict_small["chck_100M"] == 1000
    assert strict_small["chck_1M"] == 11
    with pytest.raises(UserError, match="chck_1M and chck_2M are the same step, 1; take a smaller batch, or name the"):
        steps_at(("babylm",), Phases((Phase(1000, 1, 1, "phase1"),)), lambda _: 2e6)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((151,), "has step151, and the run ends at step 150; leave it out, or train longer"),
        (("25k tokens",), r"has 25k_tokens \(step 153\), and the run ends at step 150"),
        ((7, "7"), "step7 and step7 are the same step, 7; leave one out"),
        (("8", "320 tokens"), "step8 and 320_tokens are the same step, 8"),
        (("pythia", 4), "step4 and step4 are the same step, 4"),
    ],
)
def test_what_does_not_fit_the_run_is_refused(entries: tuple[int | str, ...], message: str) -> None:
    with pytest.raises(UserError, match=f"^config.checkpoints.at:? {message}"):
        at(*entries)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("5 epochs", "has '5 epochs'; a number of steps, tokens or words .* is needed: valid: babylm, pythia"),
        ("phytia", "has 'phytia'; .* did you mean 'pythia'?"),
        ("-1", "has '-1'"),
        ("1,", "has ''"),
        ("0.5 tokens", "has '0.5 tokens', which is no whole number of tokens"),
        ((1.5,), r"at\[0\] is 1.5; expected int or str"),
        (True, "at is True; expected a tuple"),
    ],
)
def test_an_entry_that_says_nothing_is_refused_at_once(entry: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"config.checkpoints.{message}" if "at" in message[:2] else message):
        configuration.build(CheckpointConfig, {"at": entry}, "config.checkpoints")


def test_one_entry_needs_no_brackets() -> None:
    for given, wanted in ((512, (512,)), ("pythia", ("pythia",)), ([0, "10M tokens"], (0, "10M tokens"))):
        assert configuration.build(CheckpointConfig, {"at": given}, "config.checkpoints").at == wanted


def test_named_steps_stay_whatever_is_kept(workdir: str) -> None:  # noqa: F811
    save(workdir, 0, 1, 2, 3, keep=1, steps_at=(0, 2))
    assert saved_steps(workdir) == [0, 2, 3]
    save(workdir, 5, 8, keep=1, steps_at=(0, 2, 5))  # after a restart
    assert saved_steps(workdir) == [0, 2, 5, 8]


def test_the_user_is_told_which_steps_are_kept_and_which_are_not() -> None:
    few, many = {"step0": 0, "1M_words": 5}, {f"step{n}": n for n in (0, 1, 2, 4, 8)}
    assert remarks({}, [7]) == []
    assert remarks(few, []) == ["kept for ever: step0, 1M_words (step 5)"]
    assert remarks(many, []) == ["kept for ever: step0, step1, ..., step8, 5 in all"]
    assert remarks(many, [1, 7])[1] == "not saved, because the run has passed them: step0, step2, step4"
