"""The source ``docstrings``: the documentation in installed Python packages, real English that needs no download.

Files are parsed, never imported; each module is a document.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import gc
import hashlib
import importlib.metadata
import inspect
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.corpora.source import Piece, Skipped
from bert_jax.errors import UserError
from bert_jax.records import Document
from bert_jax.text.sentences import split_sentences

_STANDARD_LIBRARY = "stdlib"
# Distributions that every installation of the base requirements has, so that the corpus does not depend on extras.
PACKAGES = (
    _STANDARD_LIBRARY,
    "absl-py",
    "etils",
    "flax",
    "fsspec",
    "grain",
    "huggingface_hub",
    "jax",
    "ml_collections",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "protobuf",
    "pyarrow",
    "requests",
    "rich",
    "scipy",
    "tensorflow-datasets",
    "treescope",
)
_TEXT_BYTES = 10 << 20  # approximate bytes of text in all these packages
# Tests are not prose; the other folders are generated tables, or exist only in some builds of Python.
_SKIPPED_FOLDERS = {
    *("test", "tests", "idlelib", "turtledemo", "lib2to3", "encodings"),
    *("ensurepip", "site-packages", "dist-packages", "__pycache__"),
}
SKIPPED_FILE = re.compile(r"test_.*|.*_test\.py|conftest\.py")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_COMPOUND = (*_DOCUMENTED, ast.If, ast.Try, ast.TryStar, ast.ExceptHandler, ast.With, ast.For, ast.While)

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
_UNREAD_SECTIONS = ("See Also", "References")  # sections of numpydoc that are lists of names
INLINE_MARKUP = re.compile(r":[\w:.-]{2,99}+(?<=:)(?=`)|`+|\*\*(?=\S)|(?<=\S)\*\*|(?<=[`\w])__?(?=\s|$)")
_MIN_WORDS = 3
_MIN_LETTERS = 0.65  # least share of letters among characters other than spaces; code, formulas and tables have less


@dataclasses.dataclass(frozen=True)
class Source:
    """Reads the docstrings of modules, classes and functions, in file order. The same versions give the same corpus.

    Only prose is kept (``paragraphs``). A docstring that occurs several times, as in packages that mirror numpy, is
    kept only at its first place, so that held-out documents hold no copies of training text.
    """

    packages: tuple[str, ...] = PACKAGES  # distributions by their pip names; "stdlib" is the standard library

    def pieces(self) -> list[Piece]:
        """Return a single piece, because a repeated docstring is recognised only by reading all earlier docstrings.

        Raises:
          UserError: a package is not installed.
        """
        self._versions()
        return [Piece("docstrings", num_bytes=_TEXT_BYTES)]

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        """Yield a document for each module that has prose, sorted by package and then by path."""
        yield from _read(tuple(sorted(set(self.packages))))

    def fingerprint(self) -> str:
        """Return the hash of the packages' versions, which decide the text."""
        return hashlib.sha256(repr(sorted(self._versions().items())).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {"source": "docstrings", "packages": self._versions()}

    def _versions(self) -> dict[str, str]:
        """Return the version of each package. Raises ``UserError`` for packages that are not installed."""
        versions, missing = {}, []
        for package in sorted(set(self.packages)):
            try:
                versions[package] = (
                    platform.python_version() if package == _STANDARD_LIBRARY else importlib.metadata.version(package)
                )
            except importlib.metadata.PackageNotFoundError:
                missing.append(package)
        if missing:
            raise UserError(
                f"config.corpus.options.packages names {', '.join(missing)}, not installed here; install or leave out"
                f" (pip names, or {_STANDARD_LIBRARY!r} for the standard library)"
            )
        return versions


@functools.lru_cache(maxsize=1)  # about 10 MB; needed twice: for the vocabulary and for the store
def _read(packages: tuple[str, ...]) -> tuple[Document, ...]:
    seen: set[bytes] = set()
    documents = []
    for package in packages:
        for name, path in _modules(package):
            sentences: list[str] = []
            for docstring in _docstrings(path):
                key = hashlib.blake2b(" ".join(docstring.split()).encode("utf-8", "replace"), digest_size=12).digest()
                if key not in seen:
                    seen.add(key)
                    sentences += [s for p in paragraphs(docstring) for s in split_sentences(p)]
            if sentences:
                documents.append(Document(f"{package}:{name}", tuple(sentences)))
    return tuple(documents)


def _modules(package: str) -> Iterator[tuple[str, Path]]:
    """Yield (path inside the package, file) for each Python file to read, sorted."""
    if package == _STANDARD_LIBRARY:
        root = Path(sysconfig.get_path("stdlib"))
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    else:
        entries = importlib.metadata.distribution(package).files or []
        files = {file.as_posix(): Path(str(file.locate())) for file in entries if file.suffix == ".py"}
    for name in sorted(files):
        *folders, file = name.split("/")
        if not _SKIPPED_FOLDERS.intersection(folders) and ".." not in folders and not SKIPPED_FILE.match(file):
            yield name, files[name]


def _docstrings(path: Path) -> list[str]:
    """Return the docstrings of one file, top to bottom; [] if the file is not valid in this version of Python."""
    with contextlib.suppress(SyntaxError, ValueError, OSError), warnings.catch_warnings(), _no_garbage_collection():
        warnings.simplefilter("ignore")  # invalid escapes in other people's files
        docstrings: list[str] = []
        _collect(ast.parse(path.read_bytes()), docstrings)
        return docstrings
    return []


def _collect(node: ast.AST, docstrings: list[str]) -> None:
    if isinstance(node, _DOCUMENTED):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            docstrings.append(docstring)
    for block in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(node, block, ()):
            if isinstance(child, _COMPOUND):
                _collect(child, docstrings)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Context manager that switches garbage collection off inside the block.

    A syntax tree has very many live objects. Beside the objects of jax, garbage collection would take more time than
    parsing (7 of 12 s for all packages), and would free nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# ---- Prose, without examples, tables, headings and the boilerplate of parameter lists ------------------------------


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
            in_list_of_names = line.strip() in _UNREAD_SECTIONS
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
    if len(text.split()) >= _MIN_WORDS and letters >= _MIN_LETTERS * (len(text) - text.count(" ")):
        yield text
