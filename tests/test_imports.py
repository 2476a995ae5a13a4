"""Imports point one way, and the light packages stay light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bert_jax

PACKAGE = Path(bert_jax.__file__).resolve().parent
# From the bottom up: a file imports its own layer and those below. At the bottom is task too, a contract that imports
# the nouns alone.
LAYERS = [
    {"__init__", "records", "errors", "configuration", "program", "metric_names", "task"},
    {"parts", "storage"},
    {"cluster", "workdir", "text", "models"},
    {"corpora", "losses", "generation"},
    {"examples"},
    {"rows"},
    {"objectives", "tasks"},
    {"checkpoints", "reporting"},
    {"training"},
    {"planning", "features", "inspection"},
    {"interchange"},
    {"recipes"},
    {"runs"},
    {"machine", "resizing", "experiments"},
    {"cli", "__main__"},
]
RANK = {package: rank for rank, packages in enumerate(LAYERS) for package in packages}
FILES = sorted(PACKAGE.rglob("*.py"))


def package(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(file: Path) -> Iterator[str]:
    """Full names of what a file imports at run time; ``if TYPE_CHECKING`` does not count."""
    todo: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            todo += ast.iter_child_nodes(node)


def importers(library: str, *, within: Path = PACKAGE) -> set[str]:
    return {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        if file.is_relative_to(within) and any(name.split(".")[0] == library for name in imports(file))
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_imports_point_down(file):
    ours = [name.split(".")[1] for name in imports(file) if name.startswith("bert_jax.")]
    upward = {r for r in ours if r in RANK and RANK[r] > RANK[package(file)]}
    sideways = {r for r in ours if r in RANK and RANK[r] == RANK[package(file)] and r != package(file)}
    assert not upward
    assert not (sideways & {"text", "models"}), "models know no data, data knows no model"


def test_models_know_no_data_and_no_loss():
    others = (["text"], ["corpora"], ["rows"], ["losses"])
    for file in (PACKAGE / "models").rglob("*.py"):
        assert not {name for name in imports(file) if name.split(".")[1:2] in others}


def test_training_names_no_objective_task_or_encoder():
    for file in (PACKAGE / "training").rglob("*.py"):
        named = ("bert_jax.objectives", "bert_jax.tasks", "bert_jax.models.encoders")
        assert not {name for name in imports(file) if name.startswith(named)}


def test_numpy_left_of_the_mesh():
    for name in ("text", "corpora", "examples", "rows"):
        assert not importers("jax", within=PACKAGE / name)
    assert "task.py" not in importers("jax")


def test_one_door_to_each_framework():
    assert importers("grain") <= {"rows/loader.py"}
    adapters = {file for file in importers("flax") if not file.startswith("models/")}
    assert adapters <= {"training/mesh.py"}


@pytest.mark.parametrize("library", ["torch", "transformers", "tensorflow", "pickle"])
def test_never_imported(library):
    assert importers(library) == set()


def test_light_packages_leave_jax_alone():
    """``import bert_jax`` alone loads nothing heavy at all. Then every module of the light packages is imported."""
    modules = [
        ".".join(["bert_jax", *file.relative_to(PACKAGE).with_suffix("").parts])
        for file in FILES
        if package(file) in ("text", "corpora", "examples", "rows") and file.stem not in ("__init__", "loader")
    ]
    heavy = ["jax", "flax", "torch", "tensorflow"]
    script = f"""
import importlib, sys
import bert_jax
alone = [m for m in {[*heavy, "numpy", "etils", "tensorflow_datasets"]} if m in sys.modules]
for name in {modules}:
    importlib.import_module(name)
    if found := [m for m in {heavy} if m in sys.modules]:
        sys.exit(f"{{name}} loads {{found}}")
sys.exit(str(alone) if alone else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
