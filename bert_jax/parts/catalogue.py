"""Finds components, such as tasks or masking strategies, by file name.

To add a component to this package, add one file; there is no list to update. A user's own file takes part in the same
way: it is named by its path, and runs only after ``trust`` was called for it, which only the command line, a Python
recipe and ``--trust_code`` do (``parts.own_code``). From then on it goes by its recorded name, ``toy.py@`` and 16 hex
digits of its sha256, which stands wherever a run names its parts.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from bert_jax.configuration import nearest
from bert_jax.errors import UserError


class Category(NamedTuple):
    """A category of components: its package below ``bert_jax``, and the names that each of its files defines.

    The first of the names makes a file a component of this category.
    """

    package: str
    needs: tuple[str, ...]

    @property
    def having(self) -> str:
        return self.needs[0]


_OBJECTIVE = Category("objectives", ("Objective", "Config"))
_ARRANGEMENT = Category("rows.arrangements", ("Arrangement",))
_STRATEGY = Category("rows.strategies", ("select", "Config"))
_ENCODER = Category("models.encoders", ("Encoder", "Config", "SIZES"))
_KERNEL = Category("models.kernels", ("attend", "obstacle", "WORTHWHILE"))
_SOURCE = Category("corpora", ("Source",))
_ANNOTATOR = Category("corpora.annotators", ("Annotator",))
_TASK = Category("tasks", ("Task", "Config"))
_READER = Category("examples", ("Reader",))
_LOGGER = Category("reporting.loggers", ("Logger",))
_EVALUATOR = Category("runs.evaluations", ("Evaluator", "Config"))
_OPTIMIZER = Category("training.optimizers", ("Optimizer",))
_SCHEDULE = Category("training.schedules", ("Schedule",))

# Their fields are keys of a recipe.
_KEYED = frozenset({"Config", "Arrangement", "Source", "Annotator", "Reader", "Optimizer", "Schedule"})

_OF_OBJECTIVES = {"name": _OBJECTIVE, "arrangement": _ARRANGEMENT, "masking.strategy": _STRATEGY}
OBJECTIVES = (
    "objective",
    "objective.members.*",
    "phases.*.objective",
    "phases.*.objective.members.*",
)  # groups of keys
# Every key of a recipe that names a component (* is any key, or any place of a tuple) -> the component's category.
KEYS = {
    **{f"{group}.{key}": category for group in OBJECTIVES for key, category in _OF_OBJECTIVES.items()},
    "phases.*.masking.strategy": _STRATEGY,
    "model.encoder": _ENCODER,
    "model.attention_kernel": _KERNEL,
    "corpus.source": _SOURCE,
    "corpus.parts.*.source": _SOURCE,
    "corpus.columns.*.annotator": _ANNOTATOR,
    "training.loggers.*": _LOGGER,
    "training.evaluations.*.name": _EVALUATOR,
    "training.evaluations.*.task": _TASK,
    "training.evaluations.*.data.format": _READER,
    "optimizer.name": _OPTIMIZER,
    "schedule.name": _SCHEDULE,
    "phases.*.schedule.name": _SCHEDULE,
    "task.name": _TASK,
    "data.format": _READER,
    "tasks.*.task.name": _TASK,
    "tasks.*.data.format": _READER,
}


def parts(package: str, having: str | None = None) -> dict[str, Path]:
    """Return the name and file of every module of ``bert_jax.<package>``, without importing the modules.

    If ``having`` is given, return only the modules that define a class or function of this name. Components of one
    category all define the same name: ``parts("corpora", having="Source")`` returns the sources of documents.
    """
    folder = Path(__file__).parents[1].joinpath(*package.split("."))
    files = {m.name: folder / f"{m.name}.py" for m in pkgutil.iter_modules([str(folder)]) if not m.ispkg}
    return {name: file for name, file in files.items() if having is None or having in _definitions(file)}


def find(package: str, name: str, having: str | None = None, where: str = "") -> ModuleType:
    """Import and return the module ``bert_jax.<package>.<name>``, or the user's own file with this recorded name.

    ``where`` is the path of the key that names it, if an error is to say so.

    Raises:
      UserError: there is no such component (the message suggests the nearest name and lists all); or ``name`` is code
        of a user that nobody has asked for in this process; or that code fails when it is run.
    """
    if isinstance(name, str) and name in _trusted:
        return _with_dataclasses(_load(_trusted[name]), package)
    known = parts(package, having)
    if not isinstance(name, str) or name not in known:
        what = having.lower() if having and having[0].isupper() else package.rpartition(".")[2].replace("ies", "y")
        if isinstance(name, str) and is_own(name):
            raise UserError(
                f"the {what} is code of a user's own, {name}, which does not run by itself: read its copy, "
                f"{copy_of(name)} in the workdir, then add --trust_code (in Python: trust_code=True); if the copy is "
                "gone or changed, name the file itself on the command line"
            )
        if is_path(name):
            raise UserError(f"the {what} {name!r} is a file; name it in a Python recipe or on the command line")
        hint = "; a file of your own is named by its path, such as ./toy.py" if package in _PACKAGES else ""
        begin = f"{where}: " if where else ""
        raise UserError(f"{begin}there is no {what} {name!r} in bert_jax.{package}; {nearest(str(name), known)}{hint}")
    return importlib.import_module(f"bert_jax.{package}.{name}")


def name_of(module: str) -> str:
    """Return the name by which ``find`` finds the module with this full name again."""
    return _names.get(module) or module.rpartition(".")[2]


@functools.cache
def _definitions(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {
        node.name
        for node in body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not any(ast.unparse(base) == "Protocol" for base in getattr(node, "bases", []))  # interfaces do not count
    }


# ---- A user's own files ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class OwnCode:
    """A user's own file, as it was read once; nothing of it has run yet.

    Attributes:
      path: where it was read; error messages and tracebacks name it.
      module: the full name by which Python imports it, if an installed package has it; else None.
    """

    path: str
    source: bytes
    module: str | None = None

    @property
    def digest(self) -> str:
        """The first 16 of the 64 hex digits of the file's sha256."""
        return hashlib.sha256(self.source).hexdigest()[:16]

    @property
    def file(self) -> str:
        """The file's name without its folder."""
        return re.split(r"[/\\]", self.path)[-1]

    @property
    def name(self) -> str:
        """The recorded name: it does not depend on the folder, and changes with every byte of the file."""
        return f"{self.file}@{self.digest}"

    def check(self, category: Category) -> None:
        """Raise ``UserError`` unless the file can be parsed and defines all names of this category."""
        try:
            body = ast.parse(self.source, self.path).body
        except SyntaxError as error:
            raise UserError(f"{self.path}:{error.lineno}: SyntaxError: {error.msg}") from error
        except ValueError as error:  # NUL bytes, or not UTF-8
            raise UserError(f"{self.path} is no Python file: {error}") from error
        defined = set(_assigned(body))
        if missing := [name for name in category.needs if name not in defined]:
            raise UserError(
                f"{self.path} does not define {' and '.join(missing)}; a file for bert_jax.{category.package} has "
                f"{', '.join(category.needs)} at its top level"
            )


