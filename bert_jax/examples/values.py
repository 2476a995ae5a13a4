"""Checks the values of roles, and converts the different forms that a value has in files into a single form."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax.text.surrogates import SURROGATE

SPANS = ("head", "tail", "mention")  # roles that are a mention in the text
_SCALARS = (str, int, float)
_EMPTY = ("Cc", "Cf", "Zl", "Zp", "Zs")  # categories: control and format characters, spaces
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0\ufe0e\ufe0f"  # letters and signs by their category, and nothing to see


def is_blank(value: Any, role: str) -> bool:
    """Return whether a value is empty, or a text that shows nothing, such as spaces or U+200B.

    An empty list of answers, or of types, is a value: it says that there are none.
    """
    if value is None or (isinstance(value, str) and not any(map(_shows, value))):
        return True
    return isinstance(value, list | tuple) and not value and role not in ("answers", "types")


def _shows(character: str) -> bool:
    """Return whether a reader sees a character: no space, control or format character, and no filler."""
    return unicodedata.category(character) not in _EMPTY and character not in _FILLERS


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
    if not isinstance(value, _SCALARS):
        raise ValueError(f"a {type(value).__name__} where text is needed")
    return value if isinstance(value, str) else str(value)


def passage(value: Any) -> str:
    """Return ``value`` as text; the texts of a list become lines, such as the turns of a dialogue."""
    return "\n".join(map(text, value)) if isinstance(value, list | tuple) else text(value)


def texts(value: Any) -> list[str]:
    """Return ``value`` as a list of texts; a single text becomes a list. Raises ``ValueError`` if a text is empty."""
    items = [text(item) for item in ([value] if isinstance(value, _SCALARS) else _items(value))]
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
    if not isinstance(value, _SCALARS):
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


def span(value: Any) -> tuple[int, int]:
    """Return ``value``, two places in a text, as the characters [start, end) of a mention; "3 9" is a span too."""
    ends = value.split() if isinstance(value, str) else _items(value)
    if len(ends) != 2 or not all(str(end).isdecimal() for end in ends):
        raise ValueError(f"{str(value)[:40]!r} where two places in the text, start and end, are needed")
    return int(ends[0]), int(ends[1])


def answer_of_tokens(span: str, context: Any) -> list[dict[str, Any]]:
    """Return the answer, as ``answers`` does, from the places of its first and last token: "3 5", counted from 0.

    The tokens of ``context`` are separated by single spaces.
    """
    tokens, ends = passage(context).split(" "), span.split()
    if len(ends) != 2 or not all(end.isdecimal() for end in ends) or not int(ends[0]) <= int(ends[1]) < len(tokens):
        raise ValueError(f"{span!r}, which is not two places in {len(tokens)} tokens")
    first, last = map(int, ends)
    start = sum(len(token) + 1 for token in tokens[:first])
    return [{"text": " ".join(tokens[first : last + 1]), "answer_start": start}]


def _true_or_false(value: Any) -> bool:
    """Return ``value`` as True or False; words ("yes", "false") and the digits 0 and 1 are accepted too."""
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(value).strip().lower() not in known:
        raise ValueError(f"{str(value)[:40]!r} where true or false is needed")
    return known[str(value).strip().lower()]


def plain_value(value: Any, feature: Any) -> Any:
    """Return a value of TFDS or ``datasets`` as text, numbers, lists and dicts, with names in place of label numbers.

    The label -1, which stands for unknown, becomes None.

    Args:
      feature: the library's description of the value.
    """
    inside = feature[0] if isinstance(feature, list) else getattr(feature, "feature", feature)
    shape = getattr(value, "shape", ())
    if hasattr(feature, "int2str") and isinstance(value, int | np.integer):
        return feature.int2str(int(value)) if value >= 0 else None
    if isinstance(value, Mapping):  # TFDS gives a sequence of dicts as a dict of sequences
        return {
            key: plain_value(item, inside[key] if hasattr(inside, "__getitem__") else None)
            for key, item in value.items()
        }
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list | tuple) or shape:
        return [plain_value(item, inside) for item in value]
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"a {type(value).__name__} where a list is needed")
    return list(value)


CONVERTED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("text", "pair", "question", "context", "positive"), passage),
    **dict.fromkeys(("choices", "negatives", "types"), texts),
    **dict.fromkeys(SPANS, span),
    **dict.fromkeys(("words", "tags"), words),
    "label": label,
    "answers": answers,
    "is_impossible": _true_or_false,
}
