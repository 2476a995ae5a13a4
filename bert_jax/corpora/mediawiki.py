"""The source ``mediawiki``: XML dumps of a wiki, such as ``enwiki-latest-pages-articles-multistream.xml.bz2``."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterator
from typing import Any, Literal, TypeAlias

from bert_jax.corpora.bad_text import BadText, BadTextError
from bert_jax.corpora.file_source import FileSource
from bert_jax.corpora.source import Piece, Skipped, below, display_path
from bert_jax.corpora.unpacking import Unpacked, bz2_streams
from bert_jax.corpora.values import as_document
from bert_jax.errors import optional_library
from bert_jax.records import Document

BLOCK_BYTES = 1 << 18
# Names, in lower case, of the templates that mark disambiguation pages in the large Wikipedias.
_DISAMBIGUATION = (
    *("disambig", "disambiguation", "dab", "hndis", "geodis", "mathdab", "schooldis", "numberdis", "roaddis"),
    *("begriffsklärung", "homonymie", "desambiguación", "desambiguação", "disambigua", "dp", "doorverwijspagina"),
    *("ujednoznacznienie", "неоднозначность", "многозначность", "消歧义", "消歧義", "曖昧さ回避", "aimai", "동음이의"),
)
TEMPLATE = re.compile(r"\{\{([^{}|<>]++)(?:\||\}\})")
NAMESPACE = re.compile(rb'<namespace key="(6|14)"[^>]*>([^<]+)<')  # 6: files, 14: categories


# Tags whose content is not running text.
_DROPPED = (
    *("ref", "references", "table", "tr", "td", "th", "gallery", "imagemap", "math", "chem", "score", "timeline"),
    *("source", "syntaxhighlight", "pre", "graph", "mapframe", "maplink", "templatedata", "hiero", "inputbox"),
    *("categorytree", "section", "noinclude", "style"),
)
_NAMESPACES = ("file", "image", "media", "category")  # links to these show no text; English names work in any wiki
INTERLANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*:")
MAGIC = re.compile(r"__[A-Z]+__")
EMPTY = re.compile(r"(?:(?<![ \xa0])[ \xa0]++)?\([\s,;:]*+\)")  # left by a template that was alone in brackets
OPENED = re.compile(r"\([\s,;:]+")
BEFORE_MARK = re.compile(r"(?<![ \xa0])[ \xa0]++(?=[,.;:)](?:\s|$))")
_LIST, _HEADING = "\x01", "\x02"  # mark the start of a line that is a list item or heading; they cannot occur in XML

_Choice: TypeAlias = Literal["drop", "keep"]


@dataclasses.dataclass(frozen=True)
class Source(FileSource):
    """Reads the pages of dumps as plain text (``plain_text``). Each page is a document named by its title.

    Redirects, disambiguation pages, other namespaces and pages without text are counted and left out. If a dump has the
    history of its pages, the last revision in the dump is used.
    """

    FILES = "MediaWiki XML dumps, also .bz2, .xz, .gz or .zst"

    paths: tuple[str, ...]  # globs
    namespaces: tuple[int, ...] = (0,)  # 0: articles
    headings: _Choice = "drop"  # headings and lists were dropped for BERT too
    lists: _Choice = "drop"  # keep: with the items of lists
    language: str = "en"  # the language whose rules split text into sentences
    bad_text: BadText = "error"  # skip: leave out and count what cannot be read

    def pieces(self) -> list[Piece]:
        """Return the pieces of the files. Raises ``UserError`` if the library that reads the markup is missing too."""
        _library()
        return super().pieces()

    def can_cut(self, name: str) -> bool:
        """Return whether ``name`` is uncompressed or ``.bz2``.

        Cutting makes ``multistream`` dumps faster to read, but not files that are a single bz2 stream.
        """
        return super().can_cut(name) or name.endswith(".bz2")

    def items(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield the pages that begin in ``piece``.

        In a ``.bz2`` file, a page belongs to the piece in which the bz2 stream with the page's first byte begins.
        """
        yield from self.unpacked(piece, self._documents)

    def _documents(self, file: Unpacked, piece: Piece) -> Iterator[Document | Skipped]:
        if b"<mediawiki" not in file.head:
            message = (
                f"{display_path(piece.name)} is not a MediaWiki XML dump: it does not begin with <mediawiki>;"
                " leave it out of config.corpus.options.paths"
            )
            raise BadTextError(piece.name, "not a dump", message)
        local = {key: text.decode("utf-8", "replace") for key, text in NAMESPACE.findall(file.head)}
        for page in _pages(_chunks(piece, file)):
            yield self._page(page, piece, local.values())

    def versions(self) -> dict[str, str]:
        """Return the version of the library that reads the markup."""
        _library()
        return {"mwparserfromhell": importlib.metadata.version("mwparserfromhell")}

    def _page(self, raw: bytes, piece: Piece, local: Collection[str]) -> Document | Skipped:
        where = f"{display_path(piece.name)} after byte {piece.start}"
        try:
            page = ElementTree.fromstring(raw)
        except ElementTree.ParseError as error:
            message = f"{where} has a page that is not XML ({error}); replace the file"
            return BadTextError(where, "not XML", message).skip_or_raise(self.bad_text)
        title = page.findtext("title") or f"{below(piece.name)}#{page.findtext('id')}"
        texts = page.findall("revision/text")
        text = (texts[-1].text or "") if texts else ""
        if (page.findtext("ns") or "0") not in map(str, self.namespaces):
            return Skipped(title, "other namespace")
        if page.find("redirect") is not None or text.lstrip()[:9].upper() == "#REDIRECT":
            return Skipped(title, "redirect")
        if _disambiguates(title, text):
            return Skipped(title, "disambiguation")
        try:
            plain = plain_text(text, local, headings=self.headings, lists=self.lists)
        except (RecursionError, ValueError) as error:
            return Skipped(title, f"markup not readable ({type(error).__name__})")
        return as_document(title, plain, where, "end_sentences", self.language)


