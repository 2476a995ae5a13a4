"""Runs that mix UniLM's directions, runs in both orders at once, and what is refused in one line."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.initial import start_from
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import export_trained
from bert_jax.models.encoders import bert
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.rows.phases import Phase, Phases
from bert_jax.runs.model_choice import left_to_plain, overridden_settings
from bert_jax.runs.pretraining import Pretraining
from tests import toy
from tests.interchange.test_initial import state_of
from tests.models.helpers import random_params
from tests.objectives.texts import Text
from tests.training import gang

SHARES = {"both_sides": 2, "sequence_to_sequence": 2, "left_to_right": 1, "right_to_left": 1}
MEMBERS: dict[str, Any] = {
    name: {"name": "unilm", "direction": name.replace("_", " "), "share": share} for name, share in SHARES.items()
}
ORDERS: dict[str, Any] = {"both_sides": {"name": "mlm_shifted", "share": 3}, "left_to_right": {"name": "ltr"}}


def recipe_of(folder: Path, objective: dict[str, Any], **changes: Any) -> dict[str, Any]:
    model = {"type_vocab_size": 6, "dropout_rate": 0.1, **changes.pop("model", {})}
    recipe = toy.recipe(toy.write_text(folder / "text.txt"), model=model, **changes)
    return {**recipe, "objective": objective}


def made(folder: Path, objective: dict[str, Any], **changes: Any) -> Any:
    settings = PretrainingSettings.of(recipes.with_values(recipe_of(folder, objective, **changes), {}).to_dict())
    return Pretraining(settings, devices=jax.devices()[:1]).task


def test_shares_of_directions_in_a_phase(tmp_path: Path, text: Text) -> None:
    task = made(tmp_path, {"members": MEMBERS}).with_text(*text)
    assert [part.name for part in task.parts] == ["pooler", "mlm_head", "nsp_head"]
    source, phase = task.source("train", "phase1", 0), Phase(600, 8, 32, "phase1")
    steps = [Phases((phase,)).rows_of(step, {0: source.rows_per_epoch}, source.buckets) for step in range(600)]
    for name, share in SHARES.items():
        kind = "phase1" if name == "both_sides" else f"phase1/{name}"
        assert sum(step.kind == kind for step in steps) == pytest.approx(100 * share, abs=12)
        first = next(step for step in steps if step.kind == kind)
        batch = task.of(kind).inputs(source.rows(first.epochs, first.rows))
        assert ("order_ids" in batch) == (name in ("sequence_to_sequence", "right_to_left"))
    assert not left_to_plain(task)  # "auto" promises no kernel
    for of_kind in [task, *(task.of(kind) for kind in task.batch_specs)]:
        of_kind.setting = of_kind.setting._replace(
            model=dataclasses.replace(task.setting.model, attention_kernel="flash")
        )
    assert left_to_plain(task) == [
        "config.model.attention_kernel is 'flash'; plain attention computes batches of phase1/right_to_left, "
        "phase1/sequence_to_sequence, whose tokens see each other by an order"
    ]


CUT: dict[str, Any] = {
    "unilm": {"members": MEMBERS, "packing": "packed", "masking": {"strategy": "ngrams"}},
    "both orders": {"members": ORDERS, "packing": "packed", "arrangement": "sentences"},
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", CUT)
def test_a_run_that_is_cut_ends_with_the_same_bits(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its export is BertForPreTraining with six token types; both orders at once have no class."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    phases = {"phase1": {"num_steps": 24, "batch_size": 8, "max_length": 32}}
    recipe = recipe_of(tmp_path, CUT[name], phases=phases, export=name == "unilm")
    command = ["pretrain", f"--config={toy.write_recipe(tmp_path / 'recipe.json', recipe)}"]
    with toy.one_device():
        assert run([*command, f"--workdir={whole}"]) == 0
        shutil.copytree(whole, cut)
        for step in saved_steps(str(cut))[1:]:
            shutil.rmtree(cut / "checkpoints" / str(step))
        assert saved_steps(str(cut)) < saved_steps(str(whole))
        assert run([*command, f"--workdir={cut}"]) == 0
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)
    examples = json.loads((whole / "examples.json").read_text())
    shown = {("continuation" in one, "predictions" in one) for one in examples}
    assert shown == ({(True, False), (False, True)} if name == "unilm" else {(True, False)})
    said = capsys.readouterr().err
    assert f"generate --workdir={whole}" in said
    assert (f"fill-mask --workdir={whole}" in said) == (name == "unilm")
    assert "Going on with a text" in (whole / "report.html").read_text()
    last = next(line for line in reversed(gang.records(whole)) if line["split"] == "eval")
    assert {f"mlm_loss/{member}" for member in MEMBERS} <= last.keys() if name == "unilm" else "lm_loss" in last
    if name == "unilm":
        config = json.loads((whole / "hugging_face" / "config.json").read_text())
        assert (config["architectures"], config["type_vocab_size"]) == (["BertForPreTraining"], 6)
        return
    model = load(str(whole))
    assert model.head is None
    with pytest.raises(UserError, match="this model is not read at its masks: it predicts a masked token at the posit"):
        model.fill_mask("the [MASK] sees.")
    with pytest.raises(UserError, match="no class for the model of .*: it predicts .*; --as=BertModel writes the enco"):
        export_trained(model, tmp_path / "out")
    assert "BertModel" in export_trained(model, tmp_path / "out", "BertModel").line


def test_a_bert_of_two_token_types_begins_a_run_of_six(tmp_path: Path, text: Text) -> None:
    """Of --init, everything but the number of token types is taken, and may be typed."""
    config = bert.Config(text[1].size, 16, 1, 2, 32, max_length=32)
    initial = TrainedModel("there", random_params(config), config, text[1])
    recipe = recipe_of(tmp_path, {"members": MEMBERS}, model={"hidden_size": 64})
    settings, notes = PretrainingSettings.of(recipes.with_values(recipe, {}).to_dict()), list[str]()
    model = Pretraining(settings, initial, devices=jax.devices()[:1]).task.setting.model
    assert model == dataclasses.replace(config, type_vocab_size=6, dropout_rate=0.1)
    given = settings.architecture
    assert "type" not in "".join(overridden_settings(given, ["model.type_vocab_size"], initial))
    with pytest.raises(UserError, match="hidden_size"):
        overridden_settings(given, ["model.hidden_size"], initial)
    state = start_from(initial, model, text[1], notes.append)(state_of(random_params(model, seed=1)))
    tables = (one["encoder"]["embeddings"]["token_type_embeddings"] for one in (state.params, initial.params))
    grown, two = map(np.asarray, tables)
    np.testing.assert_array_equal(grown, two[[0, 1, 0, 0, 0, 1]])
    assert notes[0] == "token types: 6, each with the vector of one of the two of there"
    three = dataclasses.replace(config, type_vocab_size=3)
    with pytest.raises(UserError, match="has token types up to 5, and the model tells 3 apart"):
        Pretraining(settings, dataclasses.replace(initial, config=three), devices=jax.devices()[:1])


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "types": (
        {"name": "unilm", "direction": "left to right"},
        {"model": {"type_vocab_size": 2}},
        "the direction 'left to right' has token types up to 5, and the model tells 2 apart; set config.model.type_v",
    ),
    "direction": (
        {"name": "unilm", "direction": "sequence"},
        {},
        "config.objective.direction is 'sequence'; allowed: 'both sides', 'sequence to sequence', 'left to right', 'ri",
    ),
    "no second segment": (
        {"name": "unilm", "arrangement": "sentences"},
        {},
        "objective 'unilm' needs a second segment for the direction 'sequence to sequence', which the arrangement 'sen",
    ),
    "no pairs": (
        {"name": "unilm", "arrangement": "sentences", "direction": "both sides"},
        {},
        "objective 'unilm' needs cls_positions, .*, which the arrangement 'sentences' does not have",
    ),
    "random": (
        {"name": "unilm", "arrangement_options": {"random_share": 2.0}},
        {},
        "config.objective.arrangement_options.random_share is 2.0; 0 to 1 is allowed",
    ),
    "shares": (
        {"name": "unilm", "masking": {"strategy": "ngrams", "options": {"shares": (0.8, 0.2)}}},
        {},
        r"config.objective.masking.options.shares is \(0.8, 0.2\); 3 numbers are needed \(longest\)",
    ),
    "export": (
        {"members": ORDERS, "arrangement": "sentences"},
        {},
        "config.export is True, and transformers has no class for this model: it predicts a masked token at the pos",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_one_line(name: str, tmp_path: Path) -> None:
    objective, changes, message = BAD[name]
    with pytest.raises(UserError, match=message) as raised:
        made(tmp_path, objective, **changes)
    assert "\n" not in str(raised.value)
