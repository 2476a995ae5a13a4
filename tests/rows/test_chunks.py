"""The chunk plan against a straight-line copy of the original builder, and what a plan must not give away."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import chunks, random
from bert_jax.rows.arrangements.sentence_pairs import short_targets
from bert_jax.rows.rows_config import RowsConfig
from tests.rows.fakes import FakeSplit, fake_split

CAPACITY = 61  # tokens of a pair: max_length 64


def make(split: FakeSplit, seed: int = 0, max_length: int = 64, short: float = 0.1) -> np.ndarray:
    return np.concatenate(list(chunks.make(split, random.key("test", seed), chunks.Rules(max_length, short))))


def original_builder(split: FakeSplit, capacity: int, short: float, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """(a_start, a_length, b_start, b_length, is_random), as create_pretraining_data.py makes pairs, one by one."""
    lengths, pairs = split.sentence_lengths(), []
    documents = [range(a, b) for a, b in zip(split.document_starts[:-1], split.document_starts[1:], strict=True)]
    for index, document in enumerate(documents):
        target = int(rng.integers(2, capacity + 1)) if rng.random() < short else capacity
        chunk: list[int] = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or lengths[chunk].sum() >= target:
                a_end = int(rng.integers(1, len(chunk))) if len(chunk) >= 2 else 1
                a, b = chunk[:a_end], chunk[a_end:]
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    i -= len(b)
                    other = int(rng.integers(len(documents) - 1))
                    other += other >= index
                    b = list(documents[other])[int(rng.integers(len(documents[other]))) :]
                    while len(b) > 1 and lengths[b[:-1]].sum() >= target - lengths[a].sum():
                        b.pop()
                pairs.append((*truncate_one_by_one(split, a, b, capacity, rng), is_random))
                chunk = []
            i += 1
    return pairs


def truncate_one_by_one(
    split: FakeSplit, a: list[int], b: list[int], capacity: int, rng: np.random.Generator
) -> list[int]:
    spans = [[int(split.sentence_offsets[s[0]]), int(split.sentence_offsets[s[-1] + 1])] for s in (a, b)]
    while sum(stop - start for start, stop in spans) > capacity:
        (a_start, a_stop), (b_start, b_stop) = spans
        longer = spans[0] if a_stop - a_start > b_stop - b_start else spans[1]
        if rng.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return [value for start, stop in spans for value in (start, stop - start)]


def same_distribution_z(x: np.ndarray, y: np.ndarray) -> float:
    """Two-sample chi-square of small integers, standardised; bins of few are joined."""
    size = int(max(x.max(), y.max())) + 1
    counts = np.stack([np.bincount(x, minlength=size), np.bincount(y, minlength=size)]).astype(float)
    groups = np.minimum(np.cumsum(counts.sum(0)) // 200, 10**9).astype(int)
    joined = np.stack([np.bincount(groups, row) for row in counts])
    joined = joined[:, joined.sum(0) > 0]
    expected = joined.sum(1, keepdims=True) * joined.sum(0) / joined.sum()
    freedom = joined.shape[1] - 1
    return float((((joined - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def test_pairs_are_distributed_as_those_of_the_original_builder() -> None:
    split = fake_split(200, sentences=(1, 30), mean=12)
    rng = np.random.default_rng(0)
    theirs = np.array([p for _ in range(8) for p in original_builder(split, CAPACITY, 0.1, rng)])
    ours = [make(split, seed) for seed in range(8)]
    counts = np.array([len(p) for p in ours])
    spread = np.sqrt(len(theirs) / 8)  # a generous bound on the deviation of an epoch's count
    assert abs(counts.sum() - len(theirs)) < 4 * spread * np.sqrt(16) / 2
    assert counts.std() > 0
    pairs = np.concatenate(ours)
    assert abs(pairs["is_random"].mean() - theirs[:, 4].mean()) < 4 * np.sqrt(0.5 / len(theirs))
    true, their_true = pairs[~pairs["is_random"]], theirs[theirs[:, 4] == 0]
    for name, column in (("a_length", 1), ("b_length", 3)):
        assert abs(same_distribution_z(true[name], their_true[:, column])) < 4
    assert abs(same_distribution_z(pairs["a_start"] % 97, theirs[:, 0] % 97)) < 4
    # Power: the same comparison sees another share of short rows.
    other = np.concatenate([make(split, seed, short=0.3) for seed in range(8)])
    assert same_distribution_z(other["a_length"][~other["is_random"]], their_true[:, 1]) > 4


def test_pairs_lie_where_they_should() -> None:
    split = fake_split(100, mean=12)
    pairs = make(split)
    document_offsets = split.sentence_offsets[split.document_starts]

    def documents(name: str) -> np.ndarray:
        first = np.searchsorted(document_offsets, pairs[f"{name}_start"], side="right")
        last = np.searchsorted(document_offsets, pairs[f"{name}_start"] + pairs[f"{name}_length"] - 1, side="right")
        assert (first == last).all()
        return first

    assert ((documents("a") == documents("b")) == ~pairs["is_random"]).all()
    assert pairs["a_length"].min() >= 1
    assert pairs["b_length"].min() >= 1
    assert (pairs["a_length"] + pairs["b_length"]).max() == CAPACITY
    assert (np.diff(pairs["a_start"]) > -CAPACITY).all()  # corpus order, up to truncation


def test_every_token_is_in_a_chunk() -> None:
    split = fake_split(50, mean=8)
    cut = chunks.cut_chunks(split, random.key("x"), np.arange(50), chunks.Rules(CAPACITY + 3, 0.1))
    followed = np.where(cut.is_random, cut.middle, cut.stop)
    assert (followed[:-1] == cut.start[1:]).all()
    assert followed[-1] == split.num_sentences


def test_grouping_documents_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    split = fake_split(40)
    whole, other = make(split), make(split, seed=1)
    monkeypatch.setattr(chunks, "_SENTENCES_AT_ONCE", 100)
    monkeypatch.setattr(chunks, "_PAIRS_AT_ONCE", 7)
    assert (make(split) == whole).all()
    assert len(other) != len(whole) or (other != whole).any()


def test_truncation_equals_one_token_at_a_time() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, (500, 2))
    lengths[0] = (400, 3)
    pairs, zeros = np.zeros(len(lengths), chunks.PAIR), np.zeros(len(lengths), np.int64)
    keys = random.fold(random.key("t"), np.arange(len(lengths)))
    chunks.truncate(pairs, (zeros, lengths[:, 0]), (zeros, lengths[:, 1]), 40, keys)
    for pair, (a, b) in zip(pairs, lengths, strict=True):
        split = FakeSplit([[a], [b]])
        _, a_length, _, b_length = truncate_one_by_one(split, [0], [1], 40, rng)
        assert (pair["a_length"], pair["b_length"]) == (a_length, b_length)


@pytest.mark.parametrize("dropped", [1, 10, 64, 150])
def test_dropped_in_front_is_binomial(dropped: int) -> None:
    n = 20_000
    pairs, zeros = np.zeros(n, chunks.PAIR), np.zeros(n, np.int64)
    lengths = np.full(n, 30 + dropped)
    chunks.truncate(pairs, (zeros, zeros + 1), (zeros, lengths), 31, random.fold(random.key("t"), np.arange(n)))
    theirs = np.random.default_rng(0).binomial(dropped, 0.5, 5 * n)
    assert abs(same_distribution_z(pairs["b_start"], theirs)) < 4
    assert pairs["a_start"].max() == 0


# ---- Leaks --------------------------------------------------------------------------------------------------------


def surface(split: FakeSplit, pairs: np.ndarray, capacity: int) -> dict[str, np.ndarray]:
    """What can be seen of a pair without reading it, as small integers."""
    total = pairs["a_length"] + pairs["b_length"]
    ends = pairs["b_start"] + pairs["b_length"]
    flags = (
        2 * np.isin(pairs["b_start"], split.sentence_offsets)
        + np.isin(ends, split.sentence_offsets)
        + 4 * (total == capacity)
        + 8 * np.isin(pairs["a_start"] + pairs["a_length"], split.sentence_offsets)
    )
    return {
        "total": total,
        "b_length": pairs["b_length"],
        "a_length": pairs["a_length"],
        "boundaries": flags,
        "boundaries and b_length": flags * 8 + np.minimum(pairs["b_length"] * 8 // capacity, 7),
    }


def leak_z(feature: np.ndarray, labels: np.ndarray) -> float:
    """How far a table, learned on every other pair, is above chance on the rest."""
    train, test = slice(0, None, 2), slice(1, None, 2)
    votes = np.bincount(feature[train], np.where(labels[train], 1, -1), minlength=feature.max() + 1)
    hits = (votes[feature[test]] > 0) == labels[test]
    return float((hits.sum() - len(hits) / 2) / np.sqrt(len(hits) / 4))


@functools.cache
def pairs_of_long_chunks(split: FakeSplit, capacity: int, packed: bool = False) -> np.ndarray:
    """Pairs whose chunk had two sentences or more: half of them are random."""
    key = random.key("leak")
    limits = RowsConfig(capacity + 3, packing="packed").limits
    targets = short_targets(split, random.key("t"), limits, 0.1) if packed else None
    rules = chunks.Rules(capacity + 3, 0.1, targets)
    cut = chunks.cut_chunks(split, key, np.arange(split.num_documents), rules)
    pairs = chunks.make_pairs(split, key, cut, rules)
    return pairs[cut.stop - cut.start > 1]


def uneven_split() -> FakeSplit:
    """Most documents are shorter than a row, a few are very long."""
    rng = np.random.default_rng(1)
    counts = np.maximum(1, rng.lognormal(2, 1.5, 8_000)).astype(int)
    return FakeSplit([np.maximum(1, rng.gamma(2, 8, n)).astype(int) for n in counts])


LEAK_SPLIT, UNEVEN = fake_split(6000, sentences=(5, 40), mean=20, seed=3), uneven_split()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("split", "capacity"), [(LEAK_SPLIT, 61), (LEAK_SPLIT, 125), (LEAK_SPLIT, 253), (UNEVEN, 509)])
def test_surface_does_not_tell_the_label(split: FakeSplit, capacity: int, packed: bool) -> None:
    pairs = pairs_of_long_chunks(split, capacity, packed)
    assert len(pairs) > 10_000
    labels = pairs["is_random"]
    assert abs(labels.mean() - 0.5) * 2 * np.sqrt(len(labels)) < 4
    for name, feature in surface(split, pairs, capacity).items():
        assert leak_z(feature, labels) < 4, name


def test_short_targets_do_not_make_random_pairs() -> None:
    """Short chunks have two sentences, so that a pair is not random for being short; as in the original they would."""
    few = np.arange(2, 12)

    def share(pairs: np.ndarray) -> float:
        short = pairs[pairs["a_length"] + pairs["b_length"] < 12]
        assert len(short) > 500
        return float(short["is_random"].mean())

    blocks = chunks.make(LEAK_SPLIT, random.key("x"), chunks.Rules(128, 0.1, few))
    assert share(np.concatenate(list(blocks))) < 0.6
    alone = chunks.cut_chunks(LEAK_SPLIT, random.key("x"), np.arange(1000), chunks.Rules(13, 0.1))
    assert alone.is_random.mean() > 0.9


def misalign(pairs: np.ndarray) -> None:
    pairs["b_start"] += pairs["is_random"]


def shorten(pairs: np.ndarray) -> None:
    pairs["b_length"] -= pairs["is_random"] & (pairs["b_length"] > 3) & (pairs["a_start"] % 5 == 1)


@pytest.mark.parametrize(("spoil", "seen_in"), [(misalign, "boundaries"), (shorten, "total")])
def test_the_leak_test_sees_leaks(spoil: Callable[[np.ndarray], None], seen_in: str) -> None:
    pairs = pairs_of_long_chunks(LEAK_SPLIT, 125).copy()
    spoil(pairs)
    assert leak_z(surface(LEAK_SPLIT, pairs, 125)[seen_in], pairs["is_random"]) > 4


def test_the_original_builder_leaks() -> None:
    split = fake_split(1500, sentences=(5, 20), mean=20)
    rows = original_builder(split, 125, 0.1, np.random.default_rng(0))
    pairs = np.array([(a, b, la, lb, r) for a, la, b, lb, r in rows], chunks.PAIR)
    assert leak_z(surface(split, pairs, 125)["total"], pairs["is_random"]) > 4


# ---- Edges --------------------------------------------------------------------------------------------------------


def test_one_sentence_documents_are_always_random() -> None:
    pairs = make(FakeSplit([[5], [7], [200], [1], [4, 4]]))
    pairs = pairs[pairs["a_start"] < 213]  # without the last document
    assert len(pairs) == 4
    assert pairs["is_random"].all()
    assert (pairs["a_length"] + pairs["b_length"]).max() <= CAPACITY


def test_the_shortest_row_holds_a_pair() -> None:
    pairs = make(fake_split(10), max_length=5)
    assert (pairs["a_length"] == 1).all()
    assert (pairs["b_length"] == 1).all()


@pytest.mark.parametrize("documents", [[], [[3, 4, 5]]])
def test_a_split_without_two_documents_is_an_error(documents: list[list[int]]) -> None:
    with pytest.raises(UserError, match=f"{len(documents)} document.*needs two"):
        make(FakeSplit(documents))


def test_a_split_without_a_document_of_two_sentences_is_an_error() -> None:
    with pytest.raises(UserError, match="no document of the split has 2 sentences.*--config.objective.name=mlm"):
        make(FakeSplit([[5], [7], [200], [1]]))
