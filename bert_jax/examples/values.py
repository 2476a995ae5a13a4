"""Checks the value of each role, and brings the forms that files have for it into one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

SCALARS = (str, int, float)
SURROGATE = re.compile("[\ud800-\udfff]")


def is_blank(value: Any, role: str) -> bool:
    """Return whether a value is empty. An empty list of answers is not: it is an answer."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return isinstance(value, list | tuple) and not value and role != "answers"


def is_unicode(value: Any) -> bool:
    """Return whether all text in ``value`` can be encoded. A lone surrogate cannot; it also stands for bytes that were
    not valid in the file's encoding."""
    if isinstance(value, str):
        return value.isascii() or not SURROGATE.search(value)
    if isinstance(value, Mapping):
        return all(map(is_unicode, value.values()))
    if not isinstance(value, list | tuple):
        return True
    if all(type(item) is str for item in value):
        return is_unicode("\n".join(value))  # one check for many words is faster
    return all(map(is_unicode, value))


def text(value: Any) -> str:
    """Return text, or a number as it is written."""
    if not isinstance(value, SCALARS):
        raise ValueError(f"a {type(value).__name__} where text is needed")
    return value if isinstance(value, str) else str(value)


def texts(value: Any) -> list[str]:
    """Return a list of texts, none of them empty; one text becomes a list of one."""
    items = [text(item) for item in ([value] if isinstance(value, SCALARS) else _items(value))]
    if not all(item.strip() for item in items):
        raise ValueError("an empty text in a list")
    return items


def words(value: Any) -> list[str]:
    """Return a list of texts; one text is split at its spaces."""
    if isinstance(value, str):
        return value.split()
    return [item if type(item) is str else text(item) for item in _items(value)]


def label(value: Any) -> str | int | float | bool:
    """Return a name, an index or a number."""
    if not isinstance(value, SCALARS):
        raise ValueError(f"a {type(value).__name__} where one name or number is needed")
    return value.strip() if isinstance(value, str) else value


def answers(value: Any) -> list[dict[str, Any]]:
    """Return a list of ``{"text", "answer_start"}``, also from the dict of two lists that TFDS and ``datasets`` make of
    it."""
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        starts = value.get("answer_start") or [None] * len(value["text"])
        value = [{"text": t, "answer_start": s} for t, s in zip(value["text"], starts, strict=True)]
    items = [value] if isinstance(value, Mapping) else _items(value)
    for item in items:
        if not (
            isinstance(item, Mapping)
            and isinstance(item.get("text"), str)
            and isinstance(item.get("answer_start"), int)
        ):
            raise ValueError("an item without a text and an answer_start")
    return [{"text": item["text"], "answer_start": item["answer_start"]} for item in items]


def flag(value: Any) -> bool:
    """Return True or False, also from a word or a digit."""
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(value).strip().lower() not in known:
        raise ValueError(f"{str(value)[:40]!r} where true or false is needed")
    return known[str(value).strip().lower()]


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"a {type(value).__name__} where a list is needed")
    return list(value)


CONVERTED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("text", "pair", "question", "context", "positive"), text),
    **dict.fromkeys(("choices", "negatives"), texts),
    **dict.fromkeys(("words", "tags"), words),
    "label": label,
    "answers": answers,
    "is_impossible": flag,
}
