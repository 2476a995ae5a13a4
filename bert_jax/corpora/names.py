"""Names of corpus files: paths with the separator ``/./`` between the folder of a source and the path inside it.

The part after the separator stays the same if the files are moved.
"""

from __future__ import annotations

MARK = "/./"  # stands between the folder that all files of a source share and the rest; the path can still be opened


def below(name: str) -> str:
    """Return the part of ``name`` after the separator. The names of documents begin with it."""
    return name.rpartition(MARK)[2]


def shown(name: str) -> str:
    """Return the path ``name`` with a plain slash as its separator, for error messages."""
    return name.replace(MARK, "/")
