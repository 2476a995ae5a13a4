"""Which rows of a batch a process makes."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Share:
    """Of ``count`` equal parts of every batch, those whose rows the devices of this process hold."""

    parts: tuple[int, ...] = (0,)
    count: int = 1

    def rows(self, num_rows: int) -> np.ndarray:
        """Their numbers in a batch of ``num_rows``."""
        size = num_rows // self.count
        return np.concatenate([np.arange(part * size, (part + 1) * size) for part in self.parts])


WHOLE = Share()  # of the only process
