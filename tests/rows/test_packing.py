"""Which pairs share a row, and what the rows then say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_jax.rows import chunks, packing, random
from bert_jax.rows.arrangements.sentence_pairs import Arrangement, short_targets
from bert_jax.rows.interfaces import Field, Limits
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.rows.fakes import FACTS, FakeSplit, fake_split

SPLIT = fake_split(400, sentences=(1, 40), mean=5)
CONFIG = RowsConfig(64, packing="packed")


def limits(max_pairs: int = 8, rate: float = 0.15, predictions: int | None = None) -> Limits:
    config = MaskingConfig(rate=rate, max_predictions=predictions)
    return RowsConfig(64, masking=config, packing="packed", max_pairs_per_row=max_pairs).limits


def best_fit_decreasing(lengths: list[int], limits: Limits) -> int:
    """Rows needed, one pair at a time: the straight way."""
    rows: list[list[int]] = []  # capacity, pairs, predictions
    for length in sorted(lengths, reverse=True):
        needed = int(limits.counts[length])
        fitting = [r for r in rows if r[0] >= length and r[1] < limits.max_sequences and r[2] >= needed]
        row = min(fitting, default=None, key=lambda r: r[0])
        if row is None:
            rows.append(row := [limits.max_length, 0, limits.predictions])
        row[:] = row[0] - length, row[1] + 1, row[2] - needed
    return len(rows)


@pytest.mark.parametrize(
    "limit", [limits(), limits(max_pairs=2), limits(predictions=10), limits(rate=0.4), limits(predictions=2)]
)
@pytest.mark.parametrize("spread", ["uniform", "short", "alike", "long"])
def test_compositions_hold_every_pair_within_the_limits(spread: str, limit: Limits) -> None:
    rng = np.random.default_rng(0)
    drawn = {
        "uniform": rng.integers(5, 65, 500),
        "short": rng.integers(5, 12, 500),
        "alike": np.full(500, 21),
        "long": rng.choice([64, 63, 30, 5], 500, p=[0.7, 0.1, 0.1, 0.1]),
    }[spread]
    histogram = np.bincount(drawn, minlength=65)
    compositions = packing.compose(histogram, limit)
    used = np.zeros(65, int)
    for rows, lengths, left in compositions:
        assert rows > 0
        assert sum(lengths) <= 64
        assert len(lengths) <= limit.max_sequences
        assert sum(limit.counts[list(lengths)]) == limit.predictions - left <= limit.predictions
        np.add.at(used, list(lengths), rows)
    assert (used == histogram).all()
    straight = best_fit_decreasing(drawn.tolist(), limit)
    assert sum(c.rows for c in compositions) <= 1.02 * straight + 1


def packed(pairs: list[np.ndarray], limit: Limits, key: int = 0) -> tuple[np.ndarray, np.ndarray]:
    parts = list(packing.pack(iter(pairs), Arrangement().lengths, random.key("p", key), limit))
    joined = [np.concatenate([block for name, block in parts if name == part]) for part in ("sequences", "row_ends")]
    return joined[0], joined[1]


def test_a_plan_is_the_same_however_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "WINDOW", 300)
    pairs = np.concatenate(list(chunks.make(SPLIT, random.key("x"), chunks.Rules(64, 0.1))))
    whole, ends = packed([pairs], limits())
    again, again_ends = packed(np.array_split(pairs, [1, 2, 299, 300, 301, 950]), limits())
    assert (whole == again).all()
    assert (ends == again_ends).all()
    assert ends[-1] == len(pairs)
    assert (np.sort(whole, order=["a_start"]) == np.sort(pairs, order=["a_start"])).all()
    other, _ = packed([pairs], limits(), key=1)
    assert (other != whole).any()
    # Within a window pairs are mixed: neighbours in a row are not neighbours in the corpus.
    gaps = np.abs(np.diff(np.searchsorted(pairs["a_start"][:300], whole["a_start"][:300])))
    assert np.median(gaps) > 20


@pytest.mark.parametrize("max_length", [128, 512])
def test_little_is_padded(max_length: int) -> None:
    rng = np.random.default_rng(0)
    counts = np.maximum(1, rng.lognormal(2.5, 1.0, 6000)).astype(int)  # documents as on Wikipedia: most are short
    split = FakeSplit([np.maximum(1, rng.gamma(2, 12, n)).astype(int) for n in counts])
    config = RowsConfig(max_length, packing="packed")

    def padding(targets: np.ndarray) -> tuple[float, float]:
        """Packed, unpacked."""
        pairs = np.concatenate(list(chunks.make(split, random.key("x"), chunks.Rules(max_length, 0.1, targets))))
        _, ends = packed([pairs], config.limits)
        tokens = Arrangement().lengths(pairs).sum() / max_length
        return 1 - tokens / len(ends), 1 - tokens / len(pairs)

    fitted = padding(short_targets(split, random.key("x"), config.limits, 0.1))
    assert fitted[0] <= 0.002
    assert fitted[1] > 0.1
    assert padding(np.arange(2, max_length - 2))[0] > fitted[0]  # targets that know nothing of the document ends


# ---- Rows ---------------------------------------------------------------------------------------------------------


def source(folder: Path, config: RowsConfig = CONFIG, seed: int = 0) -> SequenceRows:
    return SequenceRows(config, SPLIT, FACTS, seed=seed, directory=folder)


def first_epoch(rows: SequenceRows) -> dict[str, np.ndarray]:
    indices = np.arange(rows.rows_per_epoch)
    return rows.rows(np.zeros_like(indices), indices)


def test_a_packed_row_is_its_pairs_one_after_another(tmp_path: Path) -> None:
    rows = source(tmp_path)
    features = first_epoch(rows)
    spec = CONFIG.batch_spec()
    assert {n: (v.shape[1:], str(v.dtype)) for n, v in features.items()} == {n: tuple(f) for n, f in spec.items()}
    text = features["input_ids"].copy()
    row, slot = np.nonzero(features["masked_weights"])
    text[row, features["masked_positions"][row, slot]] = features["masked_labels"][row, slot]
    pairs, sizes, _ = rows._deal(np.zeros(len(text), np.int64), np.arange(len(text)), 0)
    assert sizes.max() > 2
    at = 0
    for i, size in enumerate(sizes):
        ids, types, sequences, positions, starts = [], [], [], [], []
        for number, pair in enumerate(pairs[at : at + size], 1):
            a, b = (SPLIT.tokens[pair[f"{s}_start"] :][: pair[f"{s}_length"]].tolist() for s in "ab")
            starts.append(len(ids))
            length = len(a) + len(b) + 3
            ids += [FACTS.cls, *a, FACTS.sep, *b, FACTS.sep]
            types += [0] * (len(a) + 2) + [1] * (len(b) + 1)
            sequences += [number] * length
            positions += range(length)
        blank = [0] * (64 - len(ids))
        assert text[i].tolist() == ids + [FACTS.pad] * len(blank)
        assert features["token_type_ids"][i].tolist() == types + blank
        assert features["sequence_ids"][i].tolist() == sequences + blank
        assert features["position_ids"][i].tolist() == positions + blank
        assert features["attention_mask"][i].tolist() == [1] * len(ids) + blank
        assert features["cls_positions"][i].tolist() == starts + [0] * (CONFIG.max_sequences - size)
        assert features["next_sentence_weights"][i].tolist() == [1] * size + [0] * (CONFIG.max_sequences - size)
        random_labels = pairs["is_random"][at : at + size].astype(int).tolist()
        assert features["next_sentence_labels"][i].tolist() == random_labels + [0] * (CONFIG.max_sequences - size)
        at += size
    assert at == len(pairs)


@pytest.mark.parametrize("masking", [MaskingConfig(), MaskingConfig(rate=0.4), MaskingConfig(max_predictions=9)])
def test_no_mask_is_dropped_and_none_is_a_special_token(masking: MaskingConfig, tmp_path: Path) -> None:
    config = RowsConfig(64, masking=masking, packing="packed")
    rows = source(tmp_path, config)
    features = first_epoch(rows)
    pairs, sizes, _ = rows._deal(np.zeros(len(sizes := features["input_ids"]), np.int64), np.arange(len(sizes)), 0)
    lengths = Arrangement().lengths(pairs)
    wanted = np.maximum(1, np.rint(masking.rate * lengths))
    wanted = np.minimum(wanted, np.minimum(lengths - 3, masking.max_predictions or 99))
    row, slot = np.nonzero(features["masked_weights"])
    position = features["masked_positions"][row, slot]
    number = np.cumsum(np.concatenate([[0], sizes]))[row] + features["sequence_ids"][row, position] - 1
    assert (np.bincount(number, minlength=len(pairs)) == wanted).all()
    assert (features["masked_labels"][row, slot] >= 5).all()
    assert (np.diff(features["masked_positions"], axis=1)[features["masked_weights"][:, 1:] > 0] > 0).all()


def test_the_masks_of_a_pair_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    """Packed two by two at most, or eight: other neighbours, the same masked pairs."""

    def masked_pairs(max_pairs: int) -> dict[tuple[int, ...], tuple[int, ...]]:
        rows = source(tmp_path, RowsConfig(64, packing="packed", max_pairs_per_row=max_pairs))
        features = first_epoch(rows)
        pairs, sizes, _ = rows._deal(np.zeros(len(features["input_ids"]), np.int64), np.arange(rows.rows_per_epoch), 0)
        flat = features["input_ids"][features["attention_mask"] > 0]
        parts = np.split(flat, np.cumsum(Arrangement().lengths(pairs))[:-1])
        return {tuple(p.tolist()): tuple(part.tolist()) for p, part in zip(pairs, parts, strict=True)}

    two, eight = masked_pairs(2), masked_pairs(8)
    both = two.keys() & eight.keys()  # some targets differ, as they are made to fit
    assert len(both) > 0.8 * len(two)
    assert all(two[pair] == eight[pair] for pair in both)


def test_a_shorter_epoch_begins_again_with_other_masks(tmp_path: Path) -> None:
    rows = source(tmp_path)
    count = rows.rows_per_epoch
    lengths = {e: len(rows._plans.load(e)["row_ends"]) for e in range(1, 12)}
    shorter = next(e for e, n in lengths.items() if n < count)
    features = rows.rows(np.full(count, shorter), np.arange(count))
    again = count - lengths[shorter]
    assert (features["sequence_ids"][-again:] == features["sequence_ids"][:again]).all()
    assert (features["masked_positions"][-again:] != features["masked_positions"][:again]).any()


def test_a_packed_plan_is_made_for_the_masks_it_has_room_for(tmp_path: Path) -> None:
    for config in (CONFIG, RowsConfig(64, masking=MaskingConfig(mask_share=0.5), packing="packed")):
        source(tmp_path, config)._plans.load(0)
    assert len(list(tmp_path.glob("plans/*"))) == 1
    source(tmp_path, RowsConfig(64, masking=MaskingConfig(rate=0.4), packing="packed"))._plans.load(0)
    assert len(list(tmp_path.glob("plans/*"))) == 2


def test_the_shapes_are_known_without_a_corpus() -> None:
    shapes = {n: (c := RowsConfig(n, packing="packed")).max_sequences * 1000 + c.predictions() for n in (32, 128, 512)}
    assert shapes == {32: 2006, 128: 8020, 512: 16078}
    assert RowsConfig(128, packing="bucketed").lengths == (16, 32, 64, 128)
    assert RowsConfig(24, packing="bucketed").lengths == (24,)


def test_places_are_counted_from_the_start_of_the_row() -> None:
    fields = {
        "input_ids": Field("position"),
        "partner": Field("position", is_place=True),
        "head": Field("sequence", is_place=True),
        "answer": Field("prediction", is_place=True),
    }
    flat = packing.Flat(
        np.array([2, 3]),
        {"input_ids": np.array([7, 8, 4, 5, 6]), "partner": np.array([1, 0, 2, 1, 0])},
        np.array([0, 1]),
        {"answer": np.array([1, 2])},
        {"head": np.array([0, 1])},
    )
    rows = packing.join(flat, np.array([2]), (6, 2, 2), fields, pad=9)
    assert rows["input_ids"].tolist() == [[7, 8, 4, 5, 6, 9]]
    assert rows["partner"].tolist() == [[1, 0, 4, 3, 2, 0]]
    assert rows["head"].tolist() == [[0, 3]]
    assert rows["answer"].tolist() == [[1, 4]]
