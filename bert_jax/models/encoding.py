"""What an encoder gives."""

from __future__ import annotations

from typing import NamedTuple

import jax


class Encoding(NamedTuple):
    """What every encoder returns.

    Attributes:
      sequence: [B, L, D] the vectors of the last layer.
      word_embeddings: [V, E] the table of words, which a language-model head decodes with.
      hidden: [N + 1, B, L, D] from the embeddings up, if they were asked for.
    """

    sequence: jax.Array
    word_embeddings: jax.Array
    hidden: jax.Array | None = None
