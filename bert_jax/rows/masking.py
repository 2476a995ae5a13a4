"""Decides which positions of a row are masked, and what replaces them: 80 % [MASK], 10 % random, 10 % unchanged.

A strategy selects the positions (Devlin et al. 2019, section 3.1); ``mask_rows`` replaces their tokens. The model
predicts the tokens of all selected positions, so each is also called a prediction. A row has room for P of them, which
``RowsConfig.predictions`` decides.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from bert_jax import configuration
from bert_jax.configuration import check_fields
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.rows import random, units
from bert_jax.rows.interfaces import Bools, Field, Ids, Ints, Rows, Selected, Strategy, TokenFacts, Tokens

FIELDS = {
    "masked_positions": Field("prediction", is_place=True),
    "masked_labels": Field("prediction"),
    "masked_weights": Field("prediction", "float32"),
}
# Of ``span_boundaries``: the two positions beside the run of selected positions, and the index of each in the run.
BOUNDARY_FIELDS = {
    "span_left": Field("prediction", is_place=True),
    "span_right": Field("prediction", is_place=True),
    "span_offsets": Field("prediction"),
}
DRAWS = "order_draws"  # a random number of each position, from which an objective makes an order of the positions
_TRIED_PIECES = 8  # the number of different pieces in the rows on which a strategy is tried


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """The settings of masking: how many tokens are predicted, which tokens, and what the model sees in their place.

    Attributes:
      strategy: the name of a file in ``rows/strategies``; ``options`` are the fields of this file's ``Config``.
      unit: the group of positions that a strategy selects either as a whole or not at all: "piece", "word", or the name
        of a column of the corpus. A strategy that ignores units takes "piece" alone.
      count: how many of n tokens are selected. "rounded": round(rate * n). "stochastic": int(rate * n + u) with a
        uniform u, so the mean is rate * n for every n (Liu et al. 2019, as in fairseq). A strategy whose options
        have ``most`` draws its own counts.
      fates: a selected token becomes [MASK], becomes a random piece or stays. "token" draws this for each token, "span"
        once for all tokens of a span.
      random_pieces: what a random piece is drawn from: "vocabulary" all pieces, "not_special" all except special ones,
        "unigram" the tokens of the text.
      copies: the number of epochs after which the masks repeat (static masks). If None, every epoch has new masks.
    """

    strategy: str = "token"
    rate: float = 0.15  # the share of a sequence's tokens, special tokens included, that are selected
    mask_share: float = 0.8  # the share of selected tokens that become [MASK]
    random_share: float = 0.1  # the share of selected tokens that become a random piece; the rest is kept
    max_predictions: int | None = None  # P, the most predictions of a row; if None, as many as the rows need
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the fields of the strategy's Config
    unit: str = units.PIECE
    count: Literal["rounded", "stochastic"] = "rounded"
    fates: Literal["token", "span"] = "token"
    random_pieces: Literal["vocabulary", "not_special", "unigram"] = "vocabulary"
    copies: int | None = None  # epochs after which the masks repeat; if None, every epoch has new ones
    where: dataclasses.InitVar[str] = "config.objective.masking"

    def __post_init__(self, where: str) -> None:
        check_fields(self, where, "more than 0 and at most 1 is needed", "rate", sound=lambda rate: 0 < rate <= 1)
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1 + 1e-9:
            raise UserError(
                f"{where}.mask_share is {self.mask_share} and random_share {self.random_share}; both have to be "
                "at least 0, and their sum at most 1"
            )
        least = "at least 1, or None, is needed"
        check_fields(self, where, least, "max_predictions", "copies", sound=lambda n: n is None or n >= 1)
        _selection(self, where)
        if self.has_random_counts and self.count != "rounded":  # computed now, once, for the threads that make rows
            raise UserError(f"{where}.count is set, but strategy {self.strategy!r} draws its own counts; leave it out")
        _check_strategy(self, where)

    def replaced(self, changes: Mapping[str, Any], where: str) -> MaskingConfig:
        """Return this config with the keys ``changes`` of ``where``. The options of a new strategy begin anew."""
        if changes.get("strategy", self.strategy) != self.strategy:
            changes = {"options": {}, **changes}
        return configuration.replace(self, changes, where)

    def changing_nothing(self, where: str, objective: str) -> MaskingConfig:
        """Return masks that change no token, for an ``objective`` that masks nothing; packing alone counts positions.

        Raises ``UserError`` if a key of ``where`` is set.
        """
        if self != MaskingConfig():
            raise UserError(
                f"{where} is set, but the objective {objective!r} masks nothing; leave it out, or give it to the phases"
                " of another objective alone (config.phases.NAME.masking)"
            )
        return dataclasses.replace(self, mask_share=0.0, random_share=0.0)

    @functools.cached_property
    def selection(self) -> tuple[Strategy, Any]:
        """Return the strategy's function and its options."""
        return _selection(self, "config.objective.masking")

    @functools.cached_property
    def reads_tokens(self) -> bool:
        """Return whether the strategy asks for the tokens of the rows."""
        return "tokens" in inspect.signature(self.selection[0]).parameters

    @property
    def samples_text(self) -> bool:
        """Return whether random pieces or the strategy need a sample of the text, which shows how common pieces are."""
        return self.random_pieces == "unigram" or self.reads_tokens

    @functools.cached_property
    def has_random_counts(self) -> bool:
        """Return whether the strategy itself draws how many positions to select."""
        return callable(getattr(self.selection[1], "most", None))

    def predictions(self, max_length: int) -> int:
        """Return P of a row that holds one sequence; ``RowsConfig.predictions`` returns P of any row."""
        return self.max_predictions or max(1, int(self.most(np.array([max_length]))[0]))

    def most(self, lengths: Ints) -> Ints:
        """Return the largest number [n] of positions selected in sequences of ``lengths`` tokens.

        Limits by P or by the candidates are not applied.
        """
        if self.has_random_counts:
            return self.selection[1].most(lengths)  # type: ignore[no-any-return]
        if self.count == "stochastic":
            return np.maximum(1, np.floor(self.rate * lengths).astype(np.int64) + 1)
        return np.maximum(1, np.rint(self.rate * lengths)).astype(np.int64)  # rint rounds as Python's round does

    def counts(self, lengths: Ints, candidates: Ints, predictions: int, keys: random.Bits | None = None) -> Ints:
        """Return how many positions are selected in each sequence, int64 [n].

        Args:
          lengths: [n] the tokens of each sequence.
          candidates: [n] the positions of each sequence that may be selected.
          predictions: P; the result is at most this.
          keys: [n] random keys for "stochastic". If None, return the counts that packing assumes: the largest possible,
            or the mean if the strategy draws its own, since random counts even out over the sequences of a row.
        """
        counts = self.most(lengths)
        if self.has_random_counts:
            counts = (
                np.full_like(counts, predictions) if keys is not None else np.ceil(self.rate * lengths).astype(np.int64)
            )
        elif self.count == "stochastic" and keys is not None:
            counts = np.maximum(1, np.floor(self.rate * lengths + random.uniform(keys)).astype(np.int64))
        return np.minimum(counts, np.minimum(predictions, candidates))


