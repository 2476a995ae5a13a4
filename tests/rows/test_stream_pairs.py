"""XLNet's rows, beside a line of text that is written out."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.arrangements.stream_pairs import Arrangement
from tests.rows.fakes import FACTS, FakeSplit, fake_split, z

KEY = random.key("pairs")


def laid_out(split: FakeSplit, arrangement: Arrangement, length: int) -> tuple[np.ndarray, ...]:
    """All rows of a plan: records, ids, token types, and the line of the text."""
    records = np.concatenate(list(arrangement.plan(split, KEY, length, None)))
    starts, lengths = (x.reshape(-1) for x in arrangement.spans(records))
    rows = arrangement.lay_out(split, records, split.read(starts, lengths), length, FACTS)
    assert (rows.attention_mask == 1).all()
    assert (rows.lengths == length).all()
    np.testing.assert_array_equal(rows.is_text, ~np.isin(rows.input_ids, (FACTS.sep, FACTS.cls)))
    documents = np.split(split.tokens, split.sentence_offsets[split.document_starts[1:-1]])
    line = np.concatenate([np.append(d, FACTS.sep) for d in documents])[:-1]
    return records, rows.input_ids, rows.token_type_ids, line


@pytest.mark.parametrize(("length", "reuse"), [(64, None), (64, 20), (33, None), (10, None)])
def test_rows_go_on_and_hold_what_the_line_says(length: int, reuse: int | None) -> None:
    split = fake_split(60, (1, 8), 9.0)
    records, ids, types, line = laid_out(split, Arrangement(reuse), length)
    step = length // 2 if reuse is None else reuse
    pair = length - step - 3
    assert len(records) == (len(line) - pair) // step
    document = np.searchsorted(split.document_starts, np.arange(split.num_sentences), "right") - 1
    begins = set((split.sentence_offsets[:-1] + document).tolist())
    for number, (record, row, kinds) in enumerate(zip(records, ids, types, strict=True)):
        np.testing.assert_array_equal(row[:step], line[number * step :][:step])  # the text goes on from row to row
        cut, b = record["a_length"], record["b_length"]
        np.testing.assert_array_equal(row[:cut], line[number * step :][:cut])
        np.testing.assert_array_equal(row[cut + 1 : -2], line[record["b_line"] :][:b])
        assert row[cut] == row[-2] == FACTS.sep
        assert row[-1] == FACTS.cls
        assert kinds.tolist() == [0] * (cut + 1) + [1] * (b + 1) + [2]
        assert cut > step
        assert cut + b == step + pair
        assert b >= 1
        end = number * step + cut  # A ends where a sentence begins, if one begins in the pair
        inside = [x for x in range(number * step + step + 1, number * step + step + pair) if x in begins]
        assert end in inside or not inside
        assert record["b_line"] == end or record["b_line"] in begins
        assert inside or record["b_line"] in begins
    assert (Arrangement(reuse).labels(records)["reuse_lengths"] == step).all()


def test_half_of_the_second_segments_go_on() -> None:
    split = fake_split(400, (20, 60), 8.0)
    for share in (0.5, 0.1):
        records, *_ = laid_out(split, Arrangement(random_share=share), 128)
        goes_on = records["b_line"] == records["a_line"] + records["a_length"]
        assert abs(z(goes_on.sum(), len(records), 1 - share)) < 4
    cuts = (records["a_length"] - 64) / 61  # A ends with each sentence alike
    assert cuts.min() < 0.2
    assert cuts.max() > 0.8
    assert abs(cuts.mean() - 0.5) < 0.02
    elsewhere = records["b_line"][~goes_on] / records["b_line"].max()
    assert abs(elsewhere.mean() - 0.5) < 5 * np.sqrt(1 / 12 / len(elsewhere))


def test_a_text_too_short_for_a_row_is_refused() -> None:
    split = FakeSplit([[5, 5], [6]])
    assert len(laid_out(split, Arrangement(), 20)[0]) == 1
    with pytest.raises(UserError, match="17 tokens, and a row of 22 needs 19"):
        list(Arrangement().plan(split, KEY, 22, None))
    with pytest.raises(UserError, match="at least 2"):
        Arrangement(reuse_length=1)
    assert Arrangement(reuse_length=6).shortest == 11
