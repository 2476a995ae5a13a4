"""Examples that share a row: each once an epoch, whole, with the features that it has alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bert_jax.rows import random
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.rows.loader import Loader
from bert_jax.rows.packed_examples import PackedExamples, row_length
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.share import WHOLE, Share

LENGTH, COUNT, BATCH = 40, 301, 32
RNG = np.random.default_rng(0)
LENGTHS = np.append(RNG.integers(3, 20, COUNT - 2), [LENGTH, 3])
SEQUENCES = [RNG.integers(1, 1000, length) for length in LENGTHS]
ROWS = EncodedRows.of(
    {"input_ids": SEQUENCES, "token_type_ids": [ids % 2 for ids in SEQUENCES]},
    {
        "labels": np.arange(COUNT, dtype=np.int32),  # they say which example it is
        "label_weights": np.ones(COUNT, np.float32),
        "said": RNG.normal(size=(COUNT, 3)).astype(np.float32),
        "row_weights": np.ones(COUNT, np.float32),
        "example_ids": np.arange(COUNT, dtype=np.int32),
    },
)


def source(seed: int = 0, causal: bool = False) -> PackedExamples:
    return PackedExamples(ROWS, "train_packed", LENGTH, BATCH, random.key("examples", seed), causal)


def epoch(rows: PackedExamples, number: int) -> dict[str, np.ndarray]:
    indices = np.arange(rows.rows_per_epoch)
    return rows.rows(np.full_like(indices, number), indices)


def held(batch: dict[str, np.ndarray]) -> list[tuple[int, ...]]:
    """The examples of each row, in order."""
    pairs = zip(batch["labels"], batch["label_weights"], strict=True)
    return [tuple(labels[weights > 0].tolist()) for labels, weights in pairs]


@pytest.mark.parametrize("number", [0, 1, 7])
def test_an_epoch_has_every_example_once_as_it_is_alone(number: int) -> None:
    rows = source()
    batch = epoch(rows, number)
    assert {name: (x.shape[1:], str(x.dtype)) for name, x in batch.items()} == {
        name: (one.shape, one.dtype) for name, one in rows.spec.items()
    }
    assert Counter(example for row in held(batch) for example in row) == Counter(range(COUNT))
    alone = ROWS.take(np.arange(COUNT), LENGTH)
    for row, examples in enumerate(held(batch)):
        for place, example in enumerate(examples):
            inside = np.flatnonzero(batch["sequence_ids"][row] == place + 1)
            assert inside.tolist() == list(range(inside[0], inside[0] + LENGTHS[example]))
            assert batch["cls_positions"][row, place] == inside[0]
            assert batch["position_ids"][row, inside].tolist() == list(range(len(inside)))
            for name in ("input_ids", "token_type_ids", "attention_mask"):
                assert (batch[name][row, inside] == alone[name][example, : len(inside)]).all()
            assert (batch["said"][row, place] == alone["said"][example]).all()
        for name in ("input_ids", "token_type_ids", "attention_mask", "position_ids"):
            assert not batch[name][row, sum(LENGTHS[list(examples)]) :].any()


def test_rows_are_full_and_a_batch_has_about_as_many_examples_as_it_should() -> None:
    rows = source()
    mean = COUNT / rows.rows_per_epoch
    assert LENGTHS.sum() / (rows.rows_per_epoch * LENGTH) > 0.9
    [bucket] = rows.buckets
    assert (bucket.kind, BATCH * bucket.batches) == ("train_packed", rows.rows_of(BATCH))
    assert f"a batch is {rows.rows_of(BATCH)} rows, {rows.rows_of(BATCH) * mean:.1f} examples on" in rows.describe()
    assert rows.rows_of(1) == 1
    for examples in range(16, 200):
        number = rows.rows_of(examples)
        assert abs(number * mean - examples) <= examples / 5
        for shards in (8, 4, 2):
            near = [n for n in range(shards, 200, shards) if abs(n * mean - examples) <= examples / 5]
            if near:
                assert number % shards == 0
                break


@pytest.mark.parametrize(
    ("lengths", "longest", "expected"),
    [
        (LENGTHS, 128, 40),  # the longest example suffices
        (np.full(100, 40), 128, 40),
        (np.full(100, 30), 128, 32),
        (np.full(100, 21), 128, 64),  # 24 and 48 would be 88 % full
        (np.full(100, 36), 40, 40),
        (np.full(100, 33), 76, 72),
        (np.full(100, 26), 40, 32),  # none is full enough
    ],
)
def test_rows_are_as_short_as_packing_can_fill_them(lengths: np.ndarray, longest: int, expected: int) -> None:
    assert row_length(lengths, -(-lengths.max() // 8) * 8, longest) == expected


def test_a_row_is_a_pure_function_of_seed_epoch_and_index() -> None:
    first, second = held(epoch(source(), 0)), held(epoch(source(), 1))
    assert len(first) == len(second)
    assert {frozenset(row) for row in first} != {frozenset(row) for row in second}, "other examples meet"
    assert first != held(epoch(source(seed=1), 0))
    rows = source()
    mixed = rows.rows(np.array([1, 0, 1, 3]), np.array([5, 5, 0, 2]))
    assert held(mixed)[:3] == [second[5], first[5], second[0]]
    assert held(mixed)[3] == held(epoch(source(), 3))[2]


def test_in_a_causal_model_the_last_position_represents_an_example() -> None:
    batch, last = epoch(source(), 0), epoch(source(causal=True), 0)
    for row, examples in enumerate(held(batch)):
        ends = batch["cls_positions"][row, : len(examples)] + LENGTHS[list(examples)] - 1
        assert last["cls_positions"][row, : len(examples)].tolist() == ends.tolist()


@pytest.mark.parametrize("start", [0, 7, 12])
def test_a_loader_goes_on_with_the_same_batches(start: int) -> None:
    """Two hosts have the rows of a single host, wherever a run begins again; the last batch is filled up."""
    rows, phases = source(), Phases((Phase(25, BATCH, LENGTH, "train"),))
    per_epoch = -(-rows.rows_per_epoch // rows.rows_of(BATCH))

    def batches(first: int, share: Share = WHOLE) -> dict[int, dict[str, np.ndarray]]:
        loader = Loader(lambda *_: source(), phases, first, {"train_packed": rows.spec}, share=share)
        return {step.number: batch for step, batch in loader}

    whole = batches(0)
    parts = [batches(start, Share((part,), 2)) for part in (0, 1)]
    for number in range(start, 25):
        for name, values in whole[number].items():
            assert (np.concatenate([part[number][name] for part in parts]) == values).all()
    seen = Counter(x for number in range(per_epoch) for row in held(whole[number]) for x in row)
    filled = held(rows.rows(*np.divmod(np.arange(per_epoch * rows.rows_of(BATCH) - rows.rows_per_epoch), 10**6)))
    assert seen == Counter([*range(COUNT), *(example for row in filled for example in row)])
