"""Names of files. A name is a path with a mark where the part begins that does not depend on the place."""

from __future__ import annotations

MARK = "/./"  # between the folder that all files of a source share and the name below it: still a path that opens


def below(name: str) -> str:
    """Return the part after the mark, by which documents are named."""
    return name.rpartition(MARK)[2]


def shown(name: str) -> str:
    """Return the path without the mark, as errors say it."""
    return name.replace(MARK, "/")
