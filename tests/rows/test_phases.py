import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows.batch_warmup import batch_warmup
from bert_jax.rows.phases import MOST_STEPS, Phase, Phases, steps_per_epoch
from bert_jax.task import Bucket

TWO = Phases((Phase(5, 4, 16, "short"), Phase(3, 2, 32, "long")))


def test_one_clock_over_all_phases() -> None:
    assert TWO.num_steps == 8
    assert [TWO.phase_of(s).kind for s in range(8)] == ["short"] * 5 + ["long"] * 3
    assert TWO.locate(4) == (0, 4)
    assert TWO.locate(5) == (1, 0)


def test_every_row_of_an_epoch_comes_once_and_batches_cross_epochs() -> None:
    steps = [TWO.rows_of(s, [6, 5]) for s in range(8)]
    short = [(e, r) for s in steps[:5] for e, r in zip(s.epochs.tolist(), s.rows.tolist(), strict=True)]
    assert short == [(i // 6, i % 6) for i in range(20)]
    assert steps[1].epochs.tolist() == [0, 0, 1, 1]
    long = [(e, r) for s in steps[5:] for e, r in zip(s.epochs.tolist(), s.rows.tolist(), strict=True)]
    assert long == [(i // 5, i % 5) for i in range(6)]  # the second phase counts its own epochs
    assert {(s.kind, s.phase) for s in steps} == {("short", 0), ("long", 1)}


def test_only_the_epoch_length_of_the_step_s_phase_is_needed() -> None:
    step = TWO.rows_of(6, {1: 10**12})
    assert step.rows.tolist() == [2, 3]
    assert step.rows.dtype == np.int64


def test_a_far_step_costs_nothing() -> None:
    far = Phases((Phase(MOST_STEPS, 2**16, 128, "a"),)).rows_of(MOST_STEPS - 1, [10**9 + 7])
    assert far.epochs[-1] * (10**9 + 7) + far.rows[-1] == 2**16 * MOST_STEPS - 1


@pytest.mark.parametrize("step", [-1, 8])
def test_a_step_outside_the_run_is_an_error(step: int) -> None:
    with pytest.raises(UserError, match="steps 0 to 7"):
        TWO.phase_of(step)


def test_more_steps_than_a_step_counter_holds_are_an_error() -> None:
    with pytest.raises(UserError, match="2,147,483,648 steps in all; at most 2,147,483,647"):
        Phases((Phase(MOST_STEPS, 2, 16, "a"), Phase(1, 2, 16, "b")))


def test_names_are_in_natural_order() -> None:
    one = {"num_steps": 1, "batch_size": 2, "max_length": 16}
    found = Phases.of({"phase10": one, "phase9": one, "long": one, "128": one})
    assert [phase.kind for phase in found.phases] == ["128", "long", "phase9", "phase10"]


def test_bad_values_are_errors() -> None:
    with pytest.raises(UserError, match="batch_size is 0"):
        Phase(1, 0, 16, "a")
    with pytest.raises(UserError, match="at least one phase"):
        Phases(())


def test_a_phase_can_be_as_long_as_tokens_or_epochs_say() -> None:
    size = {"batch_size": 4, "max_length": 16}
    phases = Phases.of(
        {"a": {"num_tokens": 1000, **size}, "b": {"num_epochs": 1.5, **size}, "c": {"num_steps": 3, **size}}
    )
    assert phases.phases[0].num_steps == 16  # 15 steps have 960 tokens
    assert phases.in_epochs
    assert [p.num_steps for p in phases.in_steps(lambda index: {1: 7.25}[index]).phases] == [16, 11, 3]
    assert not Phases.of({"a": {"num_steps": 2, "num_epochs": None, **size}}).in_epochs
    for wrong in ({}, {"num_steps": 1, "num_tokens": 9}):
        with pytest.raises(
            UserError, match=r"config.phases.a has .* of num_steps, num_tokens, num_epochs; give exactly"
        ):
            Phases.of({"a": {**wrong, **size}})


def test_an_epoch_of_buckets_has_the_steps_that_all_of_them_need() -> None:
    assert steps_per_epoch(10, (), 4) == 2.5
    assert steps_per_epoch(40, (Bucket("a", 10, 2), Bucket("b", 30, 1)), 4) == 2 + 8


def test_the_batch_of_modernbert_grows_in_equal_numbers_of_steps() -> None:
    """768 rows a size on 8 devices: 3.33, 10, 20, 33.3 and 50 billion tokens are where it grows; 4,608 follow."""
    found = batch_warmup(range(768, 4608, 768), 50_000_000_000, 1024)
    phases = Phases.of({"phase2": {"num_steps": 9, "batch_size": 4608, "max_length": 1024}, **found}).phases
    assert [phase.batch_size for phase in phases] == [768, 1536, 2304, 3072, 3840, 4608]
    assert [phase.kind for phase in phases] == [*(f"phase1_{i}" for i in range(1, 6)), "phase2"]
    assert {phase.num_steps for phase in phases[:-1]} == {4239}
    read = np.cumsum([phase.num_steps * phase.batch_size * 1024 for phase in phases[:-1]]) / 1e9
    np.testing.assert_allclose(read, [50 / 15, 10, 20, 500 / 15, 50], rtol=2e-4)  # half a step of each size
    large = batch_warmup(range(448, 4928, 448), 10_000_000_000, 1024, name="a")
    assert list(large.values())[-1]["batch_size"] == 4480
    assert len(large) == 10
    with pytest.raises(UserError, match="over 40 tokens has no step of each of 2, 4 rows of 16; at least 96 are"):
        batch_warmup((2, 4), 40, 16)
