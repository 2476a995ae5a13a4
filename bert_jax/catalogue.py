"""A part is found by its file name: adding one means adding one file, and no list has to be kept."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from bert_jax.configuration import nearest
from bert_jax.errors import UserError


def parts(room: str, having: str | None = None) -> dict[str, Path]:
    """Name and file of every module of ``bert_jax.<room>``, none of which is imported.

    ``having`` keeps the modules that define this class or function, which is what makes a file a part of a kind:
    ``parts("corpora", having="Source")`` are the sources of documents.
    """
    folder = Path(__file__).parent.joinpath(*room.split("."))
    files = {m.name: folder / f"{m.name}.py" for m in pkgutil.iter_modules([str(folder)]) if not m.ispkg}
    return {name: file for name, file in files.items() if having is None or having in _definitions(file)}


def find(room: str, name: str, having: str | None = None) -> ModuleType:
    """The module ``bert_jax.<room>.<name>``. Raises ``UserError`` that lists what is there, the nearest name first."""
    known = parts(room, having)
    if not isinstance(name, str) or name not in known:
        kind = f"{having.lower()} in" if having else "part of"
        raise UserError(f"unknown {kind} bert_jax.{room} {name!r}; {nearest(str(name), known)}")
    return importlib.import_module(f"bert_jax.{room}.{name}")


@functools.cache
def _definitions(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {
        node.name
        for node in body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not any(ast.unparse(base) == "Protocol" for base in getattr(node, "bases", []))  # a contract is no part
    }
