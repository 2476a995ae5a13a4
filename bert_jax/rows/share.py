"""The rows of a batch that a process makes."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Share:
    """The parts of every batch whose rows this process's devices hold; a batch has ``count`` equal parts."""

    parts: tuple[int, ...] = (0,)
    count: int = 1

    def rows(self, num_rows: int) -> np.ndarray:
        """Return the row numbers of these parts in a batch of ``num_rows``."""
        size = num_rows // self.count
        return np.concatenate([np.arange(part * size, (part + 1) * size) for part in self.parts])


WHOLE = Share()  # the share of the only process
