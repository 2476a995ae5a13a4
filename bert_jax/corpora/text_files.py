"""The source ``text_files``: plain text, also compressed, local or on an object store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from bert_jax.corpora import globbed
from bert_jax.corpora.bad_text import BadText, BadTextError, decode, foreign
from bert_jax.corpora.byte_ranges import paragraphs
from bert_jax.corpora.names import below
from bert_jax.corpora.source import Piece, Skipped
from bert_jax.corpora.unpacking import unpacked
from bert_jax.records import Document
from bert_jax.text.sentences import one_space, split_sentences, windows

KINDS = "text files, also .gz, .xz, .bz2 or .zst"


@dataclasses.dataclass(frozen=True)
class Source:
    """UTF-8 text files. A line may end in LF or CRLF; a byte order mark is skipped.

    ``free`` text is split into sentences, a blank line always ending one; ``sentences`` has one sentence a line.
    A document is a file, named by its path below the folder that all files share, or with the boundary
    ``blank_line`` a run of lines without a blank one, named ``<path>@<byte offset of its first line>``. With
    ``bad_text="skip"`` lines that are not UTF-8 or have a NUL, files that are binary or all in another encoding, and
    what follows the damage in a compressed file are left out and counted.
    """

    paths: tuple[str, ...]  # globs; ** goes into folders
    format: Literal["free", "sentences"] = "free"
    document_boundary: Literal["file", "blank_line"] = "file"
    language: str = "en"  # of the rules that split free text
    bad_text: BadText = "error"

    def pieces(self) -> list[Piece]:
        """Return the files in the order of their names; a big plain one whose documents end at blank lines is cut."""
        return globbed.pieces(globbed.find(self.paths, KINDS), cut=self.document_boundary == "blank_line")

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of ``piece``, and at its first byte what there is to say of a file without any."""
        name = below(piece.name)
        if not piece.num_bytes:
            yield Skipped(name, "empty file")
            return
        whole = self.document_boundary == "file"
        sentences: list[str] = []
        accounted = False
        for item in self._sentences(piece):
            if isinstance(item, Skipped):
                yield item
            elif whole:
                sentences += item[1]
                continue
            elif item[1]:
                yield Document(f"{name}@{item[0]}", tuple(item[1]))
            else:
                yield Skipped(f"{name}@{item[0]}", "no text")
            accounted = True
        if sentences:
            yield Document(name, tuple(sentences))
        elif piece.start == 0 and not accounted:
            yield Skipped(name, "no text")

    def fingerprint(self) -> str:
        """Return the hash of the settings and of every file's name and content."""
        settings = (self.format, self.document_boundary, self.language, self.bad_text)
        return globbed.fingerprint(globbed.find(self.paths, KINDS), settings)

    def describe(self) -> dict[str, Any]:
        """Return what the manifest says of the source."""
        names = globbed.find(self.paths, KINDS)
        facts = {"files": len(names), "file_bytes": globbed.total_bytes(names)}
        return {"source": "text_files", **dataclasses.asdict(self), **facts}

    def _sentences(self, piece: Piece) -> Iterator[tuple[int, list[str]] | Skipped]:
        """Yield (offset, sentences) of each paragraph of ``piece``, and what is skipped."""
        skip = self.bad_text == "skip"
        name = below(piece.name)
        try:
            with unpacked(piece.name) as file:
                if skip and foreign(file.head):
                    if piece.start == 0:
                        yield Skipped(name, "not a text file")
                    return
                for offset, raw in paragraphs(file, piece.start, piece.stop):
                    try:
                        yield offset, self._split(decode(raw, piece.name, offset))
                    except BadTextError:
                        if not skip:
                            raise
                        good, bad = _good_lines(raw, name, offset)
                        yield from bad
                        if good:
                            yield offset, self._split(good)
        except BadTextError as error:  # a damaged archive
            yield error.counted(self.bad_text)

    def _split(self, paragraph: str) -> list[str]:
        if self.format == "free":
            return split_sentences(paragraph, self.language)
        parts = (window for line in paragraph.split("\n") for window in windows(line))
        return [sentence for sentence in map(one_space, parts) if sentence]


def _good_lines(raw: bytes, name: str, offset: int) -> tuple[str, list[Skipped]]:
    """Return the lines of a paragraph that are text, and what is skipped of the others."""
    good, bad = [], []
    for line in raw.split(b"\n"):
        try:
            good.append(decode(line, name, offset))
        except BadTextError as error:
            bad.append(error.counted("skip"))
        offset += len(line) + 1
    return "\n".join(good), bad
