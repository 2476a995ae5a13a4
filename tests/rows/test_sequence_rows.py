from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.plan_cache import PlanCache
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.rows.fakes import FACTS, FakeSplit, fake_split

SPLIT = fake_split(300, sentences=(2, 40), mean=12)
CONFIG = RowsConfig(max_length=64)


def source(folder: Path, split: FakeSplit = SPLIT, config: RowsConfig = CONFIG, **changes: int) -> SequenceRows:
    return SequenceRows(config, split, FACTS, **{"seed": 0} | changes, directory=folder)  # type: ignore[arg-type]


def epoch(rows: SequenceRows, number: int = 0, count: int | None = None) -> dict[str, np.ndarray]:
    indices = np.arange(rows.rows_per_epoch if count is None else count)
    return rows.rows(np.full(len(indices), number), indices)


def pairs_of(rows: SequenceRows, epochs: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The plan's pairs of rows of one pair."""
    return rows._deal(epochs, indices, 0)[0]


def digest(features: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(features[name].tobytes() for name in sorted(features))).hexdigest()


def shapes(features: dict[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (values.shape[1:], str(values.dtype)) for name, values in features.items()}


def original(features: dict[str, np.ndarray]) -> np.ndarray:
    """``input_ids`` with the masked tokens put back."""
    ids = features["input_ids"].copy()
    row, slot = np.nonzero(features["masked_weights"])
    ids[row, features["masked_positions"][row, slot]] = features["masked_labels"][row, slot]
    return ids


def test_features_are_as_declared(tmp_path: Path) -> None:
    features = epoch(source(tmp_path), count=10)
    assert shapes(features) == {n: tuple(f) for n, f in CONFIG.batch_spec().items()}


def test_a_row_is_cls_a_sep_b_sep(tmp_path: Path) -> None:
    rows = source(tmp_path)
    features, text = epoch(rows), original(epoch(rows))
    pairs = pairs_of(rows, np.zeros(len(text), np.int64), np.arange(len(text)))
    assert len(text) > 1000
    for i in range(0, len(text), 7):
        a, b = (
            SPLIT.tokens[pairs[f"{s}_start"][i] : pairs[f"{s}_start"][i] + pairs[f"{s}_length"][i]].tolist()
            for s in "ab"
        )
        wanted = [FACTS.cls, *a, FACTS.sep, *b, FACTS.sep]
        length = len(wanted)
        assert text[i].tolist() == wanted + [FACTS.pad] * (64 - length)
        assert features["token_type_ids"][i].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (64 - length)
        assert features["attention_mask"][i].tolist() == [1] * length + [0] * (64 - length)
        assert features["next_sentence_labels"][i].tolist() == [int(pairs["is_random"][i])]
        masked = features["masked_positions"][i][features["masked_weights"][i] > 0]
        assert not {0, len(a) + 1, length - 1} & set(masked.tolist())


def test_masking_and_pairing_rates_over_many_rows(tmp_path: Path) -> None:
    rows = source(tmp_path, fake_split(6000, sentences=(8, 40), mean=8))
    features = epoch(rows, count=20_000)
    row, slot = np.nonzero(features["masked_weights"])
    seen = features["input_ids"][row, features["masked_positions"][row, slot]]
    for hits, rate in ((seen == FACTS.mask, 0.8001), (seen == features["masked_labels"][row, slot], 0.1001)):
        assert abs(hits.sum() - len(row) * rate) / np.sqrt(len(row) * rate * (1 - rate)) < 4
    lengths = features["attention_mask"].sum(axis=1)
    wanted = np.maximum(1, np.rint(0.15 * lengths))
    assert (features["masked_weights"].sum(axis=1) == wanted).all()
    # Half of the pairs are random, and all that come from a chunk of one sentence: few, of sentences this short.
    assert 0.5 < features["next_sentence_labels"].mean() < 0.56


def test_same_seed_same_bytes_and_any_other_differs(tmp_path: Path) -> None:
    base = digest(epoch(source(tmp_path / "a"), count=50))
    assert digest(epoch(source(tmp_path / "b"), count=50)) == base
    others = [source(tmp_path, seed=1), source(tmp_path, phase=1)]
    digests = [digest(epoch(other, count=50)) for other in others] + [digest(epoch(source(tmp_path), 1, count=50))]
    assert len({base, *digests}) == 4


@pytest.mark.parametrize("config", [CONFIG, RowsConfig(64, packing="packed")])
def test_a_row_is_the_same_whatever_else_is_asked_for(tmp_path: Path, config: RowsConfig) -> None:
    rows = source(tmp_path, config=config)
    count = rows.rows_per_epoch
    epochs, indices = np.array([2, 0, 1, 0, 2]), np.array([5, count - 1, 0, 7, 5])
    together = rows.rows(epochs, indices)
    for i in range(len(epochs)):
        alone = source(tmp_path, config=config).rows(epochs[i : i + 1], indices[i : i + 1])
        assert all((alone[name][0] == together[name][i]).all() for name in alone)
    assert shapes(rows.rows(np.zeros(0), np.zeros(0))) == {n: tuple(f) for n, f in config.batch_spec().items()}


def test_an_epoch_deals_every_pair_once_in_mixed_order(tmp_path: Path) -> None:
    rows = source(tmp_path)
    count = rows.rows_per_epoch
    dealt = pairs_of(rows, np.zeros(count, np.int64), np.arange(count))
    planned = rows._plans.load(0)["sequences"]
    assert sorted(dealt["a_start"].tolist()) == sorted(planned["a_start"].tolist())
    assert abs(np.corrcoef(np.arange(count), dealt["a_start"])[0, 1]) * np.sqrt(count) < 4


def test_later_epochs_deal_as_many_rows_as_the_first(tmp_path: Path) -> None:
    rows = source(tmp_path)
    count = rows.rows_per_epoch
    lengths = {e: len(rows._plans.load(e)["sequences"]) for e in range(1, 12)}
    longer = next(e for e, n in lengths.items() if n > count)
    shorter = next(e for e, n in lengths.items() if n < count)
    surplus = pairs_of(rows, np.full(count, longer), np.arange(count))
    assert len(np.unique(surplus[["a_start", "b_start"]])) == count  # each at most once
    wrapped = pairs_of(rows, np.full(count, shorter), np.arange(count))
    again = count - lengths[shorter]
    assert (wrapped[-again:] == wrapped[:again]).all()
    features = epoch(rows, shorter)
    assert (features["masked_positions"][-again:] != features["masked_positions"][:again]).any()  # with other masks


def test_too_few_documents_is_an_error_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1 document.*needs two"):
        source(tmp_path, FakeSplit([[4, 5]]))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_length": 4}, "max_length is 4; a sequence with its special tokens needs at least 5"),
        ({"max_length": 64, "packing": "tight"}, "packing.*tight.*'none'.*'packed'.*'bucketed'"),
        ({"max_length": 64, "packing": "packed", "max_pairs_per_row": 0}, "max_pairs_per_row is 0"),
        ({"max_length": 64, "short_row_probability": 1.5}, "config.objective.short_row_probability is 1.5; 0 to 1"),
    ],
)
def test_bad_config_values_are_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        configuration.build(RowsConfig, wrong, "config.objective")


