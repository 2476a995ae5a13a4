"""Prints how large the code is: ``python -m tests.benchmarks.house`` counts the files of ``bert_jax`` as they stand."""

from __future__ import annotations

import ast
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.test_imports import RANK

PACKAGE = Path(__file__).resolve().parents[2] / "bert_jax"
TESTS = Path(__file__).resolve().parents[1]
LONG_FILE, LONG_FUNCTION, MANY_PARAMETERS = 400, 80, 6
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield all functions of a file, methods and inner functions too."""
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def parameters(function: Function) -> int:
    """Return the number of parameters, without ``self`` and ``cls``."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def module(file: Path) -> str:
    return ".".join(["bert_jax", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def imports(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, in functions and for types too."""
    found, known = dict[str, set[str]](), {module(file) for file in trees}
    for file, tree in trees.items():
        names = set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[module(file)] = (names & known) - {module(file)}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that reach each other, but for the package itself."""
    reach = {name: set(to) for name, to in graph.items() if "." in name}
    while grown := [(name, more) for name, to in reach.items() if (more := _further(to, reach) - to)]:
        for name, more in grown:
            reach[name] |= more
    found = {frozenset(other for other in to if name in reach.get(other, ())) for name, to in reach.items()}
    return [set(one) for one in found if one]


def _further(to: set[str], reach: dict[str, set[str]]) -> set[str]:
    return set[str]().union(*(reach.get(name, set()) for name in to))


def upward(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the pairs of modules of which the first imports the second from a layer above (``tests.test_imports``)."""
    pairs = [(name, to) for name, every in graph.items() for to in every if "." in name and "." in to]
    return [(one, to) for one, to in pairs if RANK[to.split(".")[1]] > RANK[one.split(".")[1]]]


def house() -> dict[str, float]:
    """Return each measure of the code, by its name."""
    texts = {file: file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    sizes = [len(text.splitlines()) for text in texts.values()]
    top = [
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_")
    ]
    classes = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    found = [function for tree in trees.values() for function in functions(tree)]
    graph = imports(trees)
    imported = Counter(to for every in graph.values() for to in every)
    constants = [
        target.id
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    ]
    tests = [len(file.read_text().splitlines()) for file in sorted(TESTS.rglob("*.py"))]
    # Files of these packages are found by their names, so nothing imports them.
    by_name = ("cli", "strategies", "arrangements", "encoders", "families", "objectives", "tasks", "loggers")
    alone = [file for file in trees if imported[module(file)] == 1 and file.parent.name not in by_name]
    return {
        "lines": sum(sizes),
        "files": len(sizes),
        "median lines of a file": statistics.median(sizes),
        "classes and functions at top level without an underscore": len(top),
        "constants at top level without an underscore": len(constants),
        "class names that several files have": len(
            [name for name, count in classes.items() if count > 1 and name not in ("Config", "Task", "Objective")]
        ),
        f"functions of more than {MANY_PARAMETERS} parameters": len(
            [function for function in found if parameters(function) > MANY_PARAMETERS]
        ),
        f"functions of more than {LONG_FUNCTION} lines": len([f for f in found if lines(f) > LONG_FUNCTION]),
        f"files of more than {LONG_FILE} lines": len([size for size in sizes if size > LONG_FILE]),
        "files with one importer": len(alone),
        "circles of files that import each other": len(circles(graph)),
        "imports from a higher layer": len(upward(graph)),
        "lines of tests": sum(tests),
        f"files of tests of more than {LONG_FILE} lines": len([size for size in tests if size > LONG_FILE]),
        "raise per 1,000 lines": round(
            1000 * sum(isinstance(n, ast.Raise) for tree in trees.values() for n in ast.walk(tree)) / sum(sizes), 1
        ),
    }


if __name__ == "__main__":
    for name, value in house().items():
        print(f"{value:>10,}  {name}")
