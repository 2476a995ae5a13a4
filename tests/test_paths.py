"""No page, script, Dockerfile or setting names a path of this repository that is not there."""

import re
import subprocess
from pathlib import Path

import pytest

import bert_jax

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("bert_jax", "configs", "launch", "tests", "requirements", ".github", ".ci")
NAMED = re.compile(rf"(?<![\w./${{-])(?:{'|'.join(map(re.escape, TOPS))})/[\w./*-]*")
MODULE = re.compile(r"(?<![\w./-])bert_jax(?:\.[a-z_]+)+")


def pages() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    files = [ROOT / name for name in tracked] or [p for p in ROOT.rglob("*") if ".venv" not in p.parts]
    kinds = {".md", ".sh", ".cfg", ".toml", ".yaml", ".yml"}
    named = ("Makefile", "Dockerfile", "run", ".dockerignore")
    return [
        p for p in files if p.is_file() and (p.suffix in kinds or p.name.startswith(named)) and p.name != "CHANGELOG.md"
    ]


STAGED = {"requirements/base.txt"}  # what a Dockerfile copies under another name
INSTALLED = ("bert_jax.configs", "bert_jax.__version__")  # names of the wheel, not of the tree


def absent(text: str) -> list[str]:
    """Paths and modules in ``text`` that this repository does not have."""
    found = []
    for name in (match.group().rstrip("./") for match in NAMED.finditer(text)):
        there = any(ROOT.glob(name)) if "*" in name else (ROOT / name).exists()
        if not there and name not in STAGED:
            found.append(name)
    for name in (match.group() for match in MODULE.finditer(text)):
        if name.startswith(INSTALLED) or name.removeprefix("bert_jax.") in bert_jax.__all__:
            continue
        parts = name.split(".")
        tails = ["/".join(parts[:k]) for k in range(len(parts), 1, -1)][:2]  # a module, or a name in one
        if not any((ROOT / tail).exists() or (ROOT / f"{tail}.py").exists() for tail in tails):
            found.append(name)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_paths_are_there(page):
    assert absent(page.read_text(encoding="utf-8")) == []


def test_an_absent_path_is_found():
    assert absent("see bert_jax/files.py and `bert_jax.files.copy`; tests/test_paths.py is there") == [
        "bert_jax/files.py",
        "bert_jax.files.copy",
    ]
