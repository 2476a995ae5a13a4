"""The annotator ``capitals``: says which pieces have a capital letter in the text, before it becomes lower case.

The column serves the objective ``capitals``. It has no units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

VERSION = 1  # raise this number whenever the same text gets other values
SMALL, CAPITAL = 1, 2  # 0 is left to positions without text


@dataclasses.dataclass(frozen=True)
class Annotator:
    """Gives ``CAPITAL`` to a piece whose text lower case would change, and ``SMALL`` to any other piece.

    The first piece of "Berlin" is a capital, and every piece of "NATO"; a digit and a Chinese character are small.
    """

    dtype: ClassVar[str] = "uint8"

    def identity(self) -> dict[str, Any]:
        return {"version": VERSION}

    def annotate(self, sentences: Sequence[str], spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [
            np.array([CAPITAL if _changes(text[start:stop]) else SMALL for start, stop in places.tolist()], np.uint8)
            for text, places in zip(sentences, spans, strict=True)
        ]


def _changes(text: str) -> bool:
    return text.lower() != text
