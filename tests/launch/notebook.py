"""Runs the code of a notebook in this process, as Jupyter does: one namespace, a running event loop, a bar.

python -m tests.launch.notebook launch/quickstart.ipynb    # writes its outputs anew
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    return json.loads(path.read_text(encoding="utf-8"))


def code(cell: dict[str, Any]) -> str:
    return "".join(cell["source"]) if cell["cell_type"] == "code" else ""


def execute(notebook: Notebook, **given: Any) -> dict[str, Any]:
    """Run all cells in the current folder, put their outputs into ``notebook``, and return the names that they made.

    ``given``: names that the cells find.
    """
    names: dict[str, Any] = {"__name__": "__main__", **given}

    async def run_all() -> None:  # a kernel runs cells inside its loop, where asyncio.run fails
        number = 0
        for cell in notebook["cells"]:
            if source := code(cell):
                number += 1
                cell["execution_count"], cell["outputs"] = number, _outputs(source, number, names)

    asyncio.run(run_all())
    return names


class Screen(io.StringIO):
    """Passes for the output of a kernel, where a carriage return goes to the start of the line."""

    __module__ = "ipykernel.iostream"

    def lines(self) -> list[str]:
        """Return what a person sees in the end."""
        return [f"{_overwritten(line)}\n" for line in self.getvalue().removesuffix("\n").split("\n")]


def _overwritten(line: str) -> str:
    seen = ""
    for text in line.split("\r"):
        seen = text + seen[len(text) :]
    return seen.rstrip()


def _outputs(source: str, number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = Screen()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names) if last else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.lines()})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_svg_"):
            data["image/svg+xml"] = value._repr_svg_().splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def main(path: Path) -> None:
    notebook = read(path)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # bert-jax is named as such
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        execute(notebook)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