_PACKAGES = {category.package for category in KEYS.values()}
_RECORDED = re.compile(r"[^/\\]+\.py@[0-9a-f]{16}")
COPIES = "code"  # the folder of a workdir with the copies of users' files
_trusted: dict[str, OwnCode] = {}  # recorded name -> code that may run in this process
_names: dict[str, str] = {}  # full name of a loaded module -> recorded name


def is_path(name: Any) -> bool:
    """Return whether a component is named by a path, such as ``./toy.py``, and not by its name in this package."""
    return isinstance(name, str) and not is_own(name) and (name.endswith(".py") or "/" in name)


def is_own(name: str) -> bool:
    """Return whether ``name`` is the recorded name of a user's own file."""
    return _RECORDED.fullmatch(name) is not None


def copy_of(name: str) -> str:
    """Return the path, below a workdir, of the copy of the file with this recorded name: ``code/<digest>/<file>``."""
    file, _, digest = name.rpartition("@")
    return f"{COPIES}/{digest}/{file}"


def trust(code: OwnCode) -> None:
    """Let ``find`` run ``code`` from now on, in this process. Call this only if the user has asked for the code."""
    _trusted.setdefault(code.name, code)


def find_trusted(name: str) -> OwnCode | None:
    """Return the code with this recorded name if it may run in this process, else None."""
    return _trusted.get(name)


