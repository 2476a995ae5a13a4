"""ERNIE 2.0's tasks with rows of their own: heads, tasks' numbers, several in a phase, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.models.encoders import ernie
from bert_jax.objectives import discourse, ir_relevance, sentence_distance, sentence_reordering, token_document
from bert_jax.objectives.base import Setting
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.pretraining import Pretraining
from tests import toy
from tests.objectives.texts import LENGTH, Text, make_text, objective, rows_of
from tests.training import gang

OF_SEQUENCES = {sentence_reordering: 9, sentence_distance: 3, discourse: 4, ir_relevance: 3}
TASK_IDS = {token_document: 2, sentence_reordering: 3, sentence_distance: 4, discourse: 5, ir_relevance: 6}
MEMBERS: dict[str, Any] = {one.__name__.rpartition(".")[2]: {} for one in TASK_IDS}
MEMBERS = {name: {"name": name} for name in MEMBERS} | {"words": {"name": "mlm", "arrangement": "sentences"}}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return make_text(tmp_path_factory.mktemp("labelled"), labelled=True)


def made(folder: Path, objective: dict[str, Any], **changes: Any) -> Any:
    """The task of a recipe, before its text is read."""
    recipe = toy.recipe(folder / "text.txt", **changes)
    settings = PretrainingSettings.of(recipes.with_values({**recipe, "objective": objective}, {}).to_dict())
    return Pretraining(settings, devices=jax.devices()[:1]).task


@pytest.mark.parametrize("module", OF_SEQUENCES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_class_for_each_sequence(module: ModuleType, labelled: Text) -> None:
    """And ``inputs`` changes nothing: no token is masked, and an encoder without tasks hears of none."""
    task = objective(module, labelled, packing="packed")
    name, batch = task.arrangement, rows_of(task, 4)
    assert task.output_shapes()[f"{name}_logits"].shape[1:] == (
        task.batch_specs["phase1"]["cls_positions"].shape[0],
        OF_SEQUENCES[module],
    )
    assert not {"masked_positions", "masked_labels"} & task.batch_specs["phase1"].keys()
    assert not (batch["input_ids"] == labelled[1].mask_id).any()
    assert task.inputs(batch).keys() == batch.keys()
    labels = batch[f"{name}_labels"][batch[f"{name}_weights"] > 0]
    assert len(set(labels.tolist())) > 1
    assert labels.max() < OF_SEQUENCES[module]
    rate = task.baselines("phase1", 20)[f"{name}_majority_rate"]
    assert 1 / OF_SEQUENCES[module] <= rate < 1
    assert task.titles.keys() == {f"{name}_loss", f"{name}_accuracy"}


def test_each_token_has_a_label_beside_its_segment(labelled: Text) -> None:
    task = objective(token_document, labelled, packing="packed")
    batch = rows_of(task)
    assert task.output_shapes()["occurs_logits"].shape[1:] == (LENGTH, 2)
    special = np.isin(batch["input_ids"], sorted(labelled[1].special_ids))
    assert not batch["token_document_weights"][special].any()
    assert batch["token_document_weights"][~special].mean() > 0.99
    assert 0.5 < task.baselines("phase1", 20)["token_document_majority_rate"] < 1


@pytest.mark.parametrize("module", TASK_IDS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_an_encoder_with_tasks_reads_the_task(module: ModuleType, labelled: Text) -> None:
    corpus, tokenizer = labelled
    config = ernie.Config(tokenizer.size, 16, 1, 2, 32, max_length=LENGTH, task_type_vocab_size=7)
    task = module.Objective(module.Config(), Setting(config, {"phase1": LENGTH})).with_text(corpus, tokenizer)
    batch = {name: jnp.asarray(value) for name, value in rows_of(task, 2).items()}
    assert (task.inputs(batch)["task_type_ids"] == TASK_IDS[module]).all()


def test_more_pieces_have_more_classes(labelled: Text) -> None:
    task = objective(sentence_reordering, labelled, arrangement_options={"max_pieces": 4})
    assert task.output_shapes()["sentence_reordering_logits"].shape[-1] == 33
    other = {"phase1": {"arrangement_options": {"max_pieces": 2}}}
    task = objective(sentence_reordering, labelled, changes=other)
    assert task.output_shapes()["sentence_reordering_logits"].shape[-1] == 3


def test_all_in_one_phase(tmp_path: Path, labelled: Text) -> None:
    """Each with a head of its own, and a step trains that head alone."""
    options = {"members": MEMBERS, "packing": "packed"}
    corpus = {"columns": dict.fromkeys(("connectives", "relevance"), {"annotator": "leading_phrases"})}
    task = made(tmp_path, options, corpus=corpus, model={"encoder": "ernie", "task_type_vocab_size": 7})
    assert task.needed_columns == ("connectives", "relevance")
    task = task.with_text(*labelled)
    heads = {part.name for part in task.parts}
    assert heads == {"pooler", "mlm_head", *(f"{name}_head" for name in MEMBERS if name != "words")}
    for kind in task.batch_specs:
        name = task.of(kind).name
        own = {"mlm_head"} if name == "mlm" else {f"{name}_head"} | ({"pooler"} if name != "token_document" else set())
        assert task.of(kind).trains == {"encoder", *own}
    assert len(task.batch_specs) == len(MEMBERS)


@pytest.mark.heavy
def test_a_run_of_all_that_is_cut_ends_with_the_same_bits(tmp_path: Path) -> None:
    """On eight devices too, with micro-batches, it has the losses of one device."""
    text = toy.write_text(tmp_path / "text.txt", documents=80)
    columns = toy.label(text)
    recipe = toy.recipe(
        text,
        corpus={"columns": columns},
        model={"encoder": "ernie", "task_type_vocab_size": 7, "dropout_rate": 0.1},
        phases={"phase1": {"num_steps": 24, "batch_size": 16, "max_length": 32}},
        training={"log_every_steps": 1, "eval_every_steps": 24, "eval_rows": 20},
        examples=(),
    )
    recipe["objective"] = {"members": MEMBERS, "packing": "packed"}
    command = ["pretrain", f"--config={toy.write_recipe(tmp_path / 'recipe.json', recipe)}"]
    whole, cut, wide = (tmp_path / name for name in ("whole", "cut", "wide"))
    with toy.one_device():
        assert run([*command, f"--workdir={whole}"]) == 0
        shutil.copytree(whole, cut)
        for step in saved_steps(str(cut))[1:]:
            shutil.rmtree(cut / "checkpoints" / str(step))
        assert run([*command, f"--workdir={cut}"]) == 0
    assert gang.records(cut) == gang.records(whole)
    gang.assert_same_model(cut, whole)
    assert run([*command, f"--workdir={wide}", "--config.training.micro_batches=2", "--config.mesh.fsdp=4"]) == 0
    gang.assert_same_losses(gang.records(wide), gang.records(whole), rtol=1e-3)
    last = next(line for line in reversed(gang.records(whole)) if line["split"] == "eval")
    assert {f"{name}_loss/{name}" for name in MEMBERS if name != "words"} <= last.keys()


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no column": (
        {"name": "discourse"},
        {},
        "the objective reads 'connectives', a column that the corpus is to be built without",
    ),
    "masks": (
        {"name": "sentence_distance", "masking": {"rate": 0.3}},
        {},
        "config.objective.masking is set, but the objective 'sentence_distance' masks nothing; leave it out",
    ),
    "another arrangement": (
        {"name": "sentence_reordering", "arrangement": "sentence_pairs"},
        {},
        "'sentence_reordering' needs cls_positions.*|sentence_reordering_labels.* may be sentence_reordering",
    ),
    "pieces": (
        {"name": "sentence_reordering", "arrangement_options": {"max_pieces": 9}},
        {},
        "config.objective.arrangement_options.max_pieces is 9; 2 to 5 is allowed",
    ),
    "two phases": (
        {"name": "sentence_reordering"},
        {
            "phases": {
                "phase1": {"num_steps": 2, "batch_size": 8, "max_length": 32},
                "phase2": {
                    "num_steps": 2,
                    "batch_size": 8,
                    "max_length": 32,
                    "objective": {"arrangement_options": {"max_pieces": 2}},
                },
            }
        },
        "phases of objective 'sentence_reordering' have 3 and 9 classes; give all phases the same config.objective.arr",
    ),
    "short rows": (
        {"name": "token_document", "short_row_probability": 0.3},
        {},
        "short_row_probability is set, but the arrangement 'token_document' makes no short rows",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_one_line(name: str, tmp_path: Path) -> None:
    options, changes, message = BAD[name]
    toy.write_text(tmp_path / "text.txt")
    with pytest.raises(UserError, match=message) as raised:
        made(tmp_path, options, **changes)
    assert "\n" not in str(raised.value)


def test_a_corpus_without_the_column_is_refused(text: Text) -> None:
    for module, column in ((discourse, "connectives"), (ir_relevance, "relevance")):
        with pytest.raises(UserError, match=f"has no column '{column}'"):
            objective(module, text)


def test_a_gpt_tokenizer_is_refused(labelled: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its texts have neither [CLS] nor [SEP]."""
    corpus, tokenizer = labelled
    for module in TASK_IDS:
        task = objective(module, labelled)
        with pytest.raises(UserError, match="needs|has no"):
            task.check_tokens(_Gpt())


class _Gpt:
    """A tokenizer without roles."""

    def need(self, role: str, what: str, advice: str = "") -> None:
        raise UserError(f"{what} needs {role}; {advice}")
