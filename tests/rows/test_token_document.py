"""Token and document: labels beside sets of tokens by loops, and segments that leave text of their document outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.rows import random
from bert_jax.rows.arrangements.token_document import Arrangement
from bert_jax.rows.rows_config import RowsConfig
from bert_jax.rows.sequence_rows import SequenceRows
from tests.rows.fakes import FACTS, FakeSplit

KEY = random.key("unused")
DRAW = np.random.default_rng(0)
LENGTHS = [[3, 9, 4, 7], [1], [2], [40, 2], [6], *(DRAW.integers(1, 15, n).tolist() for n in DRAW.integers(1, 20, 30))]
SPLIT = FakeSplit(LENGTHS, 5 + DRAW.integers(60, size=sum(map(sum, LENGTHS))))
NAMES = ("token_document_labels", "token_document_weights")


def documents() -> list[tuple[int, int]]:
    """First and last + 1 token of each document."""
    borders = SPLIT.sentence_offsets[SPLIT.document_starts].tolist()
    return list(zip(borders[:-1], borders[1:], strict=True))


def by_loops(begin: int, length: int, context: int) -> tuple[list[int], list[float]]:
    """Labels and weights of a segment's tokens."""
    [(first, last)] = [d for d in documents() if d[0] <= begin < d[1]]
    end, tokens = begin + length, SPLIT.tokens.tolist()
    outside = {tokens[i] for i in range(first, last) if begin - context <= i < begin or end <= i < end + context}
    return [int(tokens[i] in outside) for i in range(begin, end)], [float(bool(outside))] * length


@pytest.mark.parametrize("context", [4096, 7, 1])
@pytest.mark.parametrize("length", [32, 9])
def test_labels_are_set_membership(context: int, length: int) -> None:
    arrangement = Arrangement(context)
    records = np.concatenate(list(arrangement.plan(SPLIT, KEY, length, None)))
    starts, lengths = (x.reshape(-1) for x in arrangement.spans(records))
    rows = arrangement.lay_out(SPLIT, records, SPLIT.read(starts, lengths), length, FACTS)
    shares = []
    for i, record in enumerate(records):
        labels, weights = by_loops(int(record["a_start"]), int(record["length"]), context)
        padding = [0] * (length - len(labels) - 1)
        assert rows.features[NAMES[0]][i].tolist() == [0, *labels, *padding]
        assert rows.features[NAMES[1]][i].tolist() == [0.0, *weights, *padding]
        shares += labels
    assert 0.01 < np.mean(shares) < 0.99  # both labels are there, or the loops would prove little


@pytest.mark.parametrize("length", [32, 9])
def test_a_segment_has_at_most_half_of_its_document(length: int) -> None:
    """And every token is in one segment."""
    records = np.concatenate(list(Arrangement().plan(SPLIT, KEY, length, None)))
    stops = records["a_start"] + records["length"]
    assert records["a_start"].tolist() == [0, *stops[:-1].tolist()]
    assert stops[-1] == SPLIT.num_tokens
    assert records["length"].max() == length - 2
    for first, last in documents():
        inside = records[(records["a_start"] >= first) & (records["a_start"] < last)]
        assert len(inside) > 1 or last - first == 1
    whole, full = np.isin(stops, SPLIT.sentence_offsets), records["length"] == length - 2
    alone = np.isin(records["sentence"], SPLIT.document_starts[:-1][np.diff(SPLIT.document_starts) == 1])
    assert (whole | full | alone).all()  # a sentence is cut if a row has no space for it, or no other is there


def test_packed_rows_have_the_same_labels(tmp_path: Path) -> None:
    def pairs(packing: str, seed: int) -> list[tuple[tuple[int, ...], ...]]:
        config = RowsConfig(32, arrangement="token_document", packing=packing)  # type: ignore[arg-type]
        source = SequenceRows(config, SPLIT, FACTS, seed=seed, directory=tmp_path)
        indices = np.arange(source.rows_per_epoch)
        rows = source.rows(np.zeros_like(indices), indices)
        of = rows.get("sequence_ids", rows["attention_mask"])
        found = []
        for i in range(len(of)):
            for number in range(1, of[i].max() + 1):
                here = of[i] == number
                found.append(tuple(tuple(rows[name][i][here].tolist()) for name in NAMES))
        return sorted(found)

    assert pairs("packed", 0) == pairs("none", 1)


def test_a_context_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="config.objective.arrangement_options.context is 0; at least 1 is needed"):
        RowsConfig(32, arrangement="token_document", arrangement_options={"context": 0})
    with pytest.raises(UserError, match="unknown key config.objective.arrangement_options.blocks"):
        RowsConfig(32, arrangement="token_document", arrangement_options={"blocks": "full"}).arranger  # noqa: B018
