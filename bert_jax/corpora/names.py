"""Names of files: a path with a mark where the part begins that does not depend on the place."""

from __future__ import annotations

MARK = "/./"  # between the folder that all files of a source share and the name below it: still a path that opens


def below(name: str) -> str:
    """What documents are named by: the part after the mark."""
    return name.rpartition(MARK)[2]


def shown(name: str) -> str:
    """What errors say: the path without the mark."""
    return name.replace(MARK, "/")
