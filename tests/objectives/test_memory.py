"""An objective carries the memory of its encoder, or says in one line, before any text, why it cannot."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.encoders import transformer_xl
from bert_jax.objectives import base, ltr
from bert_jax.objectives.base import Setting
from bert_jax.records import Feature
from bert_jax.rows.ngram_models import next_tokens_of_rows
from bert_jax.rows.phases import Phase, Phases
from bert_jax.training import lanes
from tests.objectives.texts import teacher_of

LENGTH, MEMORY = 8, 12


class Silent(ltr.Objective):
    """Its own ``forward`` forgets the memory."""

    def forward(self, variables: Any, batch: Any, rng: Any) -> dict[str, jax.Array]:
        return {"mlm_logits": super().forward(variables, batch, rng)["mlm_logits"]}


class Whole(ltr.Objective):
    whole_batches = True


def objective(of: type[ltr.Objective] = ltr.Objective, memory: int = MEMORY, **changes: Any) -> ltr.Objective:
    model = transformer_xl.Config(50, 16, 2, 2, 32, memory_length=memory, max_length=32)
    config = base.Config(**{"arrangement": "streams", **changes})
    return of(config, Setting(model, {"phase1": LENGTH, "phase2": LENGTH}))


def test_memory_is_of_the_encoder_alone() -> None:
    task = objective()
    wanted = {"past_states": Feature((2, MEMORY, 16), "float32"), "past_mask": Feature((MEMORY,), "int32")}
    assert task.memory == wanted
    assert task.batch_specs["phase1"]["lane_starts"] == Feature((), "int32")
    without = objective(memory=0)
    assert without.memory == {}
    assert "lane_starts" not in without.batch_specs["phase1"]


def test_every_token_of_a_segment_is_predicted() -> None:
    task = objective(memory=0)
    rows = {"input_ids": np.array([[1, 2, 3], [4, 5, 6]]), "next_ids": np.array([4, 7])}
    rows |= {"attention_mask": np.ones((2, 3), np.int32), "row_weights": np.array([1, 0], np.float32)}
    batch = task.inputs(jax.tree.map(jnp.asarray, rows))
    assert batch["next_token_labels"].tolist() == [[2, 3, 4], [5, 6, 7]]
    assert batch["next_token_weights"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert batch["masked_positions"].tolist() == [[0, 1, 2]] * 2
    assert next_tokens_of_rows(rows, -1, -1).label.tolist() == [2, 3, 4]  # the baselines' too


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: objective(arrangement="sentences"), "arrangement 'sentences' has rows that do not go on .* 'streams'"),
        (lambda: objective(packing="packed"), "packing is 'packed', and a row of the arrangement 'streams'"),
        (lambda: objective(Silent), "gives out no past_.*, and the memory of its model is Feature"),
        (lambda: objective(Whole), "reads whole batches, and a model with memory reads rows alone"),
    ],
)
def test_what_cannot_hand_memory_on_is_one_line(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_a_teacher_does_not_read_the_memory_of_its_student() -> None:
    """Its layers read other vectors, and shapes may be alike, so nothing else would tell."""
    student = objective()
    setting = student.setting._replace(teacher=teacher_of(student.setting.model))
    with pytest.raises(UserError, match="init=T would read the memory of the student, .* or set config.model.memory_l"):
        ltr.Objective(student.config, setting)
    without = dataclasses.replace(setting.model, memory_length=0)
    assert ltr.Objective(student.config, setting._replace(model=without)).lessons


def test_phases_share_one_memory() -> None:
    """Its shapes are of the rows of a batch; a phase without memory has any."""
    task = objective()
    alike = Phases((Phase(2, 4, LENGTH, "phase1"), Phase(2, 4, LENGTH, "phase2")))
    assert lanes.of_run(task, alike)["past_states"].shape == (4, 2, MEMORY, 16)
    unlike = Phases((Phase(2, 4, LENGTH, "phase1"), Phase(2, 8, LENGTH, "phase2")))
    with pytest.raises(UserError, match=r"memory of config.phases.phase2 is past_states \[8, .*one batch_size"):
        lanes.of_run(task, unlike)
    assert lanes.of_run(objective(memory=0), unlike) == {}
    task.batch_specs["phase1/b"] = task.batch_specs["phase1"]
    with pytest.raises(UserError, match=r"phase1 has 2 kinds of batches \(phase1, phase1/b\), and its model"):
        lanes.of_run(task, alike)
