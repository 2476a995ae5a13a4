"""The interfaces of arrangements of text (``Arrangement``) and of masking strategies (``Strategy``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bert_jax.errors import UserError
from bert_jax.rows import random

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Records = np.ndarray  # the sequences of a plan: one element per sequence, of the dtype ``Arrangement.record``
BERT_AROUND = (1, 1)  # [CLS] before a text and [SEP] after it


@dataclasses.dataclass(frozen=True)
class TokenFacts:
    """The facts about a tokenizer that are needed to make rows: token ids and the vocabulary.

    An id is -1 if the tokenizer, a GPT's, has no such token. ``end`` is the id of the end token of a GPT alone.
    """

    pad: int
    cls: int
    sep: int
    mask: int
    vocab_size: int
    is_continuation: Bools | None = None  # [V] whether a piece continues a word
    ends_word: Bools | None = None  # [V] whether a word starts after a piece, whichever piece comes next
    special_ids: tuple[int, ...] = ()
    end: int = -1

    @property
    def around(self) -> tuple[int, int]:
        """Return how many special tokens stand before a text and after it: [CLS] and [SEP], or a GPT's end token."""
        return BERT_AROUND if self.cls >= 0 else (0, int(self.end >= 0))

    @classmethod
    def of(cls, tokenizer: Any) -> TokenFacts:
        """Return the facts of a ``text.tokenizer.Tokenizer``."""
        t = tokenizer
        ids, special = t.role_ids, tuple(sorted(t.special_ids))
        cls_, sep, mask, end = (ids.get(role, -1) for role in ("cls", "sep", "mask", "end"))
        return cls(t.pad_id, cls_, sep, mask, t.size, t.is_continuation, t.ends_word, special, end)


class Field(NamedTuple):
    """The axis and dtype of a feature, which say how a packed row holds the values of its sequences.

    Attributes:
      axis: "position" if the feature has a value for each of the L positions of a row, "prediction" for each of its P
        predictions, "sequence" for each of its K sequences, "row" if it has one value.
      is_place: whether the value is a position within the sequence; a packed row adds the position where the sequence
        begins.
    """

    axis: Literal["position", "prediction", "sequence", "row"]
    dtype: str = "int32"
    is_place: bool = False


class Rows(NamedTuple):
    """Sequences, one per row, before masking."""

    input_ids: Ids  # [n, L]
    token_type_ids: Ids  # [n, L] 0 up to the first [SEP], then 1; 0 on padding
    attention_mask: Ids  # [n, L] 1 on tokens
    is_text: Bools  # [n, L] neither special token nor padding
    lengths: Ints  # [n] number of tokens, special tokens included
    column: Ids | None = None  # [n, L] the corpus column of the units, if units are in one
    features: Mapping[str, np.ndarray] = {}  # of ``Arrangement.fields``, by axis: "position" [n, L], "row" [n]


class Sentences(Protocol):
    """The part of a corpus split that a plan reads."""

    @property
    def sentence_offsets(self) -> Ints:
        """Return the token offset of each sentence, [S + 1]; every sentence has a token."""
        ...

    @property
    def document_starts(self) -> Ints:
        """Return the first sentence of each document, [N + 1]; every document has a sentence."""
        ...


def check_documents(split: Sentences) -> None:
    """Raise ``UserError`` if a split of a corpus has no document."""
    if len(split.document_starts) < 2:
        raise UserError("the split has no document: add text, or raise heldout_fraction if this is the held-out split")


class Split(Sentences, Protocol):
    """The part of ``corpora.store.CorpusSplit`` that rows read."""

    @property
    def fingerprint(self) -> str: ...

    def read(self, starts: np.ndarray, lengths: np.ndarray, column: str = "tokens") -> np.ndarray:
        """Return the tokens of spans, concatenated, int32 [sum(lengths)], or the values of another column."""
        ...


class Limits(NamedTuple):
    """The maximum numbers of tokens, sequences and predictions in a packed row."""

    max_length: int
    max_sequences: int  # K
    predictions: int  # P
    counts: Ints  # [max_length + 1] for each length of a sequence, the number of predictions to allow for


