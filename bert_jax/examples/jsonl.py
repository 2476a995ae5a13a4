"""The reader ``jsonl``: reads JSON objects, one per line, one after another, or in an array."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.configuration import nearest
from bert_jax.errors import UserError
from bert_jax.examples.reading import Bad, Record, whole_text

SPACE = re.compile(r"[\s,]*")
NEXT_OBJECT = re.compile(r"\n[^\S\n]*+(?=\{)")
CUT = 1 << 16  # characters; an error costs time in proportion to the text before it, so that text is cut off


@dataclasses.dataclass(frozen=True)
class Options:
    """Where the objects are in a file."""

    # if the file is a single object: the name of its field with the list of objects, such as "data". A dot selects a
    # field of a nested object.
    field: str = ""


class Reader:
    """Reads each object as a record.

    Text that is not JSON gives a ``Bad``, and reading continues at the next line that begins an object.
    """

    named_splits = False

    def __init__(self, options: Options = Options()) -> None:
        self._options = options

    def read(self, path: str) -> Iterator[Record | Bad]:
        """Yield the objects of ``path``."""
        text = whole_text(path)
        values: Iterator[tuple[str, Any]]
        if self._options.field:
            found = _inside(parse(text, path), self._options.field, path)
            values = ((f"{path}, {self._options.field}[{i}]", value) for i, value in enumerate(found))
        elif text.lstrip().startswith("["):
            values = ((f"{path}, [{i}]", value) for i, value in enumerate(parse(text, path)))
        else:
            values = _values(text, path)
        for where, value in values:
            if isinstance(value, Mapping):
                yield Record(value, where)
            else:
                yield value if isinstance(value, Bad) else Bad(where, f"has a JSON {kind(value)}, not an object")


def parse(text: str, path: str) -> Any:
    """Return the JSON value in ``text``, the whole content of ``path``. Raises ``UserError`` if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({str(error)[:120]}); mend it or set config.data.format") from None


def kind(value: Any) -> str:
    """Return JSON's name for the type of ``value``."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


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
            value = Bad(where, f"is not JSON ({str(error).partition(':')[0][:80]})")
            following = NEXT_OBJECT.search(text, place)
            end = following.end() if following else len(text)
            if end > CUT:
                line += text.count("\n", counted, end)
                text, counted, end = text[end:], 0, 0
        yield where, value
        place = SPACE.match(text, end).end()  # type: ignore[union-attr]


def _inside(value: Any, field: str, path: str) -> list[Any]:
    for key in field.split("."):
        if not isinstance(value, Mapping) or key not in value:
            there = nearest(key, map(str, value)) if isinstance(value, Mapping) else f"a JSON {kind(value)} is there"
            raise UserError(f"{path} has no field {field!r}; {there}; set config.data.options.field")
        value = value[key]
    if not isinstance(value, list):
        raise UserError(f"{path} has a JSON {kind(value)} at {field!r} where an array of objects is needed")
    return value