# ---- The cache of plans -------------------------------------------------------------------------------------------


def test_plans_are_made_once_and_read_back(tmp_path: Path) -> None:
    first = source(tmp_path)
    planned = first._plans.load(0)["sequences"].copy()
    [file] = tmp_path.glob("plans/*/epoch-*/sequences")
    stamp = file.stat().st_mtime_ns
    assert (source(tmp_path)._plans.load(0)["sequences"] == planned).all()
    assert file.stat().st_mtime_ns == stamp
    assert (planned == np.concatenate([block for _, block in first._make_plan(0)])).all()
    # Masking is no part of a plan; the seed is.
    source(tmp_path, config=RowsConfig(64, masking=MaskingConfig(rate=0.3)))._plans.load(0)
    assert len(list(tmp_path.glob("plans/*"))) == 1
    source(tmp_path, seed=5)._plans.load(0)
    assert len(list(tmp_path.glob("plans/*"))) == 2


def spoil(folder: Path, how: str) -> None:
    """Damage the plan of epoch 0 of packed rows."""
    file = folder / "row_ends"
    data = file.read_bytes()
    if how == "of another length":
        file.write_bytes(data[:1000])
    elif how == "bit flipped":
        file.write_bytes(data[:-3] + bytes([data[-3] ^ 4]) + data[-2:])
    elif how == "list cut":
        (folder / "SHA256SUMS").write_text((folder / "SHA256SUMS").read_text().partition("\n")[0])
    else:
        (folder / "SHA256SUMS").unlink()