def display_name(name: str) -> str:
    """Return the name of a component in an error message: the path of a user's own file, or ``name``."""
    return _trusted[name].path if name in _trusted else repr(name)


def own_modules() -> list[ModuleType]:
    """Return the loaded modules that another process cannot import: they must be sent along with their objects."""
    return [sys.modules[module] for module in _names if module.startswith(_PREFIX)]


def own_with(*names: str) -> dict[str, ModuleType]:
    """Return a dict: recorded name -> module, of the users' files that are loaded and have all of ``names``."""
    loaded = {own: sys.modules[module] for module, own in _names.items()}
    return {own: module for own, module in loaded.items() if all(hasattr(module, name) for name in names)}


def names_in(tree: Any) -> Iterator[str]:
    """Yield the recorded names of users' files among the values of a tree of plain data."""
    if isinstance(tree, str) and is_own(tree):
        yield tree
    elif isinstance(tree, Mapping | list | tuple):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from names_in(value)


def what_changed(differences: list[str], workdir: str) -> str:
    """Return advice about the first of the ``differences`` that is a changed file of a user; "" if there is none."""
    for difference in differences:
        key, _, values = difference.partition(": ")
        old, _, new = (text.strip("'") for text in values.partition(" -> "))
        if is_own(old) and is_own(new):
            return (
                f"; the code has changed (after @: its sha256): to go on with the old code, add --{key}={workdir}/"
                f"{copy_of(old)}; to start from this run with the new code, give another --workdir and --init={workdir}"
            )
    return ""


_PREFIX = "bert_jax_own_code."


def _load(code: OwnCode) -> ModuleType:
    """Run ``code`` once and return its module. An error in it becomes a ``UserError`` that names the line."""
    full = code.module or f"{_PREFIX}{Path(code.file).stem}_{code.digest}"
    if full in _names:
        return sys.modules[full]
    module = ModuleType(full)
    module.__file__ = code.path
    try:
        if code.module:
            module = importlib.import_module(code.module)
        else:
            sys.modules[full] = module  # dataclasses look it up there
            exec(compile(code.source, code.path, "exec"), module.__dict__)
    except UserError:
        sys.modules.pop(full, None)
        raise
    except Exception as error:
        sys.modules.pop(full, None)
        if os.environ.get("BERT_JAX_TRACEBACK") == "1":
            traceback.print_exception(error)
        raise UserError(f"{place_in_own(error) or code.path}: {type(error).__name__}: {error}") from error
    _names[full] = code.name
    return module


def _with_dataclasses(module: ModuleType, package: str) -> ModuleType:
    """Return ``module``; raise ``UserError`` if a class of it whose fields are keys of a recipe is no dataclass."""
    for category in KEYS.values():
        for name in _KEYED.intersection(category.needs if category.package == package else ()):
            if not dataclasses.is_dataclass(getattr(module, name)):
                raise UserError(
                    f"{module.__file__}: {name} is no dataclass; write @dataclasses.dataclass(frozen=True) above it: "
                    "its fields are keys of the recipe"
                )
    return module


def place_in_own(error: BaseException) -> str | None:
    """Return the last line of a user's own file that ``error`` came through, as ``path:line``; None if through none."""
    own = {code.path for code in _trusted.values()}
    places = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__) if f.filename in own]
    return places[-1] if places else None


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that the statements define: classes, functions, imports and assignments."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
