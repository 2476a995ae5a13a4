"""Prints how large the code is: ``python -m tests.benchmarks.house`` counts the files of ``bert_jax`` as they stand."""

from __future__ import annotations

import ast
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "bert_jax"
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


def importers(trees: dict[Path, ast.Module]) -> Counter[str]:
    """Return how many other files of the package import each module by name."""
    count: Counter[str] = Counter()
    known = {module(file) for file in trees}
    for file, tree in trees.items():
        names = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        count.update((names & known) - {module(file)})
    return count


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
    imported = importers(trees)
    # Files of these packages are found by their names, so nothing imports them.
    by_name = ("cli", "strategies", "arrangements", "encoders", "families", "objectives", "tasks", "loggers")
    alone = [file for file in trees if imported[module(file)] == 1 and file.parent.name not in by_name]
    return {
        "lines": sum(sizes),
        "files": len(sizes),
        "median lines of a file": statistics.median(sizes),
        "classes and functions at top level without an underscore": len(top),
        "class names that several files have": len(
            [name for name, count in classes.items() if count > 1 and name not in ("Config", "Task", "Objective")]
        ),
        f"functions of more than {MANY_PARAMETERS} parameters": len(
            [function for function in found if parameters(function) > MANY_PARAMETERS]
        ),
        f"functions of more than {LONG_FUNCTION} lines": len([f for f in found if lines(f) > LONG_FUNCTION]),
        f"files of more than {LONG_FILE} lines": len([size for size in sizes if size > LONG_FILE]),
        "files with one importer": len(alone),
        "raise per 1,000 lines": round(
            1000 * sum(isinstance(n, ast.Raise) for tree in trees.values() for n in ast.walk(tree)) / sum(sizes), 1
        ),
    }


if __name__ == "__main__":
    for name, value in house().items():
        print(f"{value:>10,}  {name}")
