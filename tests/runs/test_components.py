"""Every component of the package can be a user's own file, and says what such a file needs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bert_jax
from bert_jax.parts import catalogue
from bert_jax.parts.catalogue import KEYS, OwnCode


def test_every_component_has_its_keys() -> None:
    """What the package finds by name can be a user's own too, but for what users do not write."""
    called = set()
    for file in Path(bert_jax.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "catalogue.find(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "catalogue.find":
                called.add(ast.unparse(node.args[0]).strip("'"))
    constants = {"PACKAGE", "_PACKAGE", "_CATEGORY.package", "category.package"}  # annotators, families, kernels; any
    by_key = {KEYS[key].package for key in ("optimizer.name", "schedule.name")} | {"models.kernels"}
    assert (called - constants) | by_key == {component.package for component in KEYS.values()} - {"corpora.annotators"}


@pytest.mark.parametrize("component", sorted(set(KEYS.values())), ids=lambda component: component.package)
def test_the_parts_of_the_package_define_what_own_ones_need(component: catalogue.Category) -> None:
    for file in catalogue.parts(component.package, component.having).values():
        OwnCode(str(file), file.read_bytes()).check(component)
