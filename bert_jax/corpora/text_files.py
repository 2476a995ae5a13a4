"""The source ``text_files``: plain text, also compressed, local or on an object store."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterator
from typing import Literal

from bert_jax.corpora.bad_text import BadText, BadTextError, decode
from bert_jax.corpora.byte_ranges import EXTRACTED, TITLE, article_paragraphs, extracted_articles, lines, paragraphs
from bert_jax.corpora.file_source import FileSource
from bert_jax.corpora.other_formats import other_format
from bert_jax.corpora.source import Piece, Skipped, below
from bert_jax.corpora.unpacking import Unpacked, open_unpacked
from bert_jax.corpora.values import runs
from bert_jax.errors import UserError
from bert_jax.records import Document
from bert_jax.text.sentences import one_space, split_sentences, windows

_FIRST_FILES = 100  # so many are looked at before a build begins
_PAGES = 10_000  # characters, some 2,000 words: more than a row, and little beside a book


@dataclasses.dataclass(frozen=True)
class Source(FileSource):
    """Reads UTF-8 text files. A line may end in LF or CRLF; a byte order mark is skipped.

    Text of the format ``free`` is split into sentences, and a blank line always ends a sentence. The format
    ``sentences`` has one sentence per line. ``document_boundary`` says what a document is:

    - ``file``: a file. Its name is its path below the folder that all files share.
    - ``pages``: paragraphs of a file, as many as have ``_PAGES`` characters: a book becomes many documents.
    - ``blank_line``: a run of lines that are not blank.
    - ``line``: a line.
    - ``title``: an article of WikiText. It begins with a line ``= Title =`` between blank lines.

    In a file that begins with a line ``<doc id=...>``, as WikiExtractor writes them, each article is a document,
    without its tags, and ``&lt;`` is ``<``. A file that is HTML, XML, JSON or a table is refused.

    Documents within a file have the name ``<path>@<byte offset of the first line>``. ``bad_text="skip"`` leaves out and
    counts lines that are not UTF-8 or have a NUL, and files that are binary or in another encoding. Of a damaged
    compressed file it leaves out everything after the damage.
    """

    FILES = "text files, also .gz, .xz, .bz2 or .zst"

    paths: tuple[str, ...]  # globs; ** matches folders
    format: Literal["free", "sentences"] = "free"  # free: split into sentences; sentences: one a line
    document_boundary: Literal["file", "pages", "blank_line", "line", "title"] = "file"  # what ends a document
    language: str = "en"  # the language whose rules split free text
    bad_text: BadText = "error"  # skip: leave out and count what cannot be read

    def can_cut(self, name: str) -> bool:
        """Return whether ``name`` is uncompressed and may have more than one document."""
        return self.document_boundary not in ("file", "pages") and super().can_cut(name)

    def is_document_a_file(self) -> bool:
        """Return whether each file is a document, by the options and the first file."""
        if self.document_boundary != "file":
            return False
        with open_unpacked(self.names()[0]) as file:
            return EXTRACTED.match(file.head) is None

    def items(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the documents of ``piece``, and a ``Skipped`` for each item that is left out."""
        name = below(piece.name)
        joined, titled = self.document_boundary in ("file", "pages", "title"), self.document_boundary == "title"
        most = _PAGES if self.document_boundary == "pages" else math.inf
        sentences: list[str] = []
        begin = 0
        for item in self.unpacked(piece, self._sentences):
            if isinstance(item, Skipped):
                yield item
            elif joined and not item[2]:
                ends = titled and TITLE.fullmatch(" ".join(item[1]).encode()) or sum(map(len, sentences)) >= most
                if sentences and ends:
                    yield Document(f"{name}@{begin}", tuple(sentences))
                    sentences = []
                begin = begin if sentences else item[0]
                sentences += item[1]
            elif item[1]:
                yield Document(f"{name}@{item[0]}", tuple(item[1]))
            else:
                yield Skipped(f"{name}@{item[0]}", "no text")
        if sentences:
            yield Document(name if self.document_boundary == "file" else f"{name}@{begin}", tuple(sentences))

    def pieces(self) -> list[Piece]:
        """Return the pieces of the files. Raises ``UserError`` if one of the first files is no plain text."""
        pieces = super().pieces()
        if self.bad_text == "error":
            names = [piece.name for piece in pieces if piece.num_bytes and piece.start == 0]
            for name in names[:_FIRST_FILES]:
                with open_unpacked(name) as file:
                    if error := other_format(file.head, name):
                        raise UserError(str(error))
        return pieces

    def names(self) -> list[str]:
        """Return the paths of the files. Raises ``UserError`` if a file is JSON Lines, or a glob matches nothing."""
        names = super().names()
        if records := [below(name) for name in names if ".jsonl" in name.rpartition("/")[2]]:
            raise UserError(f"{records[0]} is JSON Lines, not plain text; take --config.corpus.source=jsonl")
        return names

    def _sentences(self, file: Unpacked, piece: Piece) -> Iterator[tuple[int, list[str], bool] | Skipped]:
        """Yield (offset, sentences, whether it is an article) for each text of ``piece``; a ``Skipped`` for a bad line.

        A text is a paragraph, a line or an article.
        """
        if error := other_format(file.head, piece.name):
            if piece.start == 0:
                yield error.skip_or_raise(self.bad_text)
            return
        article = EXTRACTED.match(file.head) is not None

        def split(text: str) -> list[str]:
            return self._split(html.unescape(text) if article else text)

        for offset, raw in extracted_articles(file, piece.start, piece.stop) if article else self._texts(file, piece):
            try:
                yield offset, split(decode(raw, piece.name, offset)), article
            except BadTextError:
                if self.bad_text == "error":
                    raise
                good, bad = _good_lines(raw, below(piece.name), offset)
                yield from bad
                if good:
                    yield offset, split(good), article

    def _texts(self, file: Unpacked, piece: Piece) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of each paragraph of ``piece``, or of each line that is not blank."""
        if self.document_boundary != "line":
            read = article_paragraphs if self.document_boundary == "title" else paragraphs
            yield from read(file, piece.start, piece.stop)
            return
        for offset, line in lines(file, piece.start, piece.stop):
            if line.strip():
                yield offset, line

    def _split(self, paragraph: str) -> list[str]:
        if self.format == "free":
            return [sentence for run in runs(paragraph) for sentence in split_sentences(run, self.language)]
        texts = (window for line in paragraph.split("\n") for window in windows(line))
        return [sentence for sentence in map(one_space, texts) if sentence]


def _good_lines(raw: bytes, name: str, offset: int) -> tuple[str, list[Skipped]]:
    """Return the lines of a paragraph that are valid text, and a ``Skipped`` for each other line."""
    good, bad = [], []
    for line in raw.split(b"\n"):
        try:
            good.append(decode(line, name, offset))
        except BadTextError as error:
            bad.append(error.skip_or_raise("skip"))
        offset += len(line) + 1
    return "\n".join(good), bad
