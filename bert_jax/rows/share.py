"""A process's share of a batch: the rows that this process makes."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Share:
    """This process's share of every batch.

    A batch has ``count`` equal parts; the process makes the rows of ``parts``, which are placed on its own devices.
    """

    parts: tuple[int, ...] = (0,)
    count: int = 1

    def rows(self, num_rows: int) -> np.ndarray:
        """Return the numbers of this share's rows in a batch of ``num_rows``."""
        size = num_rows // self.count
        return np.concatenate([np.arange(part * size, (part + 1) * size) for part in self.parts])


WHOLE = Share()  # the share of the only process
