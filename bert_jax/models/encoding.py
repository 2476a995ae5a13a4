"""The outputs that all encoders have in common."""

from __future__ import annotations

from typing import NamedTuple

import jax


class Encoding(NamedTuple):
    """The outputs of every encoder.

    Attributes:
      sequence: [B, L, D] the vectors of the last layer.
      word_embeddings: [V, E] the table of word embeddings, with which a language-model head decodes.
      hidden: [N + 1, B, L, D] the embeddings and the output of each layer, if all hidden states were requested.
      queries: [B, P, D] the vectors of the query stream at ``query_positions`` (``encoders.xlnet``), if the batch has
        them.
      past: the arrays of ``Encoder.past`` after the row, if the batch has them (``models.relative``).
    """

    sequence: jax.Array
    word_embeddings: jax.Array
    hidden: jax.Array | None = None
    queries: jax.Array | None = None
    past: dict[str, jax.Array] | None = None
