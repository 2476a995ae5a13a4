"""Phases with objectives of their own: one set of parameters, and each kind of batch read by its own objective."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.models.encoders import bert
from bert_jax.objectives import mlm
from bert_jax.objectives.several import SeveralObjectives
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.rows.phases import Phase, Phases
from bert_jax.runs.pretraining import Pretraining
from bert_jax.runs.recipe_plan import PretrainingRecipe
from bert_jax.training.mesh import unbox
from tests import toy
from tests.objectives.texts import Text

# Another loss under the name of masked LM, and another head under that of the language model.
CLASHING = """
import jax.numpy as jnp

from bert_jax.models.heads import Classifier
from bert_jax.models.model import LM_HEAD, Part
from bert_jax.objectives import base
from bert_jax.records import Sum

Config = base.Config


def size(outputs, batch):
    mask = batch["attention_mask"].astype(jnp.float32)
    return Sum(jnp.sum(outputs["sequence"][..., 0] ** 2 * mask), jnp.sum(mask))


class Objective(base.PretrainingObjective):
    parts = ({part},)

    def terms(self, config):
        return {{"{term}": base.Term(size)}}
"""


def made(folder: Path, *phases: dict[str, Any], **objective: Any) -> Any:
    """The task of a recipe with these objectives of its phases, whose own one is ``objective``."""
    every = {
        f"phase{i}": {"num_steps": 4, "batch_size": 8, "max_length": 32, **({"objective": one} if one else {})}
        for i, one in enumerate(phases, start=1)
    }
    recipe = {**toy.recipe(folder / "text.txt", phases=every), "objective": objective}
    settings = PretrainingSettings.of(recipes.with_values(recipe, {}).to_dict())
    return Pretraining(settings, devices=jax.devices()[:1]).task


def fresh(task: Any) -> dict[str, Any]:
    return dict(unbox(jax.jit(task.init)(jax.random.key(0))).params)


def test_phases_of_one_objective_are_that_objective(tmp_path: Path) -> None:
    task = made(tmp_path, {}, {"packing": "packed"}, {"name": "mlm"}, name="mlm", arrangement="sentences")
    assert type(task) is mlm.Objective
    assert list(task.setting.max_lengths) == ["phase1", "phase2", "phase3"]
    assert "sequence_ids" in task.batch_specs["phase2"]
    assert "sequence_ids" not in task.batch_specs["phase3"]
    assert task.of("phase1") is task
    assert task.trains is None


def test_the_parameters_are_those_of_all_and_a_step_trains_its_own(tmp_path: Path) -> None:
    task = made(tmp_path, {"name": "ltr"}, {}, name="mlm_nsp")
    alone = {name: fresh(made(tmp_path, {}, name=name)) for name in ("ltr", "mlm_nsp")}
    params = fresh(task)
    assert params.keys() == {"encoder", "mlm_head", "pooler", "nsp_head"}
    for of_one in alone.values():
        for name, tree in of_one.items():
            jax.tree.map(np.testing.assert_array_equal, params[name], tree)
    first, last = task.of("phase1"), task.of("phase2")
    assert (first.trains, last.trains) == (frozenset({"encoder", "mlm_head"}), None)
    assert (first.setting.model.causal, last.setting.model.causal, task.setting.model.causal) == (True, False, False)
    assert task.parts == last.parts
    assert (list(first.loss_weights), list(last.loss_weights)) == (["lm"], ["mlm", "nsp"])
    assert "masked_positions" not in task.batch_specs["phase1"]
    assert task.flops_per_row.keys() == task.batch_specs.keys() == {"phase1", "phase2"}


def test_keys_of_a_phase(tmp_path: Path) -> None:
    """A phase takes the keys that all objectives share from the recipe unless it gives them; it gives all others."""
    light = {"name": "mlm_nsp", "next_sentence_weight": 0.25}
    task = made(tmp_path, {"name": "ltr", "packing": "none"}, light, {}, name="mlm_nsp", packing="packed")
    first, second, third = (task.of(f"phase{i}") for i in (1, 2, 3))
    assert "sequence_ids" not in task.batch_specs["phase1"]
    assert "sequence_ids" in task.batch_specs["phase2"]
    assert (second.loss_weights["nsp"], third.loss_weights["nsp"]) == (0.25, 1.0)
    assert second.trains is third.trains is None
    assert first.trains == {"encoder", "mlm_head"}


BAD = {
    "unknown": (({"name": "ltrr"}, {}), {"name": "mlm"}, "there is no objective 'ltrr' in bert_jax.objectives; did"),
    "a key of another": (
        ({"name": "ltr", "next_sentence_weight": 1.0}, {}),
        {"name": "mlm"},
        "unknown key config.phases.phase1.objective.next_sentence_weight; valid: arrangement",
    ),
    "a value": (
        ({}, {"name": "mlm_nsp", "next_sentence_weight": -1.0}),
        {"name": "mlm"},
        "config.phases.phase2.objective.next_sentence_weight is -1.0; at least 0 is needed",
    ),
    "masks": (
        ({"name": "ltr"}, {}),
        {"name": "mlm", "masking": {"rate": 0.3}},
        r"config.objective.masking is set, but the objective 'ltr' .*alone \(config.phases.NAME.masking\)",
    ),
    "arrangement": (
        ({}, {"name": "mlm_nsp", "arrangement": "sentences"}),
        {"name": "mlm"},
        "objective 'mlm_nsp' needs cls_positions, .*, which the arrangement 'sentences' does not have",
    ),
    "packing": (
        ({"name": "ltr", "packing": "tight"}, {}),
        {"name": "mlm"},
        "config.phases.phase1.objective.packing is 'tight'; allowed: 'none', 'packed'",
    ),
    "two meanings": (
        ({"name": "./other.py"}, {}),
        {"name": "mlm"},
        "the metric 'mlm_loss' would mean two things: phase1 and phase2 each have a term of that name",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.py").write_text(CLASHING.format(part="LM_HEAD", term="mlm"))
    phases, objective, message = BAD[name]
    with pytest.raises(UserError, match=message) as raised:
        made(tmp_path, *phases, **objective)
    assert "\n" not in str(raised.value)


def test_two_heads_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    part = 'Part.of("mlm_head", Classifier, vectors="sequence", logits="mlm_logits", num_outputs=120)'
    Path("other.py").write_text(CLASHING.format(part=part, term="other"))
    with pytest.raises(UserError, match="the head 'mlm_head' of objective 'mlm' has another .* of .*other.py;"):
        made(tmp_path, {"name": "./other.py"}, {}, name="mlm")


def test_a_phase_whose_objective_needs_a_head_that_the_encoder_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(bert, "Pooler")
    assert isinstance(made(tmp_path, {"name": "ltr"}, {}, name="mlm"), SeveralObjectives)
    with pytest.raises(UserError, match="^encoder 'bert' has no Pooler, which objective 'mlm_nsp' needs$"):
        made(tmp_path, {"name": "ltr"}, {"name": "mlm_nsp"}, name="mlm")


# ---- Members of a phase ----------------------------------------------------------------------------------------------

MEMBERS = {"ahead": {"name": "ltr"}, "masked": {"name": "mlm", "masking": {"rate": 0.3}, "share": 3.0}}


def test_members_have_batches_of_their_own_in_their_shares(tmp_path: Path, text: Text) -> None:
    task = made(tmp_path, {}, {"name": "mlm"}, members=MEMBERS, arrangement="sentences").with_text(*text)
    assert sorted(task.batch_specs) == ["phase1", "phase1/masked", "phase2"]
    first, second = task.of("phase1"), task.of("phase1/masked")
    assert (first.name, second.name, task.of("phase2").name) == ("ltr", "mlm", "mlm")
    assert (first.setting.model.causal, second.setting.model.causal) == (True, False)
    source, phase = task.source("train", "phase1", 0), Phase(400, 8, 32, "phase1")
    steps = [Phases((phase,)).rows_of(step, {0: source.rows_per_epoch}, source.buckets) for step in range(400)]
    kinds = [step.kind for step in steps]
    assert kinds.count("phase1/masked") == pytest.approx(300, abs=10)
    assert 0.4 < np.mean([a == b for a, b in itertools.pairwise(kinds)]) < 0.85, "in random order"
    seen: dict[str, list[Any]] = {kind: [] for kind in set(kinds)}
    for step in steps:
        batch = source.rows(step.epochs, step.rows)
        assert batch.keys() == task.batch_specs[step.kind].keys()
        seen[step.kind].append(batch["input_ids"])
    alone = task.of("phase1/masked").source("train", "phase1/masked", 0)
    indices = np.arange(alone.rows_per_epoch)
    every = {row.tobytes() for row in alone.rows(0 * indices, indices)["input_ids"]}
    of_epoch = np.concatenate(seen["phase1/masked"])[: len(indices)]
    assert len(every & {row.tobytes() for row in of_epoch}) > 0.4 * len(every), "an epoch goes through the rows"

    assert task.heldout("phase1") == {"ahead": "phase1", "masked": "phase1/masked"}
    assert task.heldout("phase2") == {"": "phase2"}
    heldout = task.source("eval", "phase1/masked", 0, "masked").rows(0 * indices[:8], indices[:8])
    assert heldout.keys() == task.batch_specs["phase1/masked"].keys()
    assert task.baselines("phase1", 10, "ahead").keys() == {"unigram_cross_entropy", "trigram_cross_entropy"}
    assert task.baselines("phase1", 10, "masked").keys() == {"unigram_cross_entropy", "trigram_cloze_cross_entropy"}


BAD_MEMBERS = {
    "one": ({"a": {"name": "mlm"}}, {}, "config.objective.members is .*; two or more are needed"),
    "no name": ({"a": {"name": "mlm"}, "b": {"share": 2}}, {}, "config.objective.members.b is .*the name of an obj"),
    "a share": ({"a": {"name": "mlm"}, "b": {"name": "ltr", "share": 0}}, {}, "members.b.share is 0; a number above 0"),
    "a key": (
        {"a": {"name": "mlm"}, "b": {"name": "ltr", "sare": 1}},
        {},
        "unknown key config.objective.members.b.*sare",
    ),
    "both": (MEMBERS, {"name": "mlm"}, "config.objective has name and members; it is one objective or several"),
    "a key of all": (MEMBERS, {"packng": "packed"}, "unknown key config.objective.packng; did you mean 'packing'"),
    "lengths": (MEMBERS, {"packing": "bucketed"}, "the members of phase1 have rows of one length: set packing to"),
}


@pytest.mark.parametrize("name", BAD_MEMBERS)
def test_members_that_do_not_fit_are_one_line(name: str, tmp_path: Path) -> None:
    members, objective, message = BAD_MEMBERS[name]
    with pytest.raises(UserError, match=message) as raised:
        made(tmp_path, {}, members=members, **objective)
    assert "\n" not in str(raised.value)


def test_plan_computes_one_kind_of_a_phase(tmp_path: Path) -> None:
    recipe = {**toy.recipe(tmp_path / "text.txt"), "objective": {"members": MEMBERS}}
    with pytest.raises(UserError, match="phase1 has the members ahead, masked, and plan computes one kind of batch"):
        PretrainingRecipe.of(recipe)
