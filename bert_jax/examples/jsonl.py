"""The reader ``jsonl``: reads JSON objects, one per line, one after another, or in an array."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.examples.reading import BadRecord, DataRecord, whole_text

SPACE = re.compile(r"[\s,]*")
NEXT_OBJECT = re.compile(r"\n[^\S\n]*+(?=\{)")
CUT = 1 << 16  # characters; an error costs time in proportion to the text before it, so that text is cut off


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads each object as a record.

    Text that is not JSON gives a ``BadRecord``, and reading continues at the next line that begins an object.
    """

    named_splits = False

    # the lists that lead to the records, if the objects of the file are no records: "data", "data.paragraphs.qas". A
    # record has the fields around these lists too, and its ``number`` in the last list; a digit is a place in a list.
    field: Any = ""

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the objects of ``path``."""
        text = whole_text(path)
        values: Iterator[tuple[str, Any]]
        if self.field != "":
            whole, keys = parse(text, path), str(self.field).split(".")
            roots = {f"[{i}]": value for i, value in enumerate(whole)} if isinstance(whole, list) else {"": whole}
            found = (one for place, root in roots.items() for one in _inside(root, keys, {}, place, path))
            values = ((f"{path}, {place}", value) for place, value in found)
        elif text.lstrip().startswith("["):
            values = ((f"{path}, [{i}]", value) for i, value in enumerate(parse(text, path)))
        else:
            values = _values(text, path)
        for where, value in values:
            if isinstance(value, Mapping):
                yield DataRecord(value, where)
            elif isinstance(value, BadRecord):
                yield value
            else:
                yield BadRecord(where, f"has a JSON {_type(value)}, not an object{_inner(value)}")


def parse(text: str, path: str) -> Any:
    """Return the JSON value in ``text``, the whole content of ``path``. Raises ``UserError`` if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({str(error)[:120]}); mend it or set config.data.format") from None


def _type(value: Any) -> str:
    """Return JSON's name for the type of ``value``."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _inner(value: Any) -> str:
    """Return the hint that reads the objects of a list inside ``value``, or "" if there is none."""
    items = value if isinstance(value, list) else []
    places = [i for i, item in enumerate(items) if isinstance(item, list) and item and isinstance(item[0], dict)]
    return f" (--config.data.options.field={places[0]} reads the objects in it)" if places else ""


def _values(text: str, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) for each of the JSON values that follow one another in ``text``."""
    decoder = json.JSONDecoder()
    place, line, counted = SPACE.match(text).end(), 1, 0  # type: ignore[union-attr]
    while place < len(text):
        line += text.count("\n", counted, place)
        counted = place
        where = f"{path}:{line}"
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            value = BadRecord(where, f"is not JSON ({str(error).partition(':')[0][:80]})")
            following = NEXT_OBJECT.search(text, place)
            end = following.end() if following else len(text)
            if end > CUT:
                line += text.count("\n", counted, end)
                text, counted, end = text[end:], 0, 0
        yield where, value
        place = SPACE.match(text, end).end()  # type: ignore[union-attr]


def _inside(
    value: Any, keys: Sequence[str], around: Mapping[str, Any], place: str, path: str
) -> Iterator[tuple[str, Any]]:
    """Yield (place, item) for the items of the lists that ``keys`` lead to; an object gets the fields ``around`` it."""
    if isinstance(value, list) and not (keys and keys[0].isdigit()):
        for i, item in enumerate(value):
            if keys:
                yield from _inside(item, keys, around, f"{place}[{i}]", path)
            else:
                yield f"{place}[{i}]", {**around, "number": i, **item} if isinstance(item, Mapping) else item
        return
    if not keys:
        raise UserError(
            f"{path} has a JSON {_type(value)} at {place} where an array of objects is needed; set"
            " config.data.options.field, or config.data.format"
        )
    fields = {str(i): item for i, item in enumerate(value)} if isinstance(value, list) else value
    if not isinstance(fields, Mapping) or keys[0] not in fields:
        inside = f" at {place}" if place else ""
        there = nearest(keys[0], map(str, fields)) if isinstance(fields, Mapping) else f"a JSON {_type(value)} is there"
        raise UserError(
            f"{path} has no field {keys[0]!r}{inside}; {there}; set config.data.options.field, or config.data.format"
        )
    around = {**around, **{name: one for name, one in fields.items() if name != keys[0]}}
    yield from _inside(fields[keys[0]], keys[1:], around, f"{place}.{keys[0]}".lstrip("."), path)