@pytest.mark.parametrize("how", ["of another length", "bit flipped", "list cut", "without list"])
def test_a_plan_that_is_not_as_it_was_written_is_made_anew_and_said_once(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RowsConfig(64, packing="packed")
    features = digest(epoch(source(tmp_path, config=config)))
    [folder] = tmp_path.glob("plans/*/epoch-00000")
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert capsys.readouterr().err == ""
    spoil(folder, how)
    for _ in range(2):
        assert digest(epoch(source(tmp_path, config=config))) == features
    warning = f"warning: the cached plan {folder} is damaged or of another run; it is made anew\n"
    assert capsys.readouterr().err == warning
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole


def test_the_next_plan_is_made_in_the_background(tmp_path: Path) -> None:
    plans = source(tmp_path)._plans
    thread = plans.prepare(3)
    assert thread is not None
    thread.join()
    assert [p.name for p in tmp_path.glob("plans/*/epoch-*")] == ["epoch-00003"]
    assert plans.prepare(3) is None


def test_old_plans_are_removed_but_the_first_and_newest_stay(tmp_path: Path) -> None:
    rows = source(tmp_path)
    held = rows._plans.load(1)["sequences"]
    for number in range(7):
        rows._plans.load(number)
    assert sorted(p.name for p in tmp_path.glob("plans/*/epoch-*")) == [f"epoch-0000{i}" for i in (0, 4, 5, 6)]
    assert (held == rows._plans.load(1)["sequences"]).all()


def test_a_read_only_corpus_has_its_plans_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(corpus)))
    assert source(corpus).rows_per_epoch > 0
    assert not any(corpus.iterdir())
    assert len(list(tmp_path.glob("cache/plans/*/epoch-00000"))) == 1


def test_a_plan_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "plans").write_text("a file where a folder must go")
    with pytest.raises(UserError, match="BERT_JAX_CACHE"):
        PlanCache(tmp_path, "key", {"a": int}, lambda epoch: [("a", np.zeros(1, int))]).load(0)


ARRANGED = [("sentence_pairs", "none"), ("sentence_pairs", "packed"), ("sentences", "packed"), ("streams", "none")]


@pytest.mark.parametrize(("arrangement", "packing"), ARRANGED)
def test_a_column_is_a_feature_beside_its_tokens(arrangement: str, packing: Any, tmp_path: Path) -> None:
    split = FakeSplit([np.full(20, 7)] * 30)
    split.places = np.arange(split.num_tokens, dtype=np.uint32) + 70_000  # type: ignore[attr-defined]
    config = RowsConfig(64, packing=packing, arrangement=arrangement, columns=("places",))
    rows = source(tmp_path, split, config)
    found = epoch(rows)
    assert shapes(found) == {n: tuple(f) for n, f in config.batch_spec().items()}
    is_text, places = original(found) > FACTS.mask, found["places"]
    np.testing.assert_array_equal(split.tokens[places[is_text] - 70_000], original(found)[is_text])
    assert is_text.sum() > 1000
    assert not places[~is_text].any()
