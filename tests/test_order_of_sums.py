"""On a GPU no gradient depends on the order in which threads add: no part of the package makes a scatter of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from bert_jax.models import gradients, primitives
from bert_jax.models.dropout import RowRng
from bert_jax.parts import catalogue
from bert_jax.task import Variables
from tests.test_contract import ROWS, make_task, objective, rows_of


def scatters(jaxpr: Any) -> Iterator[str]:
    """The scatters of a program that may write one place twice."""
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith("scatter") and not equation.params["unique_indices"]:
            yield f"{equation.primitive.name} {equation.outvars[0].aval}"
        for inner in jaxprs_in_params(equation.params):
            yield from scatters(inner)


def of_gradient(task: Any, kind: str) -> list[str]:
    spec, batch = rows_of(task, kind)

    def loss(params: Any, frozen: Any, rows: Any) -> Any:
        rng = RowRng.create(0, jnp.int32(1), jnp.arange(ROWS, dtype=jnp.uint32))
        return sum(term.value for term in task.loss(Variables(params, frozen), rows, rng).terms.values())

    return list(scatters(jax.make_jaxpr(jax.grad(loss))(spec.params, spec.frozen, batch).jaxpr))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_gpu(*arguments: Any, default: Any, **branches: Any) -> Any:
        return branches.get("cuda", default)(*arguments)

    for module in (gradients, primitives):
        monkeypatch.setattr(module, "platform", lambda: "gpu")
    monkeypatch.setattr(jax.lax, "platform_dependent", on_gpu)


@pytest.mark.parametrize("name", sorted(catalogue.parts("tasks", having="Task")))
def test_gradients_of_tasks_are_no_scatters(name: str, gpu: None) -> None:
    assert not of_gradient(make_task(name), "train")


@pytest.mark.parametrize("name", sorted(catalogue.parts("objectives", having="Objective")))
def test_gradients_of_objectives_are_no_scatters(
    name: str, gpu: None, tmp_path_factory: pytest.TempPathFactory, one_device: None
) -> None:
    assert not of_gradient(objective(name, "packed", tmp_path_factory.getbasetemp()), "phase1")


def test_a_scatter_would_be_seen() -> None:
    assert "scatter-add float32[118,32]" in of_gradient(make_task("tagging"), "train")
