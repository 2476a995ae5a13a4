"""The source ``mediawiki``: XML dumps of a wiki, such as ``enwiki-latest-pages-articles-multistream.xml.bz2``."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from bert_jax.corpora import globbed, wikitext
from bert_jax.corpora.bad_text import BadText, BadTextError
from bert_jax.corpora.source import Piece, Skipped, below, shown
from bert_jax.corpora.unpacking import Unpacked, bz2_streams, unpacked
from bert_jax.corpora.values import as_document
from bert_jax.records import Document

BLOCK_BYTES = 1 << 18
# Names, in lower case, of the templates that mark disambiguation pages in the large Wikipedias.
DISAMBIGUATION = (
    *("disambig", "disambiguation", "dab", "hndis", "geodis", "mathdab", "schooldis", "numberdis", "roaddis"),
    *("begriffsklärung", "homonymie", "desambiguación", "desambiguação", "disambigua", "dp", "doorverwijspagina"),
    *("ujednoznacznienie", "неоднозначность", "многозначность", "消歧义", "消歧義", "曖昧さ回避", "aimai", "동음이의"),
)
TEMPLATE = re.compile(r"\{\{([^{}|<>]++)(?:\||\}\})")
NAMESPACE = re.compile(rb'<namespace key="(6|14)"[^>]*>([^<]+)<')  # 6: files, 14: categories


@dataclasses.dataclass(frozen=True)
class Source(globbed.FileSource):
    """Reads the pages of dumps as plain text (``corpora.wikitext``). Each page is a document named by its title.

    Redirects, disambiguation pages, other namespaces and pages without text are counted and left out. If a dump has the
    history of its pages, the last revision in the dump is used.
    """

    KINDS = "MediaWiki XML dumps, also .bz2, .xz, .gz or .zst"

    paths: tuple[str, ...]  # globs
    namespaces: tuple[int, ...] = (0,)  # 0: articles
    headings: wikitext.Part = "drop"  # headings and lists were dropped for BERT too
    lists: wikitext.Part = "drop"  # keep: with the items of lists
    language: str = "en"  # the language whose rules split text into sentences
    bad_text: BadText = "error"  # skip: leave out and count what cannot be read

    def pieces(self) -> list[Piece]:
        """Return the pieces of the files, in the order of their names.

        Large plain and ``.bz2`` files are cut. Cutting makes ``multistream`` dumps faster to read, but not files that
        are a single bz2 stream.
        """
        wikitext.library()
        names = self.names()
        return globbed.pieces(names, cut=True, cut_packed=(".bz2",))

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the pages that begin in ``piece``.

        In a ``.bz2`` file, a page belongs to the piece in which the bz2 stream with the page's first byte begins.
        """
        if not piece.num_bytes:
            yield Skipped(below(piece.name), "empty file")
            return
        files, categories = b"", b""
        try:
            with unpacked(piece.name) as file:
                if b"<mediawiki" not in file.head:
                    message = f"{shown(piece.name)} is not a MediaWiki XML dump: it does not begin with <mediawiki>"
                    raise BadTextError(
                        piece.name, "not a dump", f"{message}; leave it out of config.corpus.options.paths"
                    )
                for key, text in NAMESPACE.findall(file.head):
                    files, categories = (text, categories) if key == b"6" else (files, text)
                local = tuple(text.decode("utf-8", "replace") for text in (files, categories) if text)
                for page in _pages(_chunks(piece, file)):
                    yield self._page(page, piece, local)
        except BadTextError as error:
            yield error.counted(self.bad_text)

    def versions(self) -> dict[str, str]:
        """Return the version of the library that reads the markup."""
        return {"mwparserfromhell": wikitext.version()}

    def _page(self, raw: bytes, piece: Piece, local: tuple[str, ...]) -> Document | Skipped:
        where = f"{shown(piece.name)} after byte {piece.start}"
        try:
            page = ElementTree.fromstring(raw)
        except ElementTree.ParseError as error:
            message = f"{where} has a page that is not XML ({error}); replace the file"
            return BadTextError(where, "not XML", message).counted(self.bad_text)
        given = page.findtext("ns") or "0"
        try:
            namespace = int(given)
        except ValueError:
            message = f"{where} has a page with the namespace {given[:40]!r}, not a number; replace the file"
            return BadTextError(where, "not a namespace", message).counted(self.bad_text)
        title = page.findtext("title") or f"{below(piece.name)}#{page.findtext('id')}"
        texts = page.findall("revision/text")
        text = (texts[-1].text or "") if texts else ""
        if namespace not in self.namespaces:
            return Skipped(title, "other namespace")
        if page.find("redirect") is not None or text.lstrip()[:9].upper() == "#REDIRECT":
            return Skipped(title, "redirect")
        if _disambiguates(title, text):
            return Skipped(title, "disambiguation")
        try:
            plain = wikitext.plain(text, local, headings=self.headings, lists=self.lists)
        except (RecursionError, ValueError) as error:
            return Skipped(title, f"markup not readable ({type(error).__name__})")
        return as_document(title, plain, where, "end_sentences", self.language)


def _disambiguates(title: str, text: str) -> bool:
    if "__DISAMBIG__" in text or title.endswith("(disambiguation)"):
        return True
    return any(name.strip().lower() in DISAMBIGUATION for name in TEMPLATE.findall(text))


def _chunks(piece: Piece, file: Unpacked) -> Iterator[tuple[bytes, bool]]:
    """Yield (text, whether it is in ``piece``) up to the end of the file, because a page may end after its piece."""
    if piece.name.endswith(".bz2"):
        yield from bz2_streams(piece.name, piece.start, piece.stop)
        return
    if piece.start:
        file.seek(piece.start)
    position = piece.start
    while block := file.read(BLOCK_BYTES):
        inside = len(block) if piece.stop < 0 else max(0, min(len(block), piece.stop - position))
        if inside:
            yield block[:inside], True
        if inside < len(block):
            yield block[inside:], False
        position += len(block)


def _pages(chunks: Iterator[tuple[bytes, bool]]) -> Iterator[bytes]:
    """Yield the XML ``<page>...</page>`` of each page that begins in the piece.

    Searching for the tags is safe, because the text of a page is escaped and cannot contain them.
    """
    begin, end = b"<page>", b"</page>"
    text = b""
    inside = 0  # the number of bytes of ``text`` that are in the piece
    for chunk, is_inside in chunks:
        text += chunk
        inside += len(chunk) if is_inside else 0
        done = 0
        while 0 <= (start := text.find(begin, done)) < inside:
            stop = text.find(end, start)
            if stop < 0:
                done = start
                break
            done = stop + len(end)
            yield text[start:done]
        else:
            if not is_inside:
                return
            done = max(done, len(text) - len(begin) + 1)
        text, inside = text[done:], inside - done
