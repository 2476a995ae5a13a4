"""The reader ``character_spans``: reads texts with the character positions of their entities, as in CLUENER."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_jax.examples.jsonl import Reader as JsonReader
from bert_jax.examples.reading import BadRecord, DataRecord


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads objects ``{"text", "label"}`` as records ``{"text", "words", "tags"}``.

    Each character is a word; tags are IOB2. Of overlapping entities the longest is kept. A text is bad if an entity's
    surface is not at its stated position. A text without the label field has no tags.
    """

    named_splits = False

    text_field: str = "text"  # the field of the text
    label_field: str = "label"  # {kind: {surface: [[first, last], ...]}}, both ends included

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the texts of ``path``."""
        for record in JsonReader().read(path):
            yield record if isinstance(record, BadRecord) else self._tagged(record)

    def _tagged(self, record: DataRecord) -> DataRecord | BadRecord:
        text, labels = record.get(self.text_field), record.get(self.label_field)
        if not isinstance(text, str):
            return BadRecord(record.where, f"has no text in the field {self.text_field!r}")
        columns: dict[str, Any] = {"text": text, "words": list(text)}
        if "id" in record:
            columns["id"] = record["id"]
        if labels is not None:
            try:
                columns["tags"] = _to_iob2(len(text), list(_spans(text, labels)))
            except (ValueError, TypeError, AttributeError) as error:
                return BadRecord(record.where, f"has labels that do not fit ({str(error)[:80]})")
        return DataRecord(columns, record.where)


def _spans(text: str, labels: Mapping[str, Mapping[str, list[list[int]]]]) -> Iterator[tuple[int, int, str]]:
    for kind, surfaces in labels.items():
        for surface, places in surfaces.items():
            for first, last in places:
                if not 0 <= first <= last or text[first : last + 1] != surface:
                    raise ValueError(f"{surface!r} is not at {first} to {last}")
                yield first, last, kind


def _to_iob2(length: int, spans: Sequence[tuple[int, int, str]]) -> list[str]:
    """Return the IOB2 tags of ``length`` characters.

    If spans overlap, only the longest is kept (of equally long spans the first), because one sequence of tags cannot
    hold both.

    Args:
      spans: (first, last, kind) of each entity; ``last`` is the position of its last character.
    """
    tags = ["O"] * length
    for first, last, kind in sorted(spans, key=lambda span: span[0] - span[1]):
        if all(tag == "O" for tag in tags[first : last + 1]):
            tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return tags
