"""The reader ``hellaswag_text``: reads HellaSwag as text lines: context, number of the right ending, and endings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bert_jax.examples.reading import Bad, Record, text_lines


@dataclasses.dataclass(frozen=True)
class Options:
    """The number of endings of each item."""

    num_choices: int = 4  # endings of an item


class Reader:
    """Reads items as records ``{"activity", "context", "choices", "label"}``.

    The first line of an item has the activity, a colon and the context.
    """

    named_splits = False

    def __init__(self, options: Options = Options()) -> None:
        self._size = options.num_choices + 2

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the items of ``path``."""
        lines: list[str] = []
        number = 0
        for number, line in text_lines(path):
            lines.append(line)
            if len(lines) == self._size:
                yield _item(lines, f"{path}:{number - self._size + 1}")
                lines = []
        if any(line.strip() for line in lines):
            yield Bad(f"{path}:{number}", f"ends in the middle of an item: each has {self._size} lines")


def _item(lines: list[str], where: str) -> Record | Bad:
    activity, colon, context = lines[0].partition(": ")
    choices = lines[2:]
    if not lines[1].strip().isdigit() or int(lines[1]) >= len(choices):
        return Bad(where, f"has {lines[1][:20]!r} where the number of an ending, 0 to {len(choices) - 1}, is needed")
    columns = {"activity": activity if colon else "", "context": context if colon else lines[0]}
    return Record({**columns, "choices": choices, "label": int(lines[1])}, where)
