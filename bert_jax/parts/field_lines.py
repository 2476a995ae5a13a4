"""Reads the line about each field of a dataclass: the comment beside it, or its entry in the docstring of the class."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator


def lines(cls: type) -> dict[str, str]:
    """Return a dict, field -> line, of the fields that ``cls`` and the dataclasses below it define."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        found |= own_lines(one) if dataclasses.is_dataclass(one) else {}
    return found


def own_lines(cls: type) -> dict[str, str]:
    """Return a dict, field -> line, of the fields that ``cls`` itself defines. A comment goes before the docstring."""
    return dict(_docstring(cls)) | dict(_comments(cls))


def _comments(cls: type) -> Iterator[tuple[str, str]]:
    """Yield (field, comment) for each field with a comment at the end of its lines, or on the lines above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments: dict[int, tuple[str, bool]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = (token.string.lstrip("# "), not token.line[: token.start[1]].strip())
    [tree] = ast.parse(source).body
    for node in getattr(tree, "body", []):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        found = [comments[n][0] for n in range(node.lineno, (node.end_lineno or node.lineno) + 1) if n in comments]
        above: list[str] = []
        n = node.lineno - 1
        while not found and n in comments and comments[n][1]:
            above, n = [comments[n][0], *above], n - 1
        if found or above:
            yield node.target.id, " ".join(found or above)


def _docstring(cls: type) -> Iterator[tuple[str, str]]:
    """Yield (field, first sentence) for each entry ``name: text`` or ``name, name: text`` of the class's docstring."""
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    entries: list[tuple[list[str], int, str]] = []
    for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
        indent, found = len(line) - len(line.lstrip()), re.match(r"\s*([a-z_0-9]+(?:, [a-z_0-9]+)*): (.+)", line)
        if found and set(found[1].split(", ")) <= fields:
            entries.append((found[1].split(", "), indent, found[2]))
        elif entries and line.strip() and indent > entries[-1][1]:
            entries[-1] = (*entries[-1][:2], f"{entries[-1][2]} {line.strip()}")
    for names, _, text in entries:
        first = re.split(r"\. (?=[A-Z\"])", text)[0]
        yield from ((name, first) for name in names)