def _selection(config: MaskingConfig, where: str) -> tuple[Strategy, Any]:
    """Return the strategy's function and its options. Raises ``UserError`` if the name or an option does not exist."""
    file = catalogue.find("rows.strategies", config.strategy, having="select")
    options = dict(config.options)
    if "rate" in {field.name for field in dataclasses.fields(file.Config)}:
        if "rate" in options:
            raise UserError(f"{where}.options.rate is set; set {where}.rate instead")
        options["rate"] = config.rate
    return file.select, configuration.build(file.Config, options, f"{where}.options")


def _check_strategy(config: MaskingConfig, where: str) -> None:
    """Raise ``UserError`` if the strategy breaks its contract on a few rows, or if the config sets what it ignores.

    A strategy ignores the unit if it selects the same positions for other units, and the fates if it has no spans.
    """
    select, options = config.selection
    rows, length = 32, 128
    candidates = np.tile(np.arange(length) % 64 > 0, (rows, 1))  # each row has two segments, each after a special token
    keys = random.fold(random.key("a strategy on trial"), np.arange(rows))
    starts = candidates & (random.uniform(random.fold(keys[:, None], np.arange(length))) < 0.4)
    starts[:, [1, 65]] = True
    counts = np.full(rows, length // 8)
    ids = random.integers(keys[:, None] ^ random.fold(0, np.arange(length)), _TRIED_PIECES).astype(np.int32)
    asked = {"tokens": _tokens(ids, ids.ravel(), _TRIED_PIECES)} if config.reads_tokens else {}

    def try_on(starts: Bools) -> Selected:
        try:
            selection = select(candidates.copy(), starts.copy(), counts.copy(), keys, options, **asked)
        except Exception as error:
            if catalogue.place_in_own(error):
                raise
            called = f"is called as select(candidates, starts, counts, keys, options{''.join(f', {n}' for n in asked)})"
            raise UserError(f"{catalogue.display_name(config.strategy)}: select {called}; it says: {error}") from error
        _check_selected(selection, candidates, counts, config.strategy)
        return selection

    whole, name = try_on(starts), catalogue.display_name(config.strategy)
    if (try_on(starts).positions != whole.positions).any():
        raise UserError(f"{name}: select selects other positions when it is called again; draw with keys alone")
    if catalogue.is_own(config.strategy) and not whole.positions.any():
        raise UserError(f"{name}: select selects no position in {rows} rows; counts says how many are wanted in each")
    if config.fates == "span" and whole.first is None:
        raise UserError(
            f"{where}.fates is 'span', but strategy {config.strategy!r} selects single positions; set {where}.fates to "
            "'token', or take another strategy, such as 'spans'"
        )
    if config.unit != units.PIECE and whole.positions.any() and (whole.positions == try_on(candidates).positions).all():
        raise UserError(
            f"{where}.unit is {config.unit!r}, but strategy {config.strategy!r} ignores units; set {where}.unit to "
            "'piece', or take another strategy, such as 'whole_unit'"
        )


def _check_selected(selected: Selected, candidates: Bools, counts: Ints, strategy: str) -> None:
    """Raise ``UserError`` unless ``selected`` is what ``Strategy`` promises for these arguments."""
    positions, wrong = getattr(selected, "positions", None), ""
    if not isinstance(positions, np.ndarray) or positions.shape != candidates.shape or positions.dtype != np.bool_:
        wrong = f"returned no Selected with a bool array {list(candidates.shape)} as positions"
    elif (positions & ~candidates).any():
        wrong = "returned a special token or padding, which is no candidate"
    elif len(over := np.flatnonzero(positions.sum(axis=1) > counts)):
        wrong = f"returned {positions[over[0]].sum()} positions of a row, and counts allows {counts[over[0]]}"
    if wrong:
        raise UserError(
            f"{catalogue.display_name(strategy)}: select {wrong}; what it promises is in bert_jax/objectives/README.md"
        )


def mask_rows(
    rows: Rows,
    keys: random.Bits,
    config: MaskingConfig,
    facts: TokenFacts,
    predictions: int | None = None,
    sample: Ids | None = None,
) -> dict[str, np.ndarray]:
    """Return the features of masked language modelling; ``rows`` are not changed.

    Args:
      rows: sequences [n, L] with at least one position of text each.
      keys: [n] random keys.
      predictions: P, from ``RowsConfig.predictions``. If None, use P of a row that holds one sequence.
      sample: tokens of the text, from which "unigram" draws random pieces, and whose counts a strategy may ask for;
        needed if ``config.samples_text``.

    Returns:
      ``input_ids`` [n, L] with masks, and the features of ``FIELDS`` [n, P], in ascending order of position, 0 at
      unused places.
    """
    ids, length = rows.input_ids, rows.input_ids.shape[1]
    predictions = config.predictions(length) if predictions is None else predictions
    select, options = config.selection
    starts = units.starts(config.unit, ids, rows.is_text, facts, rows.column)
    counts = config.counts(rows.lengths, rows.is_text.sum(axis=1), predictions, random.fold(keys, 3))
    asked = {"tokens": _tokens(ids, sample, facts.vocab_size)} if config.reads_tokens else {}
    selected = select(rows.is_text, starts, counts, random.fold(keys, 0), options, **asked)
    _check_selected(selected, rows.is_text, counts, config.strategy)
    row, position = np.divmod(np.flatnonzero(selected.positions), length)  # several times faster than nonzero
    slot = np.arange(len(row)) - np.searchsorted(row, np.arange(len(ids)))[row]
    labels = ids[row, position]

    input_ids = ids.copy()
    first = position if config.fates == "token" or selected.first is None else selected.first[row, position]
    draw = random.uniform(random.fold(random.fold(keys, 1)[row], first))
    piece = _random_pieces(random.fold(random.fold(keys, 2)[row], position), config, facts, sample)
    seen = np.where(draw < config.mask_share, facts.mask, labels)
    seen = np.where(draw >= 1.0 - config.random_share, piece, seen)
    input_ids[row, position] = seen

    values = {"masked_positions": position, "masked_labels": labels, "masked_weights": 1}
    features = {name: np.zeros((len(ids), predictions), field.dtype) for name, field in FIELDS.items()}
    for name, array in features.items():
        array[row, slot] = values[name]
    return {"input_ids": input_ids, **features}


def _tokens(ids: Ids, sample: Ids | None, vocab_size: int) -> Tokens:
    assert sample is not None
    ids = ids.view()
    ids.flags.writeable = False
    return Tokens(ids, np.bincount(sample, minlength=vocab_size))


def _random_pieces(bits: random.Bits, config: MaskingConfig, facts: TokenFacts, sample: Ids | None) -> Ints:
    if config.random_pieces == "vocabulary":
        return random.integers(bits, facts.vocab_size)
    if config.random_pieces == "not_special":
        allowed = np.delete(np.arange(facts.vocab_size), list(facts.special_ids))
        return allowed[random.integers(bits, len(allowed))]
    assert sample is not None
    return sample[random.integers(bits, len(sample))].astype(np.int64)


def draws(keys: random.Bits, length: int) -> Ids:
    """Return a random number of 31 bits for each position, [n, length]; ``keys`` [n] as in ``mask_rows``."""
    return (random.fold(random.fold(keys, 4)[:, None], np.arange(length)) >> np.uint64(33)).astype(np.int32)


def span_boundaries(features: Mapping[str, np.ndarray], is_text: Bools) -> dict[str, np.ndarray]:
    """Return the ``BOUNDARY_FIELDS`` [n, P] for the ``features`` of ``mask_rows``.

    A span here is a run of adjacent selected positions, whatever the strategy. So the tokens beside a span are not
    selected, and the model sees them. If a span touches a special token, its positions have no boundaries: all three
    fields are 0.
    """
    row, slot = np.nonzero(features["masked_weights"])
    position = features["masked_positions"][row, slot]
    is_first = (np.diff(position, prepend=-2) != 1) | (np.diff(row, prepend=-1) != 0)
    run, edges = np.cumsum(is_first) - 1, np.flatnonzero(np.append(is_first, True))
    first, last = position[edges[:-1]][run], position[edges[1:] - 1][run]
    left, right, width = first - 1, last + 1, is_text.shape[1]
    inside = (left >= 0) & (right < width)
    inside &= is_text[row, np.maximum(left, 0)] & is_text[row, np.minimum(right, width - 1)]
    boundaries = {name: np.zeros_like(features["masked_positions"]) for name in BOUNDARY_FIELDS}
    for name, values in (("span_left", left), ("span_right", right), ("span_offsets", position - first)):
        boundaries[name][row, slot] = np.where(inside, values, 0)
    return boundaries