class Arrangement(Protocol):
    """Decides which text makes a sequence. Each file of ``rows/arrangements`` has a frozen dataclass ``Arrangement``.

    Attributes:
      version: the version of the plans; raise it whenever the plans change.
      special_tokens: the largest number of special tokens of a sequence that has no separators inside.
      shortest: the number of tokens of the shortest sequence, special tokens included.
      record: the dtype of a sequence in a plan. Its first field is ``a_start``, at least 0, which is different for all
        sequences of an epoch, so every random draw for a sequence is keyed by it.
      fields: the features that ``labels`` returns (axis "sequence") and that ``lay_out`` returns ("position", "row").
        If ``lane_starts`` (``rows.lanes``) is among them, the sequences are one line: their order stays, every epoch
        reads the plan of epoch 0, and they are dealt in lanes.
    """

    version: ClassVar[int]
    special_tokens: ClassVar[int]
    shortest: ClassVar[int]
    record: ClassVar[np.dtype]
    fields: ClassVar[Mapping[str, Field]]

    def check(self, split: Split) -> None:
        """Raise ``UserError`` if no sequences can be made. The check is quick, however large the split is."""
        ...

    def plan(self, split: Split, key: np.uint64, max_length: int, limits: Limits | None) -> Iterator[Records]:
        """Yield the sequences of an epoch by ascending ``a_start``, in blocks of bounded size.

        They follow from the lengths of sentences, and from a column of the corpus where one says what a sentence is.

        Args:
          key: the random key of (corpus fingerprint, seed, phase, epoch).
          limits: the limits of the rows into which the sequences will be packed. If None, there is one sequence per
            row.
        """
        ...

    def lengths(self, records: Records) -> Ints:
        """Return the number of tokens [n] of each sequence, special tokens included."""
        ...

    def spans(self, records: Records) -> tuple[Ints, Ints]:
        """Return starts and lengths [n, S] of the S spans of the split that make up each sequence, in order."""
        ...

    def lay_out(self, split: Split, records: Records, tokens: Ids, width: int, facts: TokenFacts) -> Rows:
        """Return the sequences as rows of ``width`` positions.

        ``tokens`` are the tokens of all ``spans``, one after another.
        """
        ...

    def labels(self, records: Records) -> dict[str, np.ndarray]:
        """Return the values [n] of each feature in ``fields`` of the axis "sequence"."""
        ...


class Selected(NamedTuple):
    """The positions that a masking strategy selects.

    Attributes:
      positions: [n, L] whether a position is selected.
      first: [n, L] at each selected position, the first position of its span. If None, every span has one position.
    """

    positions: Bools
    first: Ints | None = None


class Tokens(NamedTuple):
    """The tokens of rows, and how common each piece is, for a strategy that asks for them."""

    ids: Ids  # [n, L] read-only
    counts: Ints  # [V] how often each piece is among ``sequence_rows.SAMPLED`` tokens from all over the text


class Strategy(Protocol):
    """Selects the positions to predict: the function ``select`` in ``rows/strategies/<name>.py``.

    A strategy that depends on tokens has a sixth argument, ``tokens``. All others are called without it.

    Args:
      candidates: [n, L] whether a position may be selected: all may except special tokens and padding.
      starts: [n, L] whether a unit (a group of positions that are masked together, such as a word) begins at a
        candidate. The unit ends before the next start or the next position that is not a candidate.
      counts: [n] how many positions to select; at most the number of the row's candidates.
      keys: [n] one random key per row; the selection of a row depends only on the row's own arguments.
      options: the ``Config`` of the strategy's file. If it has the field ``rate`` and a method ``most(lengths)``, the
        strategy itself draws how many positions to select, a share ``rate`` on average, and takes ``counts`` as upper
        limits. ``most`` returns these limits [n], which a sequence of ``lengths`` tokens exceeds so seldom that rows
        need no space for more predictions.

    Returns:
      The selected positions: candidates, at most ``counts`` in a row.
    """

    def __call__(
        self, candidates: Bools, starts: Bools, counts: np.ndarray, keys: random.Bits, options: object, **tokens: Tokens
    ) -> Selected: ...
