"""Decides the shapes of rows: their lengths, P (predictions of a row), K (sequences of a row), arrangement, packing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np

from bert_jax import configuration
from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.records import BatchSpec, Feature
from bert_jax.rows.interfaces import BERT_AROUND, Arrangement, Field, Limits
from bert_jax.rows.lanes import LANE_STARTS
from bert_jax.rows.masking import BOUNDARY_FIELDS, DRAWS, FIELDS, MaskingConfig
from bert_jax.text.tokenizer import Tokenizer

Packing = Literal["none", "packed", "bucketed"]

_SHORTEST_BUCKET = 16
_BUCKETS = 4


SHORT_ROWS = 0.1  # the share of documents whose pairs are shorter than a row, as in BERT
_POSITIONS = {"input_ids": Field("position"), "token_type_ids": Field("position")}
_ON_REQUEST = {**BOUNDARY_FIELDS, DRAWS: Field("position")}


@dataclasses.dataclass(frozen=True)
class RowsConfig:
    """The settings of rows. A run with other settings counts as another run.

    Packing "none" puts one sequence in a row, "packed" as many as fit; "bucketed" puts one sequence in a row and makes
    each batch of rows from one bucket of lengths.

    Attributes:
      short_row_probability: the probability of making a short row, passed to arrangements with an option of this name.
      arrangement: the name of a file in ``rows/arrangements``; ``arrangement_options`` are its options.
      max_pairs_per_row: K, the most sequences of a packed row. If None, one for every 16 positions, from 2 to 16; if
        the arrangement has no features per sequence, one for every 8 positions, at least 2.
      around: how many special tokens stand before and after a text (``TokenFacts.around``). An arrangement that can do
        without [CLS] and [SEP] has a method ``with_around``.
      features: the names of the features that rows have. If None, all except ``masking.BOUNDARY_FIELDS`` and ``DRAWS``.
      columns: the columns of the corpus that are features of the same name: [L] int32, 0 where no text is.
    """

    max_length: int
    short_row_probability: float = SHORT_ROWS
    masking: MaskingConfig = MaskingConfig()
    packing: Packing = "none"
    max_pairs_per_row: int | None = None
    arrangement: str = "sentence_pairs"
    arrangement_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: tuple[str, ...] | None = None
    around: tuple[int, int] = BERT_AROUND
    kind: str = ""  # the kind of the batches: the name of their phase
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"config.phases.{self.kind or '<name>'}"
        least = f"a sequence with its special tokens needs at least {self.arranger.shortest}"
        check_fields(self, where, least, "max_length", sound=lambda n: n >= self.arranger.shortest)
        number = "at least 1, or None, is needed"
        check_fields(
            self, "config.objective", number, "max_pairs_per_row", sound=lambda value: value is None or value >= 1
        )
        if self.in_lanes and self.packing != "none":
            raise UserError(
                f"config.objective.packing is {self.packing!r}, and a row of the arrangement {self.arrangement!r} goes "
                "on where another row ends; set it to 'none'"
            )

    @functools.cached_property
    def arranger(self) -> Arrangement:
        """Return the ``Arrangement`` that ``arrangement`` names, built with its options."""
        cls = catalogue.find("rows.arrangements", self.arrangement, having="Arrangement").Arrangement
        options = dict(self.arrangement_options)
        if "short_row_probability" in {field.name for field in dataclasses.fields(cls)}:
            options["short_row_probability"] = self.short_row_probability
        elif self.short_row_probability != SHORT_ROWS:
            raise UserError(
                f"config.objective.short_row_probability is set, but the arrangement {self.arrangement!r} makes no "
                "short rows; leave it out"
            )
        built = configuration.build(cls, options, "config.objective.arrangement_options")
        return built if self.around == BERT_AROUND else built.with_around(self.around)  # type: ignore[no-any-return]

    @property
    def in_lanes(self) -> bool:
        """Return whether row b of a batch goes on where row b of the batch before it ended (``rows.lanes``)."""
        return LANE_STARTS in self.arranger.fields

    def check_tokens(self, tokenizer: Tokenizer, where: str) -> None:
        """Raise ``UserError`` if rows need a token that ``tokenizer`` lacks. ``where``: the objective's key."""
        kind = catalogue.find("rows.arrangements", self.arrangement, having="Arrangement").Arrangement
        if "with_around" not in vars(kind):  # inherited, it would return the arrangement that it is inherited from
            advice = f"set {where}.arrangement to 'sentences', or take another vocabulary or model"
            tokenizer.need("sep", f"{where}.arrangement {catalogue.display_name(self.arrangement)}", advice)
        if self.masking.mask_share > 0:
            tokenizer.need("mask", f"masking ({where}.masking)")

    @property
    def possible(self) -> tuple[str, ...]:
        """Return the names of all features that rows can have."""
        return (*self._all_fields, "attention_mask", "position_ids", "sequence_ids", "row_weights")

    @property
    def _all_fields(self) -> dict[str, Field]:
        columns = dict.fromkeys(self.columns, Field("position"))
        return {**_POSITIONS, **FIELDS, **_ON_REQUEST, **self.arranger.fields, **columns}

    @property
    def boundaries(self) -> bool:
        """Return whether predictions have any of ``masking.BOUNDARY_FIELDS``."""
        return not BOUNDARY_FIELDS.keys().isdisjoint(self.fields)

    @property
    def fields(self) -> dict[str, Field]:
        """Return the features of rows, without ``attention_mask``, ``row_weights`` and what packing adds."""
        names = self._all_fields.keys() - _ON_REQUEST if self.features is None else self.features
        return {name: field for name, field in self._all_fields.items() if name in names}

    @property
    def max_sequences(self) -> int:
        """Return K, the largest number of sequences in a row."""
        if self.packing != "packed":
            return 1
        labelled = any(field.axis == "sequence" for field in self.arranger.fields.values())
        positions, most = (16, 16) if labelled else (8, self.max_length)
        return self.max_pairs_per_row or max(2, min(most, self.max_length // positions))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the lengths of rows, ascending: ``max_length``, and if "bucketed" also its half, quarter and eighth.

        Lengths below 16 are left out.
        """
        if self.packing != "bucketed":
            return (self.max_length,)
        halved = [self.max_length >> i for i in range(_BUCKETS)]
        return tuple(sorted(n for n in halved if n >= _SHORTEST_BUCKET or n == self.max_length))

    def predictions(self, length: int | None = None) -> int:
        """Return P for rows of ``length`` (default ``max_length``): the predictions of a sequence that fills the row.

        P of a packed row is larger by one, since the count of each of its sequences is rounded; if ``masking.count`` is
        "stochastic", it is larger by the number of sequences. Sequences that would need more are not packed together,
        so no prediction is dropped, unless the strategy draws its own counts. If ``masking.max_predictions`` is set,
        that is P.
        """
        one = self.masking.predictions(length or self.max_length)
        if self.packing != "packed" or self.masking.max_predictions is not None:
            return one
        return one + (1 if self.masking.count == "rounded" else self.max_sequences)

    @property
    def limits(self) -> Limits:
        """Return the limits of packed rows."""
        lengths, predictions = np.arange(self.max_length + 1), self.predictions()
        candidates = np.maximum(lengths - self.arranger.special_tokens, 1)
        return Limits(
            self.max_length, self.max_sequences, predictions, self.masking.counts(lengths, candidates, predictions)
        )

    def batch_spec(self, length: int | None = None) -> BatchSpec:
        """Return names, shapes and dtypes of the features of a row of ``length`` positions (default ``max_length``)."""
        row: tuple[int, ...] = (length or self.max_length,)
        shapes = {
            "position": row,
            "prediction": (self.predictions(length),),
            "sequence": (self.max_sequences,),
            "row": (),
        }
        own = {name: Feature(shapes[field.axis], field.dtype) for name, field in self.fields.items()}
        names = ("attention_mask", *(("position_ids", "sequence_ids") if self.packing == "packed" else ()))
        spec = own | {name: Feature(row, "int32") for name in names} | {"row_weights": Feature((), "float32")}
        return {name: feature for name, feature in spec.items() if self.features is None or name in self.features}

    @property
    def batch_specs(self) -> dict[str, BatchSpec]:
        """Return the ``batch_spec`` of each kind of batch: of ``kind``, and of a kind for each shorter bucket."""
        return {self.kind_of(length): self.batch_spec(length) for length in reversed(self.lengths)}

    def kind_of(self, length: int) -> str:
        """Return the kind of the batches with rows of ``length``; for the longest rows it is ``kind`` itself."""
        return self.kind if length == self.max_length else f"{self.kind}/{length}"


def arrangements_with(features: Collection[str]) -> list[str]:
    """Return the names of the arrangements whose rows have all these ``features``."""
    every = catalogue.parts("rows.arrangements", having="Arrangement")
    return [n for n in every if catalogue.find("rows.arrangements", n).Arrangement.fields.keys() >= {*features}]
