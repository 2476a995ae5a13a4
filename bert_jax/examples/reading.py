"""Code shared by all readers: records with their place in a file, and functions that read text files.

The files may be compressed, and local or remote. Each reader is a file of this package with a frozen dataclass
``Reader``, whose fields are the keys of ``config.data.options``. A reader knows a format, but no task.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from bert_jax.corpora.bad_text import BadTextError, is_foreign
from bert_jax.corpora.unpacking import UNPACKERS, open_unpacked
from bert_jax.errors import UserError, few
from bert_jax.storage import files

BLOCK_BYTES = 1 << 20
LINE_END = re.compile(r"\r*\n|\r")


class DataRecord(dict[str, Any]):
    """The columns of one example as found in a file (str, int, float, bool, list, dict, None), and where it was."""

    def __init__(self, columns: Any, where: str) -> None:
        super().__init__(columns)
        self.where = where  # "train.tsv:17", for errors


class BadRecord(NamedTuple):
    """An item of a file that should be a record but is not. The loader raises an error, or skips and counts it."""

    where: str
    reason: str  # follows the place in a message: "has 3 fields where 4 are needed"


def few_bad(bad: Sequence[BadRecord]) -> str:
    """Return the places of the first few bad items, each with its reason, for a message."""
    return few([f"{item.where} {item.reason}" for item in bad], separator="; ")


class Reader(Protocol):
    """Interface: reads one format of labelled data."""

    named_splits: ClassVar[bool] = False  # whether a path names a split of a dataset, or several files

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the records of ``path`` in order. Raises ``UserError`` if the file as a whole has another format."""
        ...


def packed_name(path: str) -> str | None:
    """Return ``path``, or its compressed form (``train.tsv.xz`` for ``train.tsv``), if it exists; else None."""
    for candidate in (path, *(path + ending for ending in UNPACKERS)):
        if files.as_path(candidate).exists():
            return candidate
    return None


def need(path: str) -> str:
    """Return ``packed_name(path)``. Raises ``UserError`` if there is no such file."""
    found = packed_name(path)
    if found is None:
        raise UserError(f"no file {path}, nor a compressed one of that name; check the path")
    return found


def plain_name(path: str) -> str:
    """Return ``path`` without the ending of a compressed file."""
    stem, ending = os.path.splitext(path)
    return stem if ending in UNPACKERS else path


def typed(delimiter: str) -> str:
    r"""Return a delimiter as it was typed in a shell, where a tab is ``\t``."""
    return delimiter.replace("\\t", "\t")


def other_delimiter(header: str) -> str | None:
    """Return the delimiter, as typed in a shell, that an unseparated header of columns seems to have; None if none."""
    found = re.search(r"[;|,\t]|(?<=\") (?=\")", header)
    return found and found[0].replace("\t", "\\t")


def text_lines(path: str, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield (number, line) for the lines of a file, numbered from 1, without line ends and byte order mark.

    If the first line of a file ends in CR alone, all lines do. Bytes that are not valid in ``encoding`` become lone
    surrogates, which the loader finds and reports with their place.

    Raises:
      UserError: the file cannot be opened, is binary or a damaged archive, or ``encoding`` is unknown.
    """
    text = whole_text(path, encoding)
    first = LINE_END.search(text)
    lines = text.split("\r" if first and first[0] == "\r" else "\n")  # all at once: labelled data fits into memory
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        yield number, line.rstrip("\r")


def whole_text(path: str, encoding: str = "utf-8") -> str:
    """Return the text of a file, decoded as by ``text_lines``, but with its line ends.

    UTF-16 and UTF-32 are known by their byte order marks, or by the zeros of the first letters.
    """
    blocks = []
    try:
        with open_unpacked(path) as file:
            while block := file.read(BLOCK_BYTES):
                blocks.append(block)
    except BadTextError as error:
        raise UserError(error.without_hint) from None
    raw = b"".join(blocks)
    found = json.detect_encoding(raw[:4])  # by its byte order mark or its zeros
    if found == "utf-8" and b"\0" in raw[:BLOCK_BYTES] and is_foreign(raw[:BLOCK_BYTES]):
        raise UserError(f"{path} is a binary file, not text; save it as text, CSV or JSON Lines, or name another file")
    guessed = found.endswith(("le", "be"))
    encoding = encoding if found == "utf-8" or (guessed and raw[:4].count(0) < 2) else found
    try:
        return raw.decode(encoding, "surrogateescape").lstrip("\ufeff")
    except UnicodeDecodeError as error:  # raised for encodings in units of several bytes, such as UTF-16
        raise UserError(f"{path} is not {encoding} ({error.reason}); convert it to UTF-8") from None
    except LookupError:
        raise UserError(
            f"config.data.options.encoding is {encoding!r}, which Python does not know; use a name such as utf-8,"
            " gb18030 or cp1252"
        ) from None
