import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.interfaces import Rows
from bert_jax.rows.masking import MaskingConfig, mask_rows
from bert_jax.rows.strategies import token
from tests.rows.fakes import FACTS, VOCAB_SIZE, chi_square_z, z

LENGTH = 64
DEFAULT = MaskingConfig()


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids [n, L], candidates [n, L], lengths [n] of rows of many lengths, with three special tokens each."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, LENGTH + 1, count)
    positions = np.arange(LENGTH)
    candidates = (positions < lengths[:, None] - 1) & (positions > 0) & (positions != lengths[:, None] // 2)
    ids = np.where(candidates, rng.integers(5, VOCAB_SIZE, (count, LENGTH)), FACTS.sep).astype(np.int32)
    return ids, candidates, lengths


def laid_out(ids: np.ndarray, candidates: np.ndarray, lengths: np.ndarray) -> Rows:
    real = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int32)
    return Rows(ids, 0 * ids, real, candidates, lengths)


def mask(count: int, config: MaskingConfig = DEFAULT) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
    data = rows(count)
    return mask_rows(laid_out(*data), random.fold(random.key("m"), np.arange(count)), config, FACTS), data


def test_counts_are_those_of_the_original() -> None:
    features, (_, _, lengths) = mask(2000)
    expected = [min(10, max(1, round(0.15 * n))) for n in lengths.tolist()]
    assert features["masked_weights"].sum(axis=1).tolist() == expected
    assert features["masked_weights"].shape == (2000, 10)
    assert MaskingConfig().predictions(128) == 19
    assert MaskingConfig().predictions(512) == 77
    assert MaskingConfig(max_predictions=20).predictions(128) == 20


def test_positions_are_ascending_candidates_and_labels_what_stood_there() -> None:
    features, (ids, candidates, _) = mask(2000)
    real = features["masked_weights"] > 0
    row, slot = np.nonzero(real)
    position = features["masked_positions"][row, slot]
    assert candidates[row, position].all()
    assert (features["masked_labels"][row, slot] == ids[row, position]).all()
    assert (np.diff(features["masked_positions"], axis=1)[real[:, 1:]] > 0).all()
    assert not features["masked_positions"][~real].any()
    assert not features["masked_labels"][~real].any()
    untouched = np.ones_like(candidates)
    untouched[row, position] = False
    assert (features["input_ids"][untouched] == ids[untouched]).all()


@pytest.mark.parametrize("config", [MaskingConfig(), MaskingConfig(mask_share=0.5, random_share=0.25, rate=0.4)])
def test_corruption_rates(config: MaskingConfig) -> None:
    features, _ = mask(20_000, config)
    row, slot = np.nonzero(features["masked_weights"])
    seen = features["input_ids"][row, features["masked_positions"][row, slot]]
    label = features["masked_labels"][row, slot]
    n, by_chance = len(row), config.random_share / VOCAB_SIZE  # a random piece may be [MASK] or the label itself
    kept = 1 - config.mask_share - config.random_share
    assert abs(z((seen == FACTS.mask).sum(), n, config.mask_share + by_chance)) < 4
    assert abs(z((seen == label).sum(), n, kept + by_chance)) < 4
    # The random pieces are uniform over the whole vocabulary, special tokens included.
    other = seen[(seen != label) & (seen != FACTS.mask)]
    without_mask = np.delete(np.bincount(other, minlength=VOCAB_SIZE), FACTS.mask)
    assert abs(chi_square_z(without_mask, np.full(VOCAB_SIZE - 1, len(other) / (VOCAB_SIZE - 1)))) < 4


def test_every_candidate_is_selected_equally_often() -> None:
    n, size, chosen = 20_000, 20, 3
    candidates = np.ones((n, size), bool)
    candidates[:, [0, 7, 19]] = False
    keys = random.fold(random.key("s"), np.arange(n))
    selected = token.select(candidates, candidates, np.full(n, chosen), keys, token.Config()).positions
    assert (selected.sum(axis=1) == chosen).all()
    assert not selected[~candidates].any()
    rates = selected.sum(axis=0)[candidates[0]]
    assert max(abs(z(hits, n, chosen / 17)) for hits in rates) < 4
    together = (selected[:, 1] & selected[:, 2]).sum()
    assert abs(z(together, n, chosen * (chosen - 1) / (17 * 16))) < 4  # without replacement


def test_a_row_depends_on_its_own_key_alone() -> None:
    features, (ids, candidates, lengths) = mask(100)
    keys = random.fold(random.key("m"), np.arange(100))
    some = np.array([41, 3, 77])
    again = mask_rows(laid_out(ids[some], candidates[some], lengths[some]), keys[some], MaskingConfig(), FACTS)
    assert all((again[name] == features[name][some]).all() for name in features)


def test_a_rate_of_one_masks_every_candidate() -> None:
    features, (_, candidates, _) = mask(50, MaskingConfig(rate=1.0, mask_share=1.0, random_share=0.0))
    assert ((features["input_ids"] == FACTS.mask) == candidates).all()


@pytest.mark.parametrize("strategy", ["whole_unit", "ngrams", "spans", "bernoulli"])
@pytest.mark.parametrize("rate", [1e-9, 0.01, 0.15, 1.0])
def test_strategies_of_units_take_them_at_every_rate(strategy: str, rate: float) -> None:
    MaskingConfig(strategy=strategy, unit="word", fates="span", rate=rate, max_predictions=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "tokne"}, "did you mean 'token'"),
        ({"rate": 0.0}, "rate is 0.0; more than 0"),
        ({"mask_share": 0.9, "random_share": 0.2}, "their sum at most 1"),
        ({"max_predictions": 0}, "max_predictions is 0"),
        ({"unit": "word"}, "unit is 'word', but strategy 'token' ignores units; set .*unit to 'piece'"),
        ({"strategy": "spans", "options": {"p": 1.0}}, "options.p is 1.0; more than 0 and below 1"),
        ({"strategy": "spans", "options": {"longst": 3}}, "options.longst; did you mean 'longest'"),
        ({"strategy": "ngrams", "options": {"longest": 0}}, "options.longest is 0; 1 to 100"),
        ({"strategy": "bernoulli", "options": {"rate": 0.3}}, "set config.objective.masking.rate instead"),
        ({"strategy": "bernoulli", "count": "stochastic"}, "count is set, but strategy 'bernoulli' draws"),
        ({"fates": "span"}, "fates is 'span', but strategy 'token' selects single positions; set .*fates to 'token'"),
    ],
)
def test_bad_values_are_errors(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MaskingConfig(**wrong)  # type: ignore[arg-type]
