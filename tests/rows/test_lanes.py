"""Lanes: row b of a batch goes on where row b of the batch before it ended, and every token of the line is read."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows.interfaces import TokenFacts
from bert_jax.rows.loader import Batches
from bert_jax.rows.masking import MaskingConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from bert_jax.rows.share import WHOLE, Share
from tests.rows.fakes import FACTS, FakeSplit, fake_split
from tests.rows.test_gpt_rows import END, GPT1, GPT2

LENGTH, LANES = 16, 4
NO_MASKS = MaskingConfig(mask_share=0.0, random_share=0.0)


def source_of(split: FakeSplit, facts: TokenFacts = FACTS, **changes: Any) -> SequenceRows:
    features = ("input_ids", "attention_mask", "row_weights", "lane_starts", "next_ids")
    config = RowsConfig(LENGTH, masking=NO_MASKS, arrangement="streams", features=features, kind="phase1", **changes)
    return SequenceRows(config, split, facts, seed=0)


def line_of(split: FakeSplit, separator: list[int]) -> list[int]:
    """The whole text, document by document, each with the separator after it."""
    ends = split.sentence_offsets[split.document_starts]
    parts = [[*split.tokens[a:b].tolist(), *separator] for a, b in zip(ends, ends[1:], strict=False)]
    return [token for part in parts for token in part]


@pytest.mark.parametrize(("facts", "separator"), [(FACTS, [FACTS.sep]), (GPT2, [END]), (GPT1, [])])
def test_every_token_of_the_line_but_the_first_is_predicted(facts: TokenFacts, separator: list[int]) -> None:
    """Documents of one token too, whose separators stand close together and at the ends of segments."""
    documents = [[1]] * 40 + [[15], [16], [14, 1], [31], [1, 1, 30]] + [[7, 3]] * 30
    split = FakeSplit([*documents, *([n] for n in range(1, 40))])
    line, source = line_of(split, separator), source_of(split, facts)
    count = source.rows_per_epoch
    assert count == (len(line) - 1) // LENGTH
    rows = source.rows(np.zeros(count, np.int64), np.arange(count))
    assert rows["input_ids"].ravel().tolist() == line[: count * LENGTH]
    assert rows["next_ids"].tolist() == [line[LENGTH * (i + 1)] for i in range(count)]
    assert rows["attention_mask"].all()
    assert rows["lane_starts"].tolist() == [1] + [0] * (count - 1)


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_a_lane_goes_on_across_epochs_and_ends_at_the_end_of_the_line_alone(hosts: int) -> None:
    split = fake_split(20, sentences=(1, 6), mean=4)
    source = source_of(split)
    segments = source.rows_per_epoch
    per_epoch = segments // LANES
    assert segments % LANES  # what is left behind the last part is not read
    phases = Phases((Phase(3, LANES, 8, "other"), Phase(5 * per_epoch, LANES, LENGTH, "phase1")))
    line = line_of(split, [FACTS.sep])[: per_epoch * LANES * LENGTH + 1]
    shares = [WHOLE] if hosts == 1 else [Share((part,), hosts) for part in range(hosts)]
    loaders = [pickle.loads(pickle.dumps(Batches({1: source}, phases, share))) for share in shares]
    before, seen = None, list[np.ndarray]()
    for number in range(3, phases.num_steps):
        parts = [loader[number][1] for loader in loaders]
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        starts, ids = batch["lane_starts"] == 1, batch["input_ids"]
        if before is None:
            assert starts.all()
        else:
            np.testing.assert_array_equal(ids[~starts, 0], before[~starts])
            assert starts.sum() == ((number - 3) % per_epoch == 0)
            assert (ids[starts] == line[:LENGTH]).all()
        before = batch["next_ids"]
        seen.append(ids)
    for epoch in range(5):  # each reads the whole line once
        tokens = np.concatenate(seen[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(map(tuple, tokens)) == sorted(zip(*[iter(line[:-1])] * LENGTH, strict=True))


def test_a_text_shorter_than_the_lanes_is_refused() -> None:
    source = source_of(fake_split(2, sentences=(1, 2), mean=20))
    count = source.rows_per_epoch
    assert source.for_batches(count).rows_per_epoch == count
    with pytest.raises(UserError, match=f"phase1.batch_size is {count + 1}.* which has {count} rows of 16 tokens"):
        source.for_batches(count + 1)


@pytest.mark.parametrize("packing", ["packed", "bucketed"])
def test_packed_lanes_are_refused(packing: Any) -> None:
    with pytest.raises(UserError, match=f"packing is '{packing}', and a row of the arrangement 'streams' goes on"):
        RowsConfig(LENGTH, arrangement="streams", packing=packing)


def test_other_rows_are_not_dealt_in_lanes() -> None:
    source = SequenceRows(RowsConfig(LENGTH, arrangement="sentences"), fake_split(20), FACTS, seed=0)
    assert source.for_batches(7) is source
