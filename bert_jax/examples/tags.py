"""Converts tags of other schemes to IOB2, in which every entity begins with ``B-``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

Scheme: TypeAlias = Literal["auto", "iob1", "iob2", "bioes", "as_found"]
FIRST = ("B", "S", "U")  # prefixes that begin an entity; U is BILOU's name for S
INSIDE = ("I", "E", "M", "L")  # prefixes that continue an entity; M and E are from BMES, L is from BILOU


def to_iob2(tags: Sequence[str], scheme: Scheme = "auto") -> list[str]:
    """Return the tags of one sentence as IOB2.

    An ``I-X`` that does not follow a tag of the entity kind ``X`` becomes ``B-X``. In IOB1 this is the rule; in IOB2
    and BIOES such a tag is an error, which conlleval and seqeval read in the same way. So ``auto`` works without
    knowing the scheme. ``iob2`` and ``as_found`` change nothing. Tags without a prefix (parts of speech) stay as they
    are.
    """
    if scheme in ("iob2", "as_found"):
        return list(tags)
    result, previous = [], ""
    for tag in tags:
        prefix, dash, kind = tag.partition("-")
        if not dash or prefix not in FIRST + INSIDE or (scheme == "iob1" and prefix not in "BI"):
            result.append(tag)
            previous = ""
            continue
        result.append(f"{'I' if prefix in INSIDE and kind == previous else 'B'}-{kind}")
        previous = "" if prefix in ("E", "S", "L", "U") else kind
    return result


def spans_to_iob2(length: int, spans: Sequence[tuple[int, int, str]]) -> list[str]:
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
