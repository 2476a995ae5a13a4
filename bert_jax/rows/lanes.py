"""Deals a text to the rows of batches so that row b of a batch goes on where row b of the batch before it ended.

Row b of all batches is lane b. The text is one line of sequences in a fixed order, cut into B parts of T sequences
each; what is left behind the last part is not read. In step t of epoch e, lane b reads sequence t of part (b + e) % B.
So the end of a part is followed by the begin of the next part, in the next epoch, and the line has one end for each
lane.
"""

from __future__ import annotations

import numpy as np

from bert_jax.rows.interfaces import Ints

LANE_STARTS = "lane_starts"  # the feature that is 1 in rows that do not go on from the same row of the batch before


def sequences(epoch: int | Ints, indices: Ints, lanes: int, steps: int) -> Ints:
    """Return the numbers in the line of the sequences that rows ``indices`` [n] of ``epoch`` read.

    Row ``t * lanes + b`` of an epoch belongs to step ``t`` and lane ``b``.

    Args:
      steps: T, the steps of an epoch.
    """
    step, lane = np.divmod(indices, lanes)
    return np.asarray((lane + epoch) % lanes * steps + step, np.int64)


def starts(epochs: Ints, indices: Ints, lanes: int) -> np.ndarray:
    """Return 1 for each row [n] with which its lane begins anew, in the first step and at the begin of the line."""
    step, lane = np.divmod(indices, lanes)
    begins = (step == 0) & (((lane + epochs) % lanes == 0) | (epochs == 0))
    return begins.astype(np.int32)
