"""The rows of labelled examples: their tokens, their order in each epoch, and the lengths to which batches are padded.

Examples are encoded once, kept without padding, and padded when a batch is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_jax.rows import random
from bert_jax.task import Bucket, RowSource
from bert_jax.text.encoded import kept_lengths, typed
from bert_jax.text.tokenizer import Tokenizer

_MIN_BATCHES = 4  # the fewest batches of a bucket; in a smaller bucket the same rows would often fill up the last batch


@dataclasses.dataclass(frozen=True)
class EncodedRows:
    """N rows of C sequences each (C = 1 except for multiple choice).

    Attributes:
      sequences: by feature name, the values of all N * C sequences one after another.
      offsets: [N * C + 1] int64, where each sequence begins; the same for every feature.
      arrays: by feature name, the features of whole rows [N, ...].
      num_choices: C, or None if a row has no axis of choices.
    """

    sequences: Mapping[str, np.ndarray]
    offsets: np.ndarray
    arrays: Mapping[str, np.ndarray]
    num_choices: int | None = None

    @classmethod
    def of(
        cls,
        sequences: Mapping[str, Sequence[Sequence[int] | np.ndarray]],
        arrays: Mapping[str, np.ndarray],
        num_choices: int | None = None,
    ) -> EncodedRows:
        """Return the encoded rows made from a list of sequences for each feature."""
        first = next(iter(sequences.values()))
        offsets = np.zeros(len(first) + 1, np.int64)
        np.cumsum([len(values) for values in first], out=offsets[1:])
        flat = {
            name: np.concatenate([np.asarray(v, np.int32) for v in values]) if len(values) else np.zeros(0, np.int32)
            for name, values in sequences.items()
        }
        return cls(flat, offsets, dict(arrays), num_choices)

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // (self.num_choices or 1)

    @property
    def lengths(self) -> np.ndarray:
        """Return the length of the longest sequence in each row, [N]."""
        longest: np.ndarray = np.diff(self.offsets).reshape(len(self), self.num_choices or 1).max(axis=1, initial=0)
        return longest

    def take(self, rows: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Return rows [n] as a batch: sequences [n, L] or [n, C, L], padded with 0, and their ``attention_mask``."""
        choices = self.num_choices or 1
        which = (rows[:, None] * choices + np.arange(choices)).reshape(-1)
        starts, ends = self.offsets[which], self.offsets[which + 1]
        places = starts[:, None] + np.arange(length)
        real = places < ends[:, None]
        shape = (len(rows), length) if self.num_choices is None else (len(rows), choices, length)
        batch = {"attention_mask": real.astype(np.int32).reshape(shape)}
        for name, values in self.sequences.items():
            padded = np.zeros(real.shape, values.dtype)
            padded[real] = values[places[real]]
            batch[name] = padded.reshape(shape)
        return batch | {name: values[rows] for name, values in self.arrays.items()}


