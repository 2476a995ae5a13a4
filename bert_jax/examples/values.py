"""Checks the values of roles, and converts the different forms that a value has in files into a single form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

SCALARS = (str, int, float)
SURROGATE = re.compile("[\ud800-\udfff]")


def is_blank(value: Any, role: str) -> bool:
    """Return whether a value is empty. An empty list of answers counts as a value: it says that there is no answer."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return isinstance(value, list | tuple) and not value and role != "answers"


def is_unicode(value: Any) -> bool:
    """Return whether no text in ``value`` has a lone surrogate, which cannot be encoded.

    A lone surrogate may also stand for a byte that was not valid in the file's encoding.
    """
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
    """Return ``value``, a text or a number, as text. Raises ``ValueError`` for any other value."""
    if not isinstance(value, SCALARS):
        raise ValueError(f"a {type(value).__name__} where text is needed")
    return value if isinstance(value, str) else str(value)


def texts(value: Any) -> list[str]:
    """Return ``value`` as a list of texts; a single text becomes a list. Raises ``ValueError`` if a text is empty."""
    items = [text(item) for item in ([value] if isinstance(value, SCALARS) else _items(value))]
    if not all(item.strip() for item in items):
        raise ValueError("an empty text in a list")
    return items


def words(value: Any) -> list[str]:
    """Return ``value`` as a list of words; a single text is split at its white space."""
    if isinstance(value, str):
        return value.split()
    return [item if type(item) is str else text(item) for item in _items(value)]


def label(value: Any) -> str | int | float | bool:
    """Return ``value``, a label: a name, an index or a number. Raises ``ValueError`` for any other value."""
    if not isinstance(value, SCALARS):
        raise ValueError(f"a {type(value).__name__} where one name or number is needed")
    return value.strip() if isinstance(value, str) else value


def answers(value: Any) -> list[dict[str, Any]]:
    """Return ``value`` as a list of ``{"text", "answer_start"}``.

    TFDS and ``datasets`` turn such a list into a dict of two lists, which is accepted too.
    """
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
    """Return ``value`` as True or False; words ("yes", "false") and the digits 0 and 1 are accepted too."""
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
