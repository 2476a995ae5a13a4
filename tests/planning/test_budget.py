"""The command to type next, the name of a run, and the plan of a run that starts from a model."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.planning import page, topologies
from bert_jax.planning.plan import Plan
from bert_jax.runs import recipe_plan
from bert_jax.runs.recipe_plan import PretrainingRecipe
from tests.planning import tiny

MEMORY = 2**30


@pytest.fixture(name="plan")
def slow_plan(plan: Plan) -> Plan:
    """A step computes for 1 s and waits for 3 s; the state takes 10 % of the memory, the rows 20 %."""
    [phase] = plan.phases
    assert phase.prediction is not None
    prediction = dataclasses.replace(phase.prediction, seconds=4.0, compute_seconds=1.0, exposed_seconds=3.0)
    sizes = {field.name: 0 for field in dataclasses.fields(phase.compiled.memory)}
    memory = type(phase.compiled.memory)(**{**sizes, "parameters": MEMORY // 10, "temporaries": MEMORY // 5})
    step = dataclasses.replace(phase.compiled, memory=memory, seconds=100.0)
    chip = dataclasses.replace(plan.chip, memory_bytes=MEMORY)
    return dataclasses.replace(
        plan, chip=chip, phases=(dataclasses.replace(phase, prediction=prediction, compiled=step),)
    )


def on(plan: Plan, topology: str) -> Plan:
    return dataclasses.replace(plan, topology=topologies.parse(topology))


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ("v5e:2x4", "next, on v5e:2x4: {} pretrain --config=r --workdir=runs/r"),
        ("v5p:2x2x1", "next, on v5p:2x2x1: {} pretrain --config=r --workdir=runs/r"),
        (
            "v5p:2x2x2",
            "next, on every host of v5p:2x2x2: {} preflight --config=r --workdir=gs://BUCKET/r --distributed=auto, "
            "then the same with pretrain",
        ),
    ],
)
def test_the_next_command_starts_the_run(plan: Plan, monkeypatch: pytest.MonkeyPatch, topology: str, said: str) -> None:
    monkeypatch.setattr(page, "program", lambda: "bert-jax")
    there = dataclasses.replace(on(plan, topology), chip=dataclasses.replace(plan.chip, platform="tpu"))
    assert page.next_command(there, ["--config=r"], "r") == said.format("bert-jax")


def test_the_next_command_of_what_does_not_fit_is_a_larger_machine(plan: Plan) -> None:
    refused = dataclasses.replace(plan, phases=(dataclasses.replace(plan.phases[0], fits=False),))
    line = page.next_command(on(refused, "v5e:4x4"), ["--config=r", "--config.a=b c"], "r")
    assert line.endswith("plan --config=r '--config.a=b c' --topology=v5e:4x8 --price_per_chip_hour=2")
    assert [topologies.parse(name).next_larger() for name in ("v5e:16x16", "cpu:8")] == [None, "cpu:16"]


def test_a_run_of_years_is_not_the_next_command(plan: Plan) -> None:
    [phase] = plan.phases
    prediction = dataclasses.replace(phase.prediction, seconds=4e8 / phase.phase.num_steps)
    years = dataclasses.replace(plan, phases=(dataclasses.replace(phase, prediction=prediction),))
    line = page.next_command(on(years, "cpu:1"), ["--config=r"], "r")
    assert line.startswith("next: a larger machine or a smaller recipe, for 12 y 249 d is long: ")
    assert "plan --config=r --topology=h100:1" in line
    on_tpu = dataclasses.replace(on(years, "v5e:4x4"), chip=dataclasses.replace(plan.chip, platform="tpu"))
    assert "--topology=v5e:4x8" in page.next_command(on_tpu, ["--config=r"], "r")


@pytest.mark.parametrize(
    ("recipe", "name"),
    [("bert_large", "bert_large"), ("roberta:large", "roberta-large"), ("configs/pretrain/mine.py:x", "mine-x")],
)
def test_the_name_of_a_run(recipe: str, name: str) -> None:
    assert page.run_name(recipe) == name


def test_a_run_that_starts_from_a_model_is_planned_with_its_architecture(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.recipe().shape()
    tokenizer: Any = types.SimpleNamespace(size=123, with_added=lambda *_: tokenizer)
    initial = TrainedModel("books", {}, model, tokenizer)
    monkeypatch.setattr(recipe_plan, "read_initial", lambda vocab, typed, source: {"books": initial}[source])
    planned: list[PretrainingRecipe] = []

    def made(recipe: PretrainingRecipe, *_: object, **__: object) -> Plan:
        planned.append(recipe)
        return plan

    monkeypatch.setattr(recipe_plan, "make_plan", made)
    monkeypatch.setattr(recipe_plan, "largest_micro_batches", lambda *_: {})
    flags = ["--config.phases.phase1.num_steps=9", "--config.phases.phase1.max_length=32"]
    assert run(["plan", "--config=continue", "--init=books", *flags, "--topology=cpu:8"]) == 0
    assert planned[0].shape() == dataclasses.replace(model, vocab_size=123)
    assert "pretrain --config=continue --init=books " in capsys.readouterr().out.splitlines()[-1]
