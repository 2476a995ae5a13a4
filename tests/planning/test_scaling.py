"""Advice for larger batches, against the tables it comes from."""

import dataclasses

import pytest

from bert_jax import recipes
from bert_jax.planning import scaling
from bert_jax.planning.chips import CHIPS
from bert_jax.recipe_plan import PretrainingRecipe


@pytest.fixture
def experiment():
    return PretrainingRecipe.of(recipes.load("bert_large").to_dict()).settings.experiment()


def test_the_table_follows_its_two_rules():
    """You et al. 2020: eight times the rate and 64 times the warm-up from 512 to 32,768."""
    assert scaling.lamb(32_768)[0] == pytest.approx(8 * scaling.lamb(512)[0])
    assert scaling.lamb(32_768)[1] == pytest.approx(64 * scaling.lamb(512)[1])
    assert scaling.lamb(4096 * 2) == pytest.approx(scaling.LAMB_TABLE[8192])
    assert scaling.lamb(3 * 2048)[0] == pytest.approx(scaling.LAMB_TABLE[2048][0] * 3**0.5, rel=1e-6)


def test_small_batches_keep_their_optimizer(experiment):
    first, second = scaling.advise(experiment, 4)
    assert (first.batch_size, first.num_steps, first.optimizer) == (1024, 225_000, "adamw")
    assert first.learning_rate == pytest.approx(2e-4)
    assert first.warmup_steps == 2500
    assert second.num_steps == 25_000


def test_beyond_a_thousand_it_is_lamb(experiment):
    first, _ = scaling.advise(experiment, 128)
    assert (first.batch_size, first.optimizer) == (32_768, "lamb")
    assert first.learning_rate == pytest.approx(5e-3)
    assert first.warmup_steps == pytest.approx(first.num_steps / 5, abs=1)


def test_one_is_the_recipe_itself(experiment):
    for advice, phase in zip(scaling.advise(experiment, 1), experiment.phases.phases, strict=True):
        assert (advice.batch_size, advice.num_steps) == (phase.batch_size, phase.num_steps)
        assert advice.learning_rate == experiment.schedule.peak_learning_rate


def test_a_larger_machine_wants_a_larger_batch(experiment):
    chip = CHIPS["v5p"]
    factors = [scaling.suggested_factor(experiment, chip, devices) for devices in (1, 64, 256)]
    assert factors[0] == 1
    assert factors[2] == 4 * factors[1]
    wanted = 2550 * 64  # positions, jax-ml/scaling-book
    assert wanted <= factors[1] * 256 * 128 < 2 * wanted
    slow = dataclasses.replace(chip, link_bandwidth=chip.link_bandwidth / 4)
    assert scaling.suggested_factor(experiment, slow, 64) == 4 * factors[1]
