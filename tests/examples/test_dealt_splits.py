"""The splits of a run: dealt by label or by a column, cut and capped."""

from collections import Counter

import pytest

from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.examples import splits
from bert_jax.examples.load import DataConfig, to_train_on
from tests.examples.loading import CLASSIFICATION, loaded, noted, written


def rows(count: int, labels: int = 4) -> str:
    """The i-th label has i + 1 parts of the rows."""
    order = [label for label in range(labels) for _ in range(label + 1)]
    return "text\tlabel\n" + "".join(f"text {i}\t{order[i % len(order)]}\n" for i in range(count))


def test_dev_is_dealt_by_label_and_by_seed(tmp_path):
    folder = written(tmp_path, t__tsv=rows(1003))
    config = {"format": "delimited", "splits": {"train": "t.tsv"}, "dev_fraction": 0.2}
    found = loaded(folder, CLASSIFICATION, **config)
    assert {name: len(split) for name, split in found.items()} == {"train": 802, "dev": 201}  # as sklearn rounds
    ids = [example["id"] for split in found.values() for example in split]
    assert sorted(ids) == sorted(f"train-{i}" for i in range(1003))
    whole = Counter(example["label"] for split in found.values() for example in split)
    dealt = Counter(example["label"] for example in found["dev"])
    assert all(abs(dealt[label] - 0.2 * whole[label]) <= 1 for label in whole)
    assert loaded(folder, CLASSIFICATION, **config) == found
    other = loaded(folder, CLASSIFICATION, **config, split_seed=1)
    shared = {e["id"] for e in other["dev"]} & {e["id"] for e in found["dev"]}
    assert 15 < len(shared) < 75  # 40 by chance, of deviation 5


def test_a_smaller_share_of_train_is_a_part_of_a_larger_one(tmp_path):
    folder = written(tmp_path, t__tsv=rows(1000))
    config = {"format": "delimited", "splits": {"train": "t.tsv"}}
    every, shares = loaded(folder, CLASSIFICATION, **config, train_fraction=0.01), (0.01, 0.013, 0.1, 0.57, 1.0)
    assert len(every["train"]) == 1000
    kept = [to_train_on(build(DataConfig, {**config, "train_fraction": f}, "data"), every)["train"] for f in shares]
    assert [len(examples) for examples in kept] == [10, 13, 100, 570, 1000]
    ids = [{example["id"] for example in examples} for examples in kept]
    assert all(smaller < larger for smaller, larger in zip(ids, ids[1:], strict=False))
    for examples in kept[2:]:
        counts = Counter(example["label"] for example in examples)
        assert all(abs(counts[str(i)] - len(examples) * (i + 1) / 10) <= 1 for i in range(4))


def test_a_share_of_train_has_every_label_where_there_is_room():
    examples = [{"id": str(i), "label": "rare" if i == 7 else "often"} for i in range(1000)]
    assert {example["label"] for example in splits.keep_fraction(examples, 0.002, 42)} == {"rare", "often"}
    assert splits.share(10, 0.1 + 0.2) == 3  # and not 4, for what floats add
    train, _ = splits.deal(examples, 0.2, 42)
    assert examples[7] in train  # the only one of its label is not dealt away


SICK = "pair_ID\ttext\tpair\tlabel\tset\n" + "".join(
    f"{i}\tone {i}\ttwo {i}\t{'ab'[i % 2]}\t{('TRAIN', 'TRAIN', 'TRIAL', 'TEST')[i % 4]}\n" for i in range(16)
)


def test_rows_are_dealt_by_a_column(tmp_path):
    folder = written(tmp_path, sick__txt=SICK)
    config = {"format": "table", "splits": {"train": "sick.txt"}, "split_column": "set", "dev_fraction": 0.1}
    found = loaded(folder, CLASSIFICATION, **config)
    assert {split: [e["text"] for e in of] for split, of in found.items()} == {
        "train": [f"one {i}" for i in range(16) if i % 4 < 2],
        "dev": [f"one {i}" for i in range(16) if i % 4 == 2],
        "test": [f"one {i}" for i in range(16) if i % 4 == 3],
    }
    with pytest.raises(UserError, match="no column 'sets'.*did you mean 'set'"):
        loaded(folder, CLASSIFICATION, **config | {"split_column": "sets"})
    with pytest.raises(UserError, match="the column 'label' has the values 'a', 'b', which name no split"):
        loaded(folder, CLASSIFICATION, **config | {"split_column": "label"})
    named = config | {"split_values": {"train": "TRAIN", "dev_x": ("TEST",)}}
    found, notes = noted(folder, CLASSIFICATION, **named)
    assert {split: len(of) for split, of in found.items()} == {"train": 8, "dev_x": 4}
    assert notes == ["4 rows are in no split: 'set' is 'TRIAL'"]


def test_a_dev_split_is_dealt_only_where_there_is_none(tmp_path):
    folder = written(tmp_path, t__tsv=rows(40), d__tsv=rows(10))
    config = {"format": "table", "dev_fraction": 0.25}
    found, _ = noted(folder, CLASSIFICATION, splits={"train": "t.tsv", "dev": "d.tsv"}, **config)
    assert {split: len(of) for split, of in found.items()} == {"train": 40, "dev": 10}
    found, _ = noted(folder, CLASSIFICATION, splits={"train": "t.tsv"}, **config)
    assert {split: len(of) for split, of in found.items()} == {"train": 30, "dev": 10}


def test_long_dev_and_test_splits_are_capped(tmp_path):
    folder = written(tmp_path, t__tsv=rows(2), d__tsv=rows(100), x__tsv=rows(50))
    splits = {"train": "t.tsv", "dev": "d.tsv", "test": "x.tsv"}
    found, notes = noted(folder, CLASSIFICATION, format="table", splits=splits, max_dev_rows=20, max_test_rows=50)
    assert {split: len(of) for split, of in found.items()} == {"train": 2, "dev": 20, "test": 50}
    assert Counter(e["label"] for e in found["dev"]) == {"0": 2, "1": 4, "2": 6, "3": 8}
    assert "dev: 20 of 100 examples are used (config.data.max_dev_rows)" in notes