def _disambiguates(title: str, text: str) -> bool:
    if "__DISAMBIG__" in text or title.endswith("(disambiguation)"):
        return True
    return any(name.strip().lower() in _DISAMBIGUATION for name in TEMPLATE.findall(text))


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


# ---- Markup as plain text, with ``mwparserfromhell`` (extra ``wikipedia``) ------------------------------------------


@functools.cache
def _library() -> Any:
    return optional_library("mwparserfromhell", "the source mediawiki")


def plain_text(
    markup: str, namespaces: Collection[str] = (), *, headings: _Choice = "drop", lists: _Choice = "drop"
) -> str:
    """Return the running text of a page, one paragraph per line, without templates, tables, references and files.

    Args:
      namespaces: the names that this wiki gives to its namespaces of files and categories.
    """
    hidden = {*_NAMESPACES, *(name.lower() for name in namespaces)}
    joined = MAGIC.sub("", "".join(_shown(_library().parse(markup).nodes, hidden)))
    kept = []
    for line in joined.split("\n"):
        mark = line[:1]
        if (mark == _HEADING and headings == "drop") or (mark == _LIST and lists == "drop"):
            continue
        line = OPENED.sub("(", EMPTY.sub("", line.replace(_LIST, "").replace(_HEADING, "")))
        kept.append(" ".join(BEFORE_MARK.sub("", line).split()))
    return "\n".join(line for line in kept if line)


def _shown(nodes: list[Any], hidden: set[str]) -> Iterator[str]:
    """Yield the parts of the running text that a reader sees."""
    nodes_of = _library().nodes
    for node in nodes:
        if isinstance(node, nodes_of.Text):
            yield str(node)
        elif isinstance(node, nodes_of.Wikilink):
            yield from _link(node, hidden)
        elif isinstance(node, nodes_of.Tag):
            yield from _tag(node, hidden)
        elif isinstance(node, nodes_of.Heading):
            yield f"\n{_HEADING}"
            yield from _shown(node.title.nodes, hidden)
            yield "\n"
        elif isinstance(node, nodes_of.HTMLEntity):
            yield node.normalize()
        elif isinstance(node, nodes_of.ExternalLink) and node.title is not None:
            yield from _shown(node.title.nodes, hidden)


def _link(node: Any, hidden: set[str]) -> Iterator[str]:
    title = str(node.title).strip()
    prefix = title.partition(":")[0].strip().lower() if ":" in title else ""
    if prefix in hidden or (node.text is None and INTERLANGUAGE.match(title)):
        return
    if node.text is None:
        yield title.removeprefix(":")
    else:
        yield from _shown(node.text.nodes, hidden)


def _tag(node: Any, hidden: set[str]) -> Iterator[str]:
    name = str(node.tag).strip().lower()
    if name in ("li", "dt", "dd") and node.wiki_markup:
        yield _LIST
    elif name in ("br", "hr", "p", "div", "blockquote", "li", "dt", "dd"):
        yield "\n" + (_LIST if name in ("li", "dt", "dd") else "")
    if name not in _DROPPED and node.contents is not None:
        yield from _shown(node.contents.nodes, hidden)
    if name in ("p", "div", "blockquote"):
        yield "\n"
