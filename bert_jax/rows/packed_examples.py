"""The rows of labelled examples, if several examples share a row."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from bert_jax.records import BatchSpec, Feature
from bert_jax.rows import packing, random
from bert_jax.rows.example_rows import EncodedRows
from bert_jax.rows.interfaces import Field, Limits
from bert_jax.task import Bucket, RowSource

_POSITIONS = 8  # K is a row's positions over this number, so that batches have about the same number of examples
_FULL = 0.9  # the share of positions that hold tokens in rows of a good length
_OF_ROWS = ("row_weights", "example_ids")  # features of a row of one example that a packed row does not have


class PackedExamples(RowSource):
    """A ``RowSource`` whose rows hold up to K of the encoded rows, called examples here, one after another.

    An epoch has every example once, whole. Each epoch is packed anew: the lengths that meet in a row stay the same, and
    which examples of these lengths meet is random.
    """

    def __init__(
        self, rows: EncodedRows, kind: str, length: int, batch_size: int, key: np.uint64, at_end: bool = False
    ):
        """
        Args:
          length: L, the number of positions of a row, in which every example fits.
          batch_size: about the number of examples that a batch has on average (``rows_of``).
          key: the random key of the order.
          at_end: whether the last position of an example represents it, not the first.
        """
        assert rows.num_choices is None
        self._rows, self._kind, self._batch_size, self._at_end = rows, kind, batch_size, at_end
        self._lengths, self._key = rows.lengths, key
        self._limits = _limits(length)
        self._fields = {name: Field("position") for name in rows.sequences}
        self._fields["cls_positions"] = Field("sequence", is_place=True)
        of_examples = {name: values for name, values in rows.arrays.items() if name not in _OF_ROWS}
        self._fields |= {name: Field("sequence", str(values.dtype)) for name, values in of_examples.items()}
        self._plans: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def spec(self) -> BatchSpec:
        """Return the features of a row: the features of examples, [L] and [K, ...], and ``cls_positions`` [K]."""
        positions, examples = (self._limits.max_length,), (self._limits.max_sequences,)
        names = ("attention_mask", "position_ids", "sequence_ids")
        found = {name: Feature(positions, "int32") for name in names}
        for name, field in self._fields.items():
            inside = self._rows.arrays[name].shape[1:] if name in self._rows.arrays else ()
            found[name] = Feature(positions if field.axis == "position" else (*examples, *inside), field.dtype)
        return found

    @property
    def rows_per_epoch(self) -> int:
        return len(self._plan(0)[1])

    def rows_of(self, examples: int) -> int:
        """Return the number of rows that hold about so many ``examples`` on average.

        It is a multiple of 8, 4 or 2, which as many devices can share, if such a multiple differs by at most a fifth.
        """
        mean = examples * self.rows_per_epoch / len(self._rows)
        near = (shards * round(mean / shards) for shards in (8, 4, 2))
        return next((rows for rows in near if abs(rows - mean) <= mean / 5), max(1, round(mean)))

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the only bucket, which says how many rows a batch has."""
        return (Bucket(self._kind, self.rows_per_epoch, Fraction(self.rows_of(self._batch_size), self._batch_size)),)

    def describe(self) -> str:
        """Return a line for users: how full the rows are, and how many examples a batch has."""
        examples, rows, length = len(self._rows), self.rows_per_epoch, self._limits.max_length
        of_batch = self.rows_of(self._batch_size)
        return (
            f"{examples:,} examples share {rows:,} rows of {length} positions, which are "
            f"{self._lengths.sum() / (rows * length):.1%} full; a batch is {of_batch} rows, "
            f"{of_batch * examples / rows:.1f} examples on average"
        )

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        held = []
        for epoch, index in zip(epochs.tolist(), indices.tolist(), strict=True):
            examples, ends = self._plan(epoch)
            [row] = random.permute(random.fold(random.fold(self._key, 1), epoch), index, len(ends))
            held.append(examples[ends[row - 1] if row else 0 : ends[row]])
        chosen = np.concatenate(held)
        lengths = self._lengths[chosen]
        begins = np.cumsum(lengths) - lengths
        tokens = np.repeat(self._rows.offsets[chosen] - begins, lengths) + np.arange(lengths.sum())
        of_examples = {name: values[chosen] for name, values in self._rows.arrays.items() if name in self._fields}
        flat = packing.Flat(
            lengths,
            {name: values[tokens] for name, values in self._rows.sequences.items()},
            np.empty(0, np.int64),
            {},
            {"cls_positions": lengths - 1 if self._at_end else np.zeros_like(lengths), **of_examples},
        )
        shape = (self._limits.max_length, 0, self._limits.max_sequences)
        return packing.join(flat, np.array([len(one) for one in held]), shape, self._fields, pad=0)

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the examples of an epoch, row after row, and the index after each row's last example."""
        if epoch not in self._plans:
            found: dict[str, list[np.ndarray]] = {"sequences": [], "row_ends": []}
            [key] = random.fold(random.fold(self._key, 0), epoch)
            every = np.arange(len(self._rows))
            for name, piece in packing.pack([every], lambda numbers: self._lengths[numbers], key, self._limits):
                found[name].append(piece)
            plan = np.concatenate(found["sequences"]), np.concatenate(found["row_ends"])
            # Batches have rows of one epoch, and the first one says how many there are.
            self._plans = {known: self._plans[known] for known in (0,) if known in self._plans} | {epoch: plan}
        return self._plans[epoch]


def row_length(lengths: np.ndarray, shortest: int, longest: int) -> int:
    """Return the least length of rows, from ``shortest`` to ``longest``, that packing fills well, or else fills best.

    Short rows cost less attention. A batch of short rows has more rows, so its number of examples stays the same.

    Args:
      lengths: of examples, which fit into ``shortest``.
    """

    def share(length: int) -> float:
        compositions = packing.compose(np.bincount(lengths, minlength=length + 1), _limits(length))
        return float(lengths.sum() / (length * sum(one.rows for one in compositions)))

    found: dict[int, float] = {}
    for length in dict.fromkeys((*range(shortest, longest, 8), longest)):
        found[length] = share(length)
        if found[length] >= _FULL:
            return length
    return max(found, key=found.__getitem__)


def _limits(length: int) -> Limits:
    most = max(2, length // _POSITIONS)
    return Limits(length, most, most, np.ones(length + 1, np.int64))
