"""What rows are made of: the features of a sequence, and how sequences are laid out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from bert_jax.rows import random

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Records = np.ndarray  # of the dtype of an arrangement's records


@dataclasses.dataclass(frozen=True)
class TokenFacts:
    """What rows need to know of a tokenizer."""

    pad: int
    cls: int
    sep: int
    mask: int
    vocab_size: int
    is_continuation: Bools | None = None  # [V] pieces that go on with a word
    special_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Any) -> TokenFacts:
        """Return the facts of a ``text.tokenizer.Tokenizer``."""
        t = tokenizer
        special = tuple(sorted(t.special_ids))
        return cls(t.pad_id, t.cls_id, t.sep_id, t.mask_id, t.size, t.is_continuation, special)


class Field(NamedTuple):
    """One named feature of a sequence, and how a packed row holds those of several.

    Attributes:
      axis: "position" has a value for each of the L positions of a row, "target" for each of its P predictions,
        "sequence" for each of its K sequences.
      is_place: the value is a position of the sequence; a packed row adds where the sequence begins.
    """

    axis: Literal["position", "target", "sequence"]
    dtype: str = "int32"
    is_place: bool = False


class Rows(NamedTuple):
    """Sequences laid out, one a row, before masking."""

    input_ids: Ids  # [n, L]
    token_type_ids: Ids  # [n, L] 0 up to the first [SEP], then 1; 0 on padding
    attention_mask: Ids  # [n, L] 1 on tokens
    is_text: Bools  # [n, L] neither special token nor padding
    lengths: Ints  # [n] tokens, special tokens included


class Sentences(Protocol):
    """The part of a corpus split that a plan reads."""

    @property
    def sentence_offsets(self) -> Ints:
        """[S + 1] token offset of each sentence; every sentence has a token."""
        ...

    @property
    def document_starts(self) -> Ints:
        """[N + 1] first sentence of each document; every document has a sentence."""
        ...


class Split(Sentences, Protocol):
    """The part of ``corpora.store.CorpusSplit`` that rows read."""

    @property
    def fingerprint(self) -> str: ...

    def read(self, starts: np.ndarray, lengths: np.ndarray, column: str = "tokens") -> np.ndarray:
        """Return the tokens of spans, concatenated, int32 [sum(lengths)]; or the values of another column."""
        ...


class Limits(NamedTuple):
    """What a packed row has space for."""

    max_length: int
    max_sequences: int  # K
    predictions: int  # P
    counts: Ints  # [max_length + 1] predictions of a sequence at most, by its length


class Arrangement(Protocol):
    """Which text makes a sequence: ``rows/arrangements/<name>.py``, a frozen dataclass of its own options.

    Attributes:
      version: of the plans; a change of what a plan says changes it.
      special_tokens: of a sequence, at most.
      shortest: tokens of the shortest sequence, special tokens included.
      record: dtype of a sequence in a plan. It begins with ``a_start``, which no two sequences of an epoch share: every
        draw for a sequence is keyed by it.
      fields: features of the axis "sequence".
    """

    version: ClassVar[int]
    special_tokens: ClassVar[int]
    shortest: ClassVar[int]
    record: ClassVar[np.dtype]
    fields: ClassVar[Mapping[str, Field]]

    def check(self, split: Sentences, max_length: int) -> None:
        """Raise ``UserError`` where no sequences can be made. Takes no time, however large the split is."""
        ...

    def plan(self, split: Sentences, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        """Yield the sequences of an epoch in corpus order, from lengths alone, in blocks of bounded size.

        Args:
          key: of (corpus fingerprint, seed, phase, epoch).
          limits: of the rows that the sequences are to be packed in; None: one sequence a row.
        """
        ...

    def lengths(self, records: Records) -> Ints:
        """Return the tokens [n] of sequences, special tokens included."""
        ...

    def spans(self, records: Records) -> tuple[Ints, Ints]:
        """Return starts and lengths [n, S] of the stretches of the split that make each sequence, in their order."""
        ...

    def lay_out(self, split: Sentences, records: Records, tokens: Ids, width: int, facts: TokenFacts) -> Rows:
        """Lay out sequences as rows of ``width``. ``tokens``: all stretches of ``spans``, one after another."""
        ...

    def labels(self, records: Records) -> dict[str, np.ndarray]:
        """Return the values [n] of ``fields``."""
        ...


class Selected(NamedTuple):
    """What a masking strategy selects.

    Attributes:
      chosen: [n, L] positions to predict.
      first: [n, L] at each chosen position, the first position of the span that it belongs to; None: its own.
    """

    chosen: Bools
    first: Ints | None = None


class Strategy(Protocol):
    """Selects the positions to predict: ``select`` of ``rows/strategies/<name>.py``, which has a ``Config`` of options.

    Args:
      candidates: [n, L] positions that may be selected: all but special tokens and padding.
      starts: [n, L] candidates at which a unit begins; it goes on up to the next one or the next position that is no
        candidate.
      counts: [n] how many to select; never more than a row has candidates.
      keys: [n] one random key a row; a row's selection depends on its own arguments alone.

    Returns:
      Positions within ``candidates``, at most ``counts`` in a row.
    """

    def __call__(
        self, candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: object
    ) -> Selected: ...


@runtime_checkable
class RandomCounts(Protocol):
    """Options of a strategy that draws how many positions it selects, about ``rate`` of them; ``counts`` are bounds.

    Attributes:
      rate: that of ``MaskingConfig``, which sets it.
    """

    rate: float

    def most(self, lengths: Ints) -> Ints:
        """Return counts [n] that sequences of ``lengths`` tokens exceed so seldom that a row needs no more space."""
        ...