class ExampleRows(RowSource):
    """A ``RowSource`` over encoded rows.

    In training every epoch has its own order of rows; with several ``lengths``, the rows of a batch are of similar
    length. In evaluation rows keep their order.
    """

    def __init__(self, rows: EncodedRows, lengths: Mapping[str, int], key: np.uint64 | None):
        """
        Args:
          lengths: for each kind of batch, the number of positions of a row, ascending; every row fits the last.
          key: the random key of the order. If None, rows keep their order.
        """
        self._rows, self._lengths, self._key = rows, dict(lengths), key
        bounds = np.array(list(lengths.values()))
        bucket = np.minimum(np.searchsorted(bounds, rows.lengths), len(bounds) - 1)
        self._order = np.argsort(bucket, kind="stable")  # rows of the shortest bucket first
        self._sizes = np.bincount(bucket, minlength=len(bounds))
        self._starts = np.cumsum(self._sizes) - self._sizes

    @property
    def rows_per_epoch(self) -> int:
        return len(self._rows)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets of the rows; empty if all rows belong to one kind of batch."""
        if len(self._lengths) == 1:
            return ()
        return tuple(Bucket(kind, int(n), 1) for kind, n in zip(self._lengths, self._sizes, strict=True))

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> dict[str, np.ndarray]:
        bucket = np.searchsorted(self._starts, indices, side="right") - 1
        places = indices.astype(np.int64)
        if self._key is not None:
            for one in np.unique(bucket):
                inside = bucket == one
                keys = random.fold(random.fold(self._key, np.uint64(one)), epochs[inside])
                shuffled = random.permute(keys, places[inside] - self._starts[one], int(self._sizes[one]))
                places[inside] = shuffled + self._starts[one]
        length = list(self._lengths.values())[int(bucket.max(initial=0))]
        return self._rows.take(self._order[places], length)


def padded_length(longest: int, max_length: int) -> int:
    """Return the padded length of a batch whose longest row has ``longest`` tokens; at most ``max_length``.

    It is a power of two from 16 up, or 1.5 times such a power, so that only a few shapes are compiled.
    """
    length = 16
    while length < longest:
        length = length * 3 // 2 if length & (length - 1) == 0 else length // 3 * 4
    return min(length, max_length)


def bucket_lengths(kind: str, lengths: np.ndarray, max_length: int, batch_size: int) -> dict[str, int]:
    """Return the kinds of batches for rows of ``lengths``, with the number of positions of each kind, ascending.

    The kinds are ``kind`` itself, with ``max_length`` positions, and kinds with a half, a quarter and so on of the
    positions; a shorter kind is left out if it would have too few rows.
    """
    bounds = [max_length]
    while bounds[0] >= 32:
        bounds.insert(0, -(-bounds[0] // 16) * 8)
    kept, below = [], 0
    for bound in bounds[:-1]:
        count = int((lengths <= bound).sum())
        rest = len(lengths) - count
        if count - below >= _MIN_BATCHES * batch_size and rest >= _MIN_BATCHES * batch_size:
            kept.append(bound)
            below = count
    return {f"{kind}_{bound}": bound for bound in kept} | {kind: max_length}


def pair_sequences(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str | None],
    max_length: int,
    note: Callable[[str], None] | None = None,
) -> dict[str, list[np.ndarray]]:
    """Return ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]`` of every example (Devlin et al. 2019, 4.1).

    ``[CLS]`` may be last, and in a GPT it is the text and the end token (``Tokenizer.around``); a pair needs [SEP].

    The tokenizer's ``between`` are the ``[SEP]`` between text and pair. A sequence that is too long
    is cut as ``kept_lengths`` says; ``note`` is then called with a line that says how many sequences were cut.
    """
    if any(pair is not None for pair in pairs):
        tokenizer.need("sep", "a pair of texts")
    first = tokenizer.encode_batch(texts)
    second = tokenizer.encode_batch([pair or "" for pair in pairs])
    ids, types, cut = [], [], [0, 0]  # cut: [sequences that were cut, tokens that were dropped]
    cls, sep = (np.array(special, np.int32) for special in tokenizer.around)
    between = np.array(tokenizer.between, np.int32)
    for a, b, pair in zip(first, second, pairs, strict=True):
        capacity = max_length - len(cls) - len(sep) - (0 if pair is None else len(between))
        kept_a, kept_b = kept_lengths(len(a), len(b) if pair is not None else 0, capacity)
        if lost := len(a) - kept_a + (len(b) - kept_b if pair is not None else 0):
            cut = [cut[0] + 1, cut[1] + lost]
        parts = [cls, a[:kept_a], sep] if pair is None else [cls, a[:kept_a], between, b[:kept_b], sep]
        ids.append(np.concatenate(parts))
        of_first = len(ids[-1]) if pair is None else len(cls) + kept_a + len(between)
        of_texts = np.repeat(np.array([0, 1], np.int32), [of_first, len(ids[-1]) - of_first])
        types.append(typed(of_texts, tokenizer.cls_last))
    if cut[0] and note is not None:
        note(
            f"{cut[0]:,} of {len(ids):,} sequences are longer than {max_length} tokens; {cut[1]:,} tokens were cut off"
        )
    return {"input_ids": ids, "token_type_ids": types}
