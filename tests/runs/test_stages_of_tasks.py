"""Continual learning of several tasks: which tasks a stage has, how many steps each gets, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.objectives.several import SeveralObjectives
from bert_jax.recipes import recipes, stages
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.pretraining import Pretraining

PHASE = {"batch_size": 8, "max_length": 32}
TASKS = {name: {"name": name} for name in ("mlm", "capitals", "token_document", "sentence_reordering")}
PUBLISHED = dict(zip(TASKS, ((20, 10, 10, 10), (0, 30, 10, 10), (0, 0, 40, 10), (0, 0, 0, 50)), strict=True))


def steps_of(schedule: str) -> list[dict[str, float]]:
    """Return the steps of each task in each stage, from the shares of the members."""
    found = []
    for stage in stages.phases(schedule, PUBLISHED, TASKS, PHASE).to_dict().values():
        objective, steps = stage["objective"], stage["num_steps"]
        assert (stage["batch_size"], stage["max_length"]) == (8, 32)
        shares = {name: keys["share"] for name, keys in objective.get("members", {}).items()} or {objective["name"]: 1}
        found.append({name: steps * share / sum(shares.values()) for name, share in shares.items()})
    return found


def test_stage_n_has_the_tasks_1_to_n_with_their_steps() -> None:
    found = steps_of("continual")
    assert [set(stage) for stage in found] == [set(list(TASKS)[:n]) for n in (1, 2, 3, 4)]
    for task, row in PUBLISHED.items():
        assert [stage.get(task, 0) for stage in found] == list(row)


def test_every_schedule_gives_every_task_the_same_number_of_steps() -> None:
    assert steps_of("sequential") == [{task: 50} for task in TASKS]
    assert steps_of("joint") == [dict.fromkeys(TASKS, 50)]
    for schedule in ("continual", "sequential", "joint"):
        totals = {task: sum(stage.get(task, 0) for stage in steps_of(schedule)) for task in TASKS}
        assert totals == dict.fromkeys(TASKS, 50)


BAD: dict[str, tuple[dict[str, tuple[Any, ...]], str]] = {
    "sums": ({"a": (2, 3), "b": (0, 4)}, "^a has 5, b 4 steps in all stages; give each task the same sum$"),
    "lengths": ({"a": (2, 3), "b": (5,)}, "^a has 2, b 1 stages; give each task a number for each stage, 0 where it r"),
    "a stage": ({"a": (2, 0, 3), "b": (1, 0, 4)}, "^stage 2 has no steps of any task; leave its column out, or"),
    "negative": ({"a": (6, -1), "b": (0, 5)}, "^the stages give a -1 steps; whole numbers of 0 or more are needed$"),
    "half": ({"a": (2.5, 2.5), "b": (0, 5)}, r"^the stages give a 2.5 steps; whole numbers of 0 or more are needed$"),
    "empty": ({"a": (), "b": ()}, "^the stages have no columns; give each task its steps in each stage$"),
    "a row": ({"a": (1,)}, "^the stages have steps for a, and objectives for a, b; give each task both$"),
    "none": ({}, "^the stages have steps for no task, and objectives for a, b; give each task both$"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_table_that_does_not_fit_is_one_line(name: str) -> None:
    allocation, message = BAD[name]
    with pytest.raises(UserError, match=message):
        stages.phases("continual", allocation, {"a": {"name": "mlm"}, "b": {"name": "ltr"}}, PHASE)


def test_an_unknown_schedule_is_one_line() -> None:
    with pytest.raises(UserError, match="^unknown schedule of stages 'sequentiel'; did you mean 'sequential'"):
        stages.phases("sequentiel", PUBLISHED, TASKS, PHASE)
    with pytest.raises(UserError, match="^unknown schedule of stages 'small'; valid: continual, joint, sequential$"):
        recipes.load("ernie2:small")


@pytest.mark.parametrize("variant", ["continual", "sequential", "joint", "tiny"])
def test_the_recipe_has_the_published_values(variant: str) -> None:
    config = recipes.load(f"ernie2:{variant}").to_dict()
    config["model"]["layers"] = "scanned"  # traced once, not 12 times
    prepared = Pretraining(PretrainingSettings.of(config), devices=jax.devices())
    task, phases = prepared.task, prepared.experiment.phases.phases
    assert isinstance(task, SeveralObjectives)
    members = {phase.kind: list(prepared.settings.members[phase.kind]) for phase in phases}
    assert len(members) == (1 if variant == "joint" else 4)
    ids = {one.name: getattr(one, "task_id", 0) for one in map(task.of, task.batch_specs)}
    assert ids == {"mlm": 0, "capitals": 1, "token_document": 2, "sentence_reordering": 3}
    assert len(set(map(len, task.batch_specs.values()))) > 1, "rows of their own"
    if variant == "tiny":
        return
    assert prepared.experiment.phases.num_steps == 200_000
    assert {phase.batch_size * phase.max_length for phase in phases} == {393_216}
    rule, schedule = prepared.experiment.optimizer, prepared.experiment.make_schedule()
    assert (rule.b1, rule.b2) == (0.9, 0.98)
    starts = np.cumsum([0, *(phase.num_steps for phase in phases)])[:-1]
    np.testing.assert_allclose([schedule(step) for step in starts], 0.0, atol=1e-12)
    np.testing.assert_allclose([schedule(step + 4_000) for step in starts], 5e-5, rtol=1e-6)
    np.testing.assert_allclose([schedule(step + 16_000) for step in starts], 2.5e-5, rtol=1e-6)
