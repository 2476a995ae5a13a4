"""Turns MediaWiki markup into plain text, with ``mwparserfromhell`` (extra ``wikipedia``)."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal, TypeAlias

from bert_jax.errors import UserError

Part: TypeAlias = Literal["drop", "keep"]
# Tags whose content is not running text.
DROPPED = (
    *("ref", "references", "table", "tr", "td", "th", "gallery", "imagemap", "math", "chem", "score", "timeline"),
    *("source", "syntaxhighlight", "pre", "graph", "mapframe", "maplink", "templatedata", "hiero", "inputbox"),
    *("categorytree", "section", "noinclude", "style"),
)
NAMESPACES = ("file", "image", "media", "category")  # links to these show no text; English names work in any wiki
INTERLANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*:")
MAGIC = re.compile(r"__[A-Z]+__")
EMPTY = re.compile(r"(?:(?<![ \xa0])[ \xa0]++)?\([\s,;:]*+\)")  # left by a template that was alone in brackets
OPENED = re.compile(r"\([\s,;:]+")
BEFORE_MARK = re.compile(r"(?<![ \xa0])[ \xa0]++(?=[,.;:)](?:\s|$))")
LIST, HEADING = "\x01", "\x02"  # mark the start of a line that is a list item or heading; they cannot occur in XML


@functools.cache
def library() -> Any:
    """Return the module ``mwparserfromhell``. Raises ``UserError`` if it is not installed."""
    try:
        import mwparserfromhell
    except ImportError as error:
        raise UserError(
            "the source mediawiki needs mwparserfromhell; install it with: pip install mwparserfromhell"
        ) from error
    return mwparserfromhell


def version() -> str:
    library()
    return importlib.metadata.version("mwparserfromhell")


def plain(text: str, namespaces: Collection[str] = (), *, headings: Part = "drop", lists: Part = "drop") -> str:
    """Return the running text of a page, one paragraph per line, without templates, tables, references and files.

    Args:
      namespaces: the names that this wiki gives to its namespaces of files and categories.
    """
    hidden = {*NAMESPACES, *(name.lower() for name in namespaces)}
    joined = MAGIC.sub("", "".join(_shown(library().parse(text).nodes, hidden)))
    kept = []
    for line in joined.split("\n"):
        mark = line[:1]
        if (mark == HEADING and headings == "drop") or (mark == LIST and lists == "drop"):
            continue
        line = OPENED.sub("(", EMPTY.sub("", line.replace(LIST, "").replace(HEADING, "")))
        kept.append(" ".join(BEFORE_MARK.sub("", line).split()))
    return "\n".join(line for line in kept if line)


def _shown(nodes: list[Any], hidden: set[str]) -> Iterator[str]:
    """Yield the parts of the running text that a reader sees."""
    kinds = library().nodes
    for node in nodes:
        if isinstance(node, kinds.Text):
            yield str(node)
        elif isinstance(node, kinds.Wikilink):
            yield from _link(node, hidden)
        elif isinstance(node, kinds.Tag):
            yield from _tag(node, hidden)
        elif isinstance(node, kinds.Heading):
            yield f"\n{HEADING}"
            yield from _shown(node.title.nodes, hidden)
            yield "\n"
        elif isinstance(node, kinds.HTMLEntity):
            yield node.normalize()
        elif isinstance(node, kinds.ExternalLink) and node.title is not None:
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
        yield LIST
    elif name in ("br", "hr", "p", "div", "blockquote", "li", "dt", "dd"):
        yield "\n" + (LIST if name in ("li", "dt", "dd") else "")
    if name not in DROPPED and node.contents is not None:
        yield from _shown(node.contents.nodes, hidden)
    if name in ("p", "div", "blockquote"):
        yield "\n"
