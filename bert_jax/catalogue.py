"""Finds components, such as tasks or masking strategies, by file name.

To add a component, add one file; there is no list to update.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from bert_jax.configuration import nearest
from bert_jax.errors import UserError


def parts(package: str, having: str | None = None) -> dict[str, Path]:
    """Return the name and file of every module of ``bert_jax.<package>``, without importing the modules.

    If ``having`` is given, return only the modules that define a class or function of this name. Components of one kind
    all define the same name: ``parts("corpora", having="Source")`` returns the sources of documents.
    """
    folder = Path(__file__).parent.joinpath(*package.split("."))
    files = {m.name: folder / f"{m.name}.py" for m in pkgutil.iter_modules([str(folder)]) if not m.ispkg}
    return {name: file for name, file in files.items() if having is None or having in _definitions(file)}


def find(package: str, name: str, having: str | None = None) -> ModuleType:
    """Import and return the module ``bert_jax.<package>.<name>``.

    Raises:
      UserError: there is no such component; the message suggests the nearest name and lists all.
    """
    known = parts(package, having)
    if not isinstance(name, str) or name not in known:
        kind = having.lower() if having and having[0].isupper() else package.rpartition(".")[2].replace("ies", "y")
        raise UserError(f"there is no {kind} {name!r} in bert_jax.{package}; {nearest(str(name), known)}")
    return importlib.import_module(f"bert_jax.{package}.{name}")


@functools.cache
def _definitions(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {
        node.name
        for node in body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not any(ast.unparse(base) == "Protocol" for base in getattr(node, "bases", []))  # interfaces do not count
    }
