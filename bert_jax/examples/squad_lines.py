"""The reader ``squad_lines``: reads tokenized SQuAD from ``.context``, ``.question`` and ``.span``, line by line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.examples.reading import Bad, Record, need, packed_name, plain_name, text_lines


@dataclasses.dataclass(frozen=True)
class Options:
    """No options: the format has no variants."""


class Reader:
    """Reads questions as records ``{"context", "question", "answers", "answer"}``.

    A line of ``.span`` has the positions of an answer's first and last token; ``answers`` has the text of this span in
    the context. ``answer`` is the text in the file ``.answer``, which may differ. The path of a split is the path of
    its contexts, such as ``val.context``. Without a ``.span`` file there are no ``answers``.
    """

    named_splits = False

    def __init__(self, options: Options = Options()) -> None:
        pass

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the questions of ``path``."""
        stem = plain_name(path).removesuffix(".context")
        columns = {"context": path, "question": need(f"{stem}.question")}
        columns |= {name: found for name in ("span", "answer") if (found := packed_name(f"{stem}.{name}"))}
        lines = {name: [line for _, line in text_lines(file)] for name, file in columns.items()}
        counts = {name: len(found) for name, found in lines.items()}
        if len(set(counts.values())) > 1:
            counted = ", ".join(f"{count} in {columns[name]}" for name, count in counts.items())
            raise UserError(f"the files of a split have different numbers of lines: {counted}")
        for i, values in enumerate(zip(*lines.values(), strict=True), 1):
            yield _question(dict(zip(lines, values, strict=True)), f"{path}:{i}")


def _question(columns: dict[str, Any], where: str) -> Record | Bad:
    span = columns.pop("span", None)
    if span is None:
        return Record(columns, where)
    tokens = columns["context"].split(" ")
    ends = span.split()
    if len(ends) != 2 or not all(end.isdigit() for end in ends) or not int(ends[0]) <= int(ends[1]) < len(tokens):
        return Bad(where, f"has the span {span!r}, which is not two places in {len(tokens)} tokens")
    first, last = map(int, ends)
    start = sum(len(token) + 1 for token in tokens[:first])
    columns["answers"] = [{"text": " ".join(tokens[first : last + 1]), "answer_start": start}]
    return Record(columns, where)
