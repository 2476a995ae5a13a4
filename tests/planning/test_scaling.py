"""Advice for larger batches, against the tables it comes from."""

import dataclasses

import pytest

from bert_jax.planning import scaling
from bert_jax.runs import recipes
from bert_jax.runs.recipe_plan import PretrainingRecipe
from bert_jax.training.chips import CHIPS


@pytest.fixture
def experiment():
    return PretrainingRecipe.of(recipes.load("bert_large").to_dict()).settings.experiment()


@pytest.mark.parametrize(
    ("batch", "rate", "share"),
    [
        (4096, 0.00176, 3125 / 125_000),  # google-research/albert, README.md
        (1024, 0.0008838834765, 0.00625),  # dccuchile/albert-base-spanish, model card (used at 960)
        (32_768, 0.005, 3125 / 15_625),  # eight times 4,096; as many steps of warm-up, of You et al.'s 15,625
        (2**17, 0.005, 3125 / 15_625),
        (64, 0.000625, 3125 / 1_000_000),
    ],
)
def test_rates_of_lamb(batch, rate, share):
    assert scaling.lamb(batch) == pytest.approx((rate, share), rel=0.005)


def test_small_batches_keep_their_optimizer(experiment):
    """Malladi et al. 2022: a moment forgets after as many rows, so 1 - b grows as the batch."""
    first, second = scaling.advise(experiment, 4)
    assert (first.batch_size, first.num_steps, first.optimizer) == (1024, 225_000, "adamw")
    assert first.learning_rate == pytest.approx(2e-4)
    assert first.warmup_steps == 2500
    assert (first.b1, first.b2, first.eps) == pytest.approx((0.6, 0.996, 5e-7))
    assert (second.num_steps, second.warmup_steps) == (25_000, 0)


def test_betas_stay_where_the_rule_has_none(experiment):
    phases = dataclasses.replace(experiment.phases.phases[0], batch_size=8)
    few = dataclasses.replace(experiment, phases=dataclasses.replace(experiment.phases, phases=(phases,)))
    [advice] = scaling.advise(few, 16)
    assert (advice.optimizer, advice.b1, advice.b2, advice.eps) == ("adamw", None, None, None)


def test_beyond_a_thousand_it_is_lamb(experiment):
    first, _ = scaling.advise(experiment, 128)
    assert (first.batch_size, first.optimizer) == (32_768, "lamb")
    assert first.learning_rate == pytest.approx(5e-3)
    assert first.warmup_steps == pytest.approx(first.num_steps / 5, abs=1)
    assert first.b1 is None


def test_an_example_by_hand(experiment):
    """32 x 256 rows: 900,000 / 32 steps, as many rows; 0.00176 x sqrt(2); 1 / 20 of the steps warm up."""
    first, second = scaling.advise(experiment, 32)
    assert (first.batch_size, first.num_steps, first.warmup_steps) == (8192, 28_125, 1406)
    assert (second.batch_size, second.num_steps, second.warmup_steps) == (8192, 3125, 156)
    assert first.learning_rate == second.learning_rate == pytest.approx(0.0025)
    assert first.batch_size * first.num_steps == 256 * 900_000


def test_a_large_batch_of_the_recipe_is_left_alone(experiment):
    phases = tuple(dataclasses.replace(phase, batch_size=4096) for phase in experiment.phases.phases)
    large = dataclasses.replace(experiment, phases=dataclasses.replace(experiment.phases, phases=phases))
    assert {(a.optimizer, a.learning_rate) for a in scaling.advise(large, 1)} == {("adamw", 1e-4)}


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


def test_a_gpu_receives_over_one_link(experiment):
    """989e12 / 450e9: 2,198 positions a GPU, half of what two links would ask."""
    assert CHIPS["h100"].axis_bandwidth == 450e9
    wanted = 2198 * 64
    assert wanted <= scaling.suggested_factor(experiment, CHIPS["h100"], 64) * 256 * 128 < 2 * wanted
