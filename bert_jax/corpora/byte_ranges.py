"""Reads the lines, paragraphs or articles of a byte range of a file, and the elements of a JSON array.

A range [start, stop) reaches to the end of the file if ``stop`` is -1. A line, paragraph or article belongs to the
range in which it begins, wherever it ends. So adjacent ranges yield each of them exactly once, wherever the file is
cut.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from bert_jax.corpora.bad_text import BadTextError
from bert_jax.corpora.unpacking import Unpacked

BLOCK_BYTES = 1 << 18
JSON = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{},"]', re.DOTALL)  # a string, or what stands between values

EXTRACTED = re.compile(rb"(?:\xef\xbb\xbf)?\s*<doc id=[^>\n]*>")  # how a file of WikiExtractor begins
TITLE = re.compile(rb"\s*= [^=\s](?:[^\n]*[^=\s])? =\s*")  # "= Title =" alone; "= = Section = =" is none


def lines(file: Unpacked, start: int = 0, stop: int = -1) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line without its line feed) for each line that begins in [start, stop)."""
    if start:
        file.seek(start - 1)  # if a line ends just before start, an empty line is read first, and dropped
    for offset, line in _lines(file, max(start - 1, 0)):
        if 0 <= stop <= offset:
            return
        if offset >= start:
            yield offset, line


def paragraphs(file: Unpacked, start: int = 0, stop: int = -1) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, text) for each paragraph that begins in [start, stop).

    A paragraph is a run of lines that are not blank; a blank line has only ASCII white space.
    """
    begin = 0
    found: list[bytes] = []  # the lines of the paragraph that begins at ``begin``
    blank = (-1, b"")  # ends the last paragraph of the file
    for offset, line in itertools.chain(_lines(file, _before(file, start)), [blank]):
        if line and not line.isspace():
            begin = begin if found else offset
            found.append(line)
        elif found:
            if 0 <= stop <= begin:
                return
            if begin >= start:
                yield begin, b"\n".join(found)
            found = []


def article_paragraphs(file: Unpacked, start: int = 0, stop: int = -1) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, text) for each paragraph of the articles of WikiText that begin in [start, stop).

    An article begins with a paragraph that is a ``TITLE``. Text before the first title of the file is an article too.
    """
    inside = not start
    for offset, text in paragraphs(file, start):
        begins = TITLE.fullmatch(text) is not None
        if 0 <= stop <= offset and (begins or not inside):
            return
        inside = inside or begins
        if inside:
            yield offset, text


def extracted_articles(file: Unpacked, start: int = 0, stop: int = -1) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, text) for each article of WikiExtractor that begins in [start, stop), without its tags.

    An article stands between a line ``<doc id=...>`` and a line ``</doc>``.
    """
    begin, found = -1, list[bytes]()
    for offset, line in lines(file, start):
        if EXTRACTED.fullmatch(line.rstrip()):
            if 0 <= stop <= offset:
                return
            begin, found = offset, []
        elif line.rstrip() == b"</doc>" and begin >= 0:
            yield begin, b"\n".join(found)
            begin = -1
        elif begin >= 0:
            found.append(line)
        elif 0 <= stop <= offset:
            return
    if begin >= 0:
        yield begin, b"\n".join(found)


def elements(file: Unpacked) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) for each element of the JSON array that ``file`` is, without holding the whole array.

    Raises:
      BadTextError: the array does not end, or something follows it.
    """
    text, base, place, begin, depth = b"", 0, 0, 0, 0  # ``text`` begins at ``base`` and is searched from ``place`` on
    while block := file.read(BLOCK_BYTES):
        text += block
        for token in JSON.finditer(text, place):
            sign = token[0]
            if sign == b'"':  # a string whose end is not read yet
                break
            place = token.end()
            depth += (sign in b"[{") - (sign in b"]}")
            if depth == 0 or (depth == 1 and sign == b","):
                element = text[begin : place - 1].lstrip()
                if element:
                    yield base + place - 1 - len(element), element.rstrip()
            if depth == 0:
                if text[place:].strip() or file.read(BLOCK_BYTES).strip():
                    raise BadTextError(file.path, "not JSON", f"{file.path} goes on after its JSON array; mend it")
                return
            if depth == 1 and sign in b"[,":
                begin = place
        text, base, place, begin = text[begin:], base + begin, place - begin, 0
    raise BadTextError(file.path, "not JSON", f"{file.path} ends in the middle of its JSON array; copy it again")


def _before(file: Unpacked, start: int) -> int:
    """Seek to the last byte before ``start`` that is not white space, or to 0, and return that position.

    A caller that reads on from there first gets the end of an earlier paragraph, which it must drop.
    """
    end = start
    while end:
        begin = max(0, end - BLOCK_BYTES)
        file.seek(begin)
        text = file.read(end - begin).rstrip()
        if text:
            file.seek(begin + len(text) - 1)
            return begin + len(text) - 1
        end = begin
    if start:
        file.seek(0)
    return 0


def _lines(file: Unpacked, position: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line without its line feed) up to the end of ``file``, which is read on from ``position``."""
    chunks: list[bytes] = []  # of a line whose end is not read yet
    while block := file.read(BLOCK_BYTES):
        first, *others = block.split(b"\n")
        chunks.append(first)
        for other in others:
            line = b"".join(chunks)
            yield position, line
            position += len(line) + 1
            chunks = [other]
    if last := b"".join(chunks):
        yield position, last
