"""Dealt splits and shares have the proportions of the labels, whatever the labels are."""

import random
from collections import Counter

import pytest

from bert_jax.examples import splits

SEEDS = range(40)


def examples_of(counts, seed=0):
    """Return examples in random order; ``counts``: label -> number of examples."""
    labels = [label for label, count in counts.items() for _ in range(count)]
    random.Random(seed).shuffle(labels)
    return [{"id": str(i), "text": str(i), "label": label} for i, label in enumerate(labels)]


def random_counts(seed):
    """Return the counts of labels of one of five shapes: few, equal, a long tail, a large label and single examples."""
    draw = random.Random(seed)
    counts = [
        [draw.randint(1, 500) for _ in range(draw.randint(2, 6))],
        [draw.randint(1, 4)] * draw.randint(2, 200),
        [1 + int(300 / rank ** draw.uniform(0.7, 1.5)) for rank in range(1, draw.randint(4, 150))],
        [draw.randint(50, 900), draw.randint(1, 50)] + [1] * draw.randint(0, 300),
        [draw.randint(1, 40) for _ in range(draw.randint(5, 60))],
    ][seed % 5]
    return {f"label {i}": count for i, count in enumerate(counts)}


@pytest.mark.parametrize("fraction", [0.03, 0.1, 0.25, 0.5, 0.8])
def test_each_label_and_all_rare_labels_together_keep_their_share(fraction):
    for seed in SEEDS:
        counts = random_counts(seed)
        every = examples_of(counts, seed)
        parts = {
            "dev": splits.deal(every, fraction, seed)[1],
            "train": splits.keep_fraction(every, fraction, seed),
            "most": splits.at_most(every, splits.share(len(every), fraction), seed),
        }
        for name, part in parts.items():
            assert len(part) == splits.share(len(every), fraction), (seed, name)
            found = Counter(example["label"] for example in part)
            of_all = len(part) / len(every)
            off = {label: found[label] - count * of_all for label, count in counts.items()}
            assert max(map(abs, off.values())) < 1.05, (seed, name, off)
            for limit in (1 / fraction, 3 / fraction):  # rare: less than one, or than three, examples are due
                rare = [label for label, count in counts.items() if count < limit]
                assert abs(sum(off[label] for label in rare)) < 1.5, (seed, name, limit)


def test_a_large_label_beside_many_small_labels():
    every = examples_of({"large": 180, **{f"small {i}": 2 for i in range(200)}})
    for part in (splits.deal(every, 0.1, 42)[1], splits.keep_fraction(every, 0.1, 42), splits.at_most(every, 58, 42)):
        assert len(part) == 58
        assert sum(example["label"] == "large" for example in part) in (17, 18, 19)  # 18.0 are due


def test_numbers_of_which_two_are_frequent():
    scattered = {str(i / 100): 1 for i in range(1, 421)}
    every = examples_of({"0.0": 90, "5.0": 90, **scattered})
    for part in (splits.deal(every, 0.1, 42)[1], splits.keep_fraction(every, 0.1, 42)):
        assert 17 <= sum(example["label"] in ("0.0", "5.0") for example in part) <= 19  # 18.0 are due


def test_another_seed_deals_other_examples():
    every = examples_of({"a": 100, "b": 100})
    first, second = ({example["id"] for example in splits.deal(every, 0.2, seed)[1]} for seed in (1, 2))
    assert len(first & second) < 25  # 8 by chance


def test_a_larger_share_contains_every_smaller_share():
    for seed in SEEDS:
        every = examples_of(random_counts(seed), seed)
        kept = [
            {e["id"] for e in splits.keep_fraction(every, fraction, seed)} for fraction in (0.02, 0.1, 0.3, 0.7, 1.0)
        ]
        assert all(smaller <= larger for smaller, larger in zip(kept, kept[1:], strict=False)), seed
