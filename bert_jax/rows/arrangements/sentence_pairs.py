"""BERT's pairs: [CLS] A [SEP] B [SEP], where B follows A or comes from another document (Devlin et al. 2019, 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bert_jax.configuration import check_fields
from bert_jax.rows import chunks, packing
from bert_jax.rows.chunks import SPECIAL_TOKENS_PER_ROW
from bert_jax.rows.interfaces import Field, Ids, Ints, Limits, Records, Rows, Sentences, TokenFacts

_PILOT_SENTENCES = 1 << 18
_TARGETS = 1 << 12
LABELLED = np.dtype([*chunks.PAIR.descr[:-1], ("label", np.uint8)])  # a pair with a class in place of ``is_random``


def fields_of(name: str) -> dict[str, Field]:
    """Return the features of a sequence whose label is called ``name``: the place of [CLS], the label, its weight."""
    place, weight = Field("sequence", is_place=True), Field("sequence", "float32")
    return {"cls_positions": place, f"{name}_labels": Field("sequence"), f"{name}_weights": weight}


def features_of(name: str, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values [n] of the features that ``fields_of`` names, for the ``labels`` [n] of n sequences."""
    return {
        "cls_positions": np.zeros(len(labels), np.int32),
        f"{name}_labels": labels.astype(np.int32),
        f"{name}_weights": np.ones(len(labels), np.float32),
    }


class Pairs:
    """Lays out pairs: ``[CLS] A [SEP] B [SEP]``, token types 0 up to the first ``[SEP]`` and 1 after it.

    Attributes:
      record: has the fields ``a_start``, ``b_start``, ``a_length``, ``b_length`` and ``labelled_by``.
      label: what the label of a pair is called; it makes the names of features.
      labelled_by: the field of a record that has the label.
    """

    special_tokens = SPECIAL_TOKENS_PER_ROW
    shortest = SPECIAL_TOKENS_PER_ROW + 2
    label: ClassVar[str]
    labelled_by: ClassVar[str] = "label"

    def lengths(self, records: Records) -> Ints:
        return records["a_length"].astype(np.int64) + records["b_length"] + SPECIAL_TOKENS_PER_ROW

    def spans(self, records: Records) -> tuple[Ints, Ints]:
        starts = np.stack([records["a_start"], records["b_start"]], axis=1)
        return starts, np.stack([records["a_length"], records["b_length"]], axis=1).astype(np.int64)

    def lay_out(self, split: Sentences, records: Records, tokens: Ids, width: int, facts: TokenFacts) -> Rows:
        del split
        position = np.arange(width, dtype=np.int32)  # [L]
        first_sep = (records["a_length"].astype(np.int32) + 1)[:, None]  # [n, 1]
        last_sep = first_sep + (records["b_length"].astype(np.int32) + 1)[:, None]
        real = position <= last_sep  # [n, L]
        second = (position > first_sep) & real
        is_text = real & (position != first_sep) & (position != last_sep)
        is_text[:, 0] = False

        input_ids = np.full(is_text.shape, facts.pad, np.int32)
        input_ids[is_text] = tokens  # row by row, A before B: the order of ``tokens``
        input_ids[:, 0] = facts.cls
        np.put_along_axis(input_ids, first_sep, facts.sep, axis=1)
        np.put_along_axis(input_ids, last_sep, facts.sep, axis=1)
        return Rows(
            input_ids, second.astype(np.int32), real.astype(np.int32), is_text, last_sep[:, 0].astype(np.int64) + 1
        )

    def labels(self, records: Records) -> dict[str, np.ndarray]:
        return features_of(self.label, records[self.labelled_by])


@dataclasses.dataclass(frozen=True)
class Arrangement(Pairs):
    """Makes BERT's pairs (see ``rows.chunks``)."""

    short_row_probability: float = 0.1  # share of pairs that are made shorter than a row
    random_share: float = 0.5  # share of the pairs of several sentences whose B comes from another document

    version = chunks.VERSION
    record = chunks.PAIR
    label, labelled_by = "next_sentence", "is_random"
    fields: ClassVar[dict[str, Field]] = fields_of(label)

    def __post_init__(self) -> None:
        share = "0 to 1 is allowed"
        check_fields(self, "config.objective", share, "short_row_probability", sound=lambda value: 0 <= value <= 1)
        where = "config.objective.arrangement_options"
        check_fields(self, where, share, "random_share", sound=lambda value: 0 <= value <= 1)

    def check(self, split: Sentences) -> None:
        chunks.check(split)

    def plan(self, split: Sentences, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        targets = None if limits is None else short_targets(split, key, limits, self.short_row_probability)
        yield from chunks.make(split, key, self.rules(max_length, targets))

    def rules(self, max_length: int, targets: Ints | None) -> chunks.Rules:
        """Return the rules by which pairs are made, given the target lengths of short chunks."""
        return chunks.Rules(max_length, self.short_row_probability, targets, self.random_share)


def short_targets(split: Sentences, key: np.uint64, limits: Limits, short_row_probability: float) -> Ints:
    """Return target lengths of short chunks, in tokens: [4096], from which a target is drawn with equal probability.

    The targets are chosen so that short pairs fill the space that longer pairs leave in their rows. To measure this
    space, the pairs of a sample of documents are planned without short targets and packed. (Pairs at the end of a
    document are shorter than a row.) The targets are the lengths of the free spaces in the packed rows. If there are
    fewer spaces than short chunks, the missing targets are spread evenly over all lengths: such chunks can share rows.
    """
    capacity = limits.max_length - SPECIAL_TOKENS_PER_ROW
    documents, sentences = len(split.document_starts) - 1, len(split.sentence_offsets) - 1
    sample = np.arange(0, documents, -(-sentences // _PILOT_SENTENCES))
    cut = chunks.cut_chunks(split, key, sample, chunks.Rules(limits.max_length, 0.0))
    tokens = split.sentence_offsets[cut.stop] - split.sentence_offsets[cut.start]
    alone = cut.stop - cut.start == 1  # a chunk of one sentence: its random second segment fills the row
    tokens = np.where(alone, capacity, np.minimum(tokens, capacity))
    wanted = np.zeros(limits.max_length + 1)
    for row in packing.compose(np.bincount(tokens + SPECIAL_TOKENS_PER_ROW, minlength=len(wanted)), limits):
        wanted[limits.max_length - sum(row.lengths)] += row.rows
    wanted = wanted[SPECIAL_TOKENS_PER_ROW + 2 :]  # the shortest pair has 2 tokens besides the special tokens
    wanted += max(short_row_probability * len(tokens) - wanted.sum(), 1.0) / len(wanted)
    shares = np.cumsum(wanted) / wanted.sum()
    return 2 + np.searchsorted(shares, (np.arange(_TARGETS) + 0.5) / _TARGETS)
