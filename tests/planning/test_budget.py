"""Who pays: time and money of a number of tokens, and the command to type next."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.cli.plan import tokens
from bert_jax.features.trained_model import TrainedModel
from bert_jax.planning import page, topologies
from bert_jax.planning.plan import Plan, Rates, make
from bert_jax.runs import recipe_plan, recipes
from bert_jax.runs.recipe_plan import PlanRequest, PretrainingRecipe
from tests.planning import tiny

MEMORY = 2**30


@pytest.fixture(scope="module")
def compiled() -> Plan:
    return make(tiny.recipe(), tiny.machine(), Rates(price_per_chip_hour=2.0, restarts_per_day=0))


@pytest.fixture
def plan(compiled: Plan) -> Plan:
    """1,000 steps of 1 s of computation and 3 s of waiting, with 10 % of the memory for the state and 20 % for rows."""
    [phase] = compiled.phases
    assert phase.prediction is not None
    prediction = dataclasses.replace(phase.prediction, seconds=4.0, compute_seconds=1.0, exposed_seconds=3.0)
    sizes = {field.name: 0 for field in dataclasses.fields(phase.compiled.memory)}
    memory = type(phase.compiled.memory)(**{**sizes, "parameters": MEMORY // 10, "temporaries": MEMORY // 5})
    step = dataclasses.replace(phase.compiled, memory=memory, seconds=100.0)
    chip = dataclasses.replace(compiled.chip, memory_bytes=MEMORY)
    return dataclasses.replace(
        compiled, chip=chip, phases=(dataclasses.replace(phase, prediction=prediction, compiled=step),)
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


@pytest.mark.parametrize(
    ("recipe", "name"),
    [("bert_large", "bert_large"), ("roberta:large", "roberta-large"), ("configs/pretrain/mine.py:x", "mine-x")],
)
def test_the_name_of_a_run(recipe: str, name: str) -> None:
    assert page.run_name(recipe) == name


@pytest.mark.parametrize(("text", "number"), [("3e9", 3e9), ("500m", 5e8), ("2.5B", 2.5e9), ("1T", 1e12), ("70", 70)])
def test_tokens_are_read(text: str, number: float) -> None:
    assert tokens(text) == number


def test_what_is_no_number_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--config=quickstart", "--topology=cpu:8", "--tokens=many"]) == 2
    assert "found 'many'; a number from 1 up is needed, such as 3e9, 500M or 3B" in capsys.readouterr().err


def test_steps_follow_from_tokens() -> None:
    """bert_large: 900,000 steps of 128 and 100,000 of 512 positions, 256 rows each; 42.6e9 positions."""
    recipe = PretrainingRecipe.of(recipes.load("bert_large").to_dict())
    whole = 256 * (900_000 * 128 + 100_000 * 512)
    fewer, flags = recipe.for_tokens(whole / 100)
    assert [phase.num_steps for phase in fewer.settings.experiment().phases.phases] == [9000, 1000]
    assert flags == [
        "--config.phases.phase1.num_steps=9000",
        "--config.phases.phase2.num_steps=1000",
        "--config.schedule.warmup_steps=100",
    ]
    more, flags = recipe.for_tokens(3 * whole)
    assert [phase.num_steps for phase in more.settings.experiment().phases.phases] == [2_700_000, 300_000]
    assert len(flags) == 2
    assert more.settings.schedule == recipe.settings.schedule
    in_tokens = recipes.load("bert_large", [f"--config.phases.phase1.num_tokens={900_000 * 256 * 128}"])
    _, flags = PretrainingRecipe.of(in_tokens.to_dict()).for_tokens(whole / 2)
    assert flags[0] == f"--config.phases.phase1.num_tokens={450_000 * 256 * 128}"
    assert flags[1] == "--config.phases.phase2.num_steps=50000"
    shared = recipes.load("bert_large", ["--config.schedule.warmup_fraction=0.1"])
    _, flags = PretrainingRecipe.of(shared.to_dict()).for_tokens(whole / 2)
    assert len(flags) == 2  # the share of the warm-up stays


def test_the_plan_of_a_number_of_tokens(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of the page and its next command are those of the tokens."""

    def made(recipe: PretrainingRecipe, machine: object, rates: Rates, note: object) -> Plan:
        [phase], [own] = recipe.settings.experiment().phases.phases, plan.phases
        return dataclasses.replace(plan, phases=(dataclasses.replace(own, phase=phase),))

    monkeypatch.setattr(recipe_plan, "make", made)
    request = PlanRequest("cpu:8", tokens=100 * tiny.ROWS * tiny.LENGTH, recipe=("--config=tiny", "--config.seed=1"))
    lines = recipe_plan.plan(tiny.config(schedule={"warmup_steps": 50}), request, lambda _: None).as_lines()
    flags = "--config.phases.phase1.num_steps=100 --config.schedule.warmup_steps=5"
    assert lines[0] == f"for 204,800 tokens (positions of rows, padding counts): {flags}"
    assert any(line.startswith("phase1: 100 steps of 64 rows") for line in lines)
    assert lines[-1].endswith(f"pretrain --config=tiny --config.seed=1 {flags} --workdir=runs/tiny")
    assert "JAX_NUM_CPU_DEVICES=8 " in lines[-1]


def test_a_run_that_starts_from_a_model_is_planned_with_its_architecture(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.recipe().shape()
    tokenizer: Any = types.SimpleNamespace(size=123, with_added=lambda added: tokenizer)
    initial = TrainedModel("books", {}, model, tokenizer)
    monkeypatch.setattr(recipe_plan, "load", lambda source, flag: {"books": initial}[source])
    planned: list[PretrainingRecipe] = []

    def made(recipe: PretrainingRecipe, *_: object, **__: object) -> Plan:
        planned.append(recipe)
        return plan

    monkeypatch.setattr(recipe_plan, "make", made)
    flags = ["--config.phases.phase1.num_steps=9", "--config.phases.phase1.max_length=32"]
    assert run(["plan", "--config=continue", "--init=books", *flags, "--topology=cpu:8"]) == 0
    assert planned[0].shape() == dataclasses.replace(model, vocab_size=123)
    assert "pretrain --config=continue --init=books " in capsys.readouterr().out.splitlines()[-1]
