"""Names of files. A name is a path with a mark before the part that does not depend on where the corpus is."""

from __future__ import annotations

MARK = "/./"  # between the folder that all files of a source share and the rest; the path still opens


def below(name: str) -> str:
    """Return the part after the mark, by which documents are named."""
    return name.rpartition(MARK)[2]


def shown(name: str) -> str:
    """Return the path without the mark, as errors show it."""
    return name.replace(MARK, "/")
