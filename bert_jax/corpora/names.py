"""Names of corpus files: paths with a mark. The part after the mark stays the same if the corpus is moved."""

from __future__ import annotations

MARK = "/./"  # stands between the folder that all files of a source share and the rest; the path can still be opened


def below(name: str) -> str:
    """Return the part of ``name`` after the mark, which is used in the names of documents."""
    return name.rpartition(MARK)[2]


def shown(name: str) -> str:
    """Return the path ``name`` without the mark, for error messages."""
    return name.replace(MARK, "/")
