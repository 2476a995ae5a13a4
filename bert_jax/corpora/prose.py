"""Finds the prose in docstrings.

Examples, tables, horizontal rules, headings and the boilerplate of parameter lists are left out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

UNDERLINE = re.compile(r"\s*([=\-~^*#+\"])\1{2,}\s*$")  # makes the line above it a heading
RULER = re.compile(r"\s*([=\-~^*#+`_.:'\"<>|]\s*){3,}$")
FENCE = re.compile(r"\s*(```|~~~)")
EXAMPLE_OR_TABLE = re.compile(r"\s*(>>>|=+( +=+)+\s*$)")  # it ends at the next blank line
CODE_DIRECTIVE = re.compile(
    r"\s*\.\. *(code|code-block|sourcecode|math|plot|doctest|testcode|ipython|autosummary|toctree)::"
)
MARKUP = re.compile(r"\s*(\.\. *([\w-]+::|\[|_|\|).*|:(rtype|type|noindex)\b.*)$")  # directives, link targets, types
SECTION = re.compile(
    r"\s*(Args|Arguments|Parameters|Returns?|Raises|Yields|Attributes|Examples?|Notes?|References)\s*:?$"
)
TYPED_NAME = re.compile(r"\s*[*`]*[\w.]+`*( *, *[*`]*[\w.]+`*)* : ")  # numpydoc: "x, y : array_like, optional"
NAMED_ENTRY = re.compile(r"\s*(:\w+( \S+)+:|[*`]*\w+`*( *\([^()]*\))?:)\s+(?=\S)")  # "x (int): text", ":param x: text"
BULLET = re.compile(r"\s*([-*+•]|\(?\d{1,2}[.)])\s+(?=\S)")
UNREAD_SECTIONS = ("See Also", "References")  # sections of numpydoc that are lists of names
INLINE_MARKUP = re.compile(r":[\w:.-]{2,99}+(?<=:)(?=`)|`+|\*\*(?=\S)|(?<=\S)\*\*|(?<=[`\w])__?(?=\s|$)")
MIN_WORDS = 3
MIN_LETTERS = 0.65  # least share of letters among characters other than spaces; code, formulas and tables have less


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield paragraphs of prose, with lines joined; each list item and parameter description is a paragraph."""
    paragraph: list[str] = []
    margin: int | None = None  # the indent of lines that continue the paragraph; if None, any deeper indent
    entry_indent = 0
    for line in _text_lines(inspect.cleandoc(docstring).split("\n")):
        indent = len(line) - len(line.lstrip())
        item = BULLET.match(line) or (NAMED_ENTRY.match(line) if indent or line.startswith(":") else None)
        goes_on = line.strip() and not item and (indent == margin or (margin is None and indent > entry_indent))
        if not goes_on:
            yield from _prose(paragraph)
            paragraph, entry_indent = [], indent
        margin = None if item else indent
        if line.strip():
            paragraph.append(line[item.end() if item else 0 :].strip())
    yield from _prose(paragraph)


def _text_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines, with a blank line in place of code blocks, doctests, tables, headings and directives."""
    skipped_below: int | None = None  # a code block lasts while lines are indented deeper than this
    in_fence = in_example = in_list_of_names = False
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        following = lines[i + 1] if i + 1 < len(lines) else ""
        if FENCE.match(line):
            in_fence = not in_fence
            continue
        if in_fence or (skipped_below is not None and (not line.strip() or indent > skipped_below)):
            continue
        skipped_below = None
        in_example = bool(line.strip()) and (in_example or bool(EXAMPLE_OR_TABLE.match(line)))
        heading = bool(line.strip()) and bool(UNDERLINE.match(following)) and not RULER.match(line)
        if heading:
            in_list_of_names = line.strip() in UNREAD_SECTIONS
        if in_example or in_list_of_names or heading or _is_markup(line):
            if CODE_DIRECTIVE.match(line):
                skipped_below = indent
            yield ""
            continue
        if line.rstrip().endswith("::"):
            skipped_below = indent
        yield line.replace("::", ":") if line.rstrip().endswith("::") else line


def _is_markup(line: str) -> bool:
    return bool(
        RULER.match(line) or MARKUP.match(line) or SECTION.match(line) or TYPED_NAME.match(line) or line.count("|") > 1
    )


def _prose(lines: list[str]) -> Iterator[str]:
    """Yield the joined paragraph if it reads like prose."""
    text = INLINE_MARKUP.sub("", " ".join(lines)).strip()
    letters = sum(map(str.isalpha, text))
    if len(text.split()) >= MIN_WORDS and letters >= MIN_LETTERS * (len(text) - text.count(" ")):
        yield text
