"""Heads of runs: exported by their tasks, imported into a workdir, and what a run starts from."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import pytest
from safetensors.numpy import load_file

from bert_jax.checkpoints.saving import save_params
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import HeadClass, of_facts
from bert_jax.interchange.family import family_of
from bert_jax.interchange.hugging_face import import_model
from bert_jax.interchange.initial import start_from
from bert_jax.interchange.loading import load
from bert_jax.interchange.tensors import WEIGHTS
from bert_jax.interchange.workdir import export_trained, import_into_workdir
from bert_jax.models.model import config_facts
from bert_jax.training.state import TrainState
from tests.interchange.heads import CONFIG, HEADS, TOKENIZER, assert_same, params_of
from tests.models.helpers import as_jax


def write_workdir(folder: Path, head: str, task: Any, labels: Any = (), seed: int = 0) -> None:
    facts = {
        "model": config_facts(CONFIG),
        "lowercase": True,
        "vocabulary_sha256": TOKENIZER.sha256,
        "task": task,
        "labels": list(labels),
        "run": {"identity": {"init": "somewhere"}},
    }
    save_params(str(folder), params_of(HEADS[head], CONFIG, seed), facts)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ({"name": "classification", "dropout_rate": 0.25}, "classification"),
        ({"name": "regression"}, "regression"),
        ({"name": "tagging"}, "tagging"),
        ({"name": "span_qa"}, "span_qa"),
        ({"name": "multiple_choice"}, "multiple_choice"),
        ({"name": "sentence_embeddings", "pooling": "cls"}, "encoder"),
        (None, "pretraining"),
        (None, "masked_lm"),
    ],
)
def test_a_run_is_exported_by_its_task(tmp_path: Path, task: Any, name: str) -> None:
    workdir, output = tmp_path / "run", tmp_path / "out"
    write_workdir(workdir, name, task, HEADS[name].labels)
    TOKENIZER.save(workdir / "vocab.txt")
    assert run(["export", f"--workdir={workdir}", f"--output={output}"]) == 0
    imported = import_model(output)
    assert imported.head == HEADS[name]
    assert_same(imported.params, params_of(HEADS[name], CONFIG))
    card = (output / "README.md").read_text()
    assert f"`{imported.head.architecture}`" in card
    assert "started from: somewhere" in card
    assert (output / "1_Pooling").exists() == (name == "encoder")


def test_the_best_step_is_exported_unless_one_is_asked_for(tmp_path: Path) -> None:
    write_workdir(tmp_path / "run", "tagging", {"name": "tagging"}, HEADS["tagging"].labels, seed=1)
    write_workdir(tmp_path / "run" / "best", "tagging", {"name": "tagging"}, HEADS["tagging"].labels, seed=2)
    TOKENIZER.save(tmp_path / "run" / "vocab.txt")
    for step, seed in ((None, 2), (0, 1)):
        export_trained(load(str(tmp_path / "run"), step), tmp_path / str(seed))
        assert_same(import_model(tmp_path / str(seed)).params, params_of(HEADS["tagging"], CONFIG, seed))


def test_an_encoder_out_of_any_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_workdir(tmp_path / "run", "span_qa", {"name": "span_qa"})
    TOKENIZER.save(tmp_path / "run" / "vocab.txt")
    flags = ["export", f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'out'}"]
    assert run([*flags, "--as=BertFor"]) == 2
    assert "unknown architecture 'BertFor'; did you mean" in capsys.readouterr().err
    assert run([*flags, "--pooling=mean"]) == 2
    assert "add --as=BertModel" in capsys.readouterr().err
    assert run([*flags, "--as=BertModel", "--pooling=mean"]) == 0
    out = capsys.readouterr().out
    assert "missing: pooler.dense.weight" in out
    assert "left out: qa_outputs" in out
    imported = import_model(tmp_path / "out")
    assert_same(imported.params, {"encoder": params_of(HEADS["span_qa"], CONFIG)["encoder"]})
    assert "license: unknown" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("name", ["pretraining", "classification", "multiple_choice"])
def test_through_a_workdir_and_out_again(exports: Path, tmp_path: Path, name: str) -> None:
    workdir = tmp_path / "workdir"
    report = import_into_workdir(str(exports / name), str(workdir))
    assert (report.missing, report.unused) == ((), ())
    assert load(str(workdir)).head == HEADS[name]
    export_trained(load(str(workdir)), tmp_path / "out")
    assert_same(load_file(tmp_path / "out" / WEIGHTS), load_file(exports / name / WEIGHTS))
    assert (tmp_path / "out" / "config.json").read_text() == (exports / name / "config.json").read_text()


def test_the_licence_of_the_parent_is_handed_on(copy_of: Any, tmp_path: Path) -> None:
    folder = copy_of("encoder")
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# theirs\n")
    import_into_workdir(str(folder), str(tmp_path / "workdir"))
    export_trained(load(str(tmp_path / "workdir")), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\nlicense: apache-2.0  #" in card
    assert f"started from: {folder.name} (licence: apache-2.0)" in card


def test_facts_of_an_unknown_task_are_named() -> None:
    with pytest.raises(UserError, match="there is no task 'taging' .*; did you mean 'tagging'"):
        of_facts({"task": {"name": "taging"}})
    assert of_facts({}) == HeadClass("BertForPreTraining")
    assert of_facts({"head": {"architecture": "BertForMaskedLM"}}) == HeadClass("BertForMaskedLM")
    assert set(family_of("bert").architectures) == {"BertLMHeadModel", *(head.architecture for head in HEADS.values())}


@pytest.mark.parametrize(
    ("source", "target", "note"),
    [
        ("pretraining", "tagging", "fresh: classifier; left out: pooler, mlm_head, nsp_head"),
        ("classification", "tagging", "fresh: classifier; left out: pooler, classifier"),
        ("tagging", "classification", "fresh: classifier, pooler; left out: classifier"),
        ("span_qa", "pretraining", "fresh: mlm_head, nsp_head, pooler; left out: qa_outputs"),
        ("classification", "classification", ""),
        ("multiple_choice", "regression", "fresh: classifier; left out: classifier"),
    ],
)
def test_heads_that_do_not_fit_are_left_out_and_named(exports: Path, source: str, target: str, note: str) -> None:
    initial = load(str(exports / source))
    fresh = params_of(HEADS[target], CONFIG, seed=5)
    notes: list[str] = []
    state = TrainState(
        **{field.name: None for field in dataclasses.fields(TrainState)}
        | {"params": as_jax(fresh), "step": jax.numpy.asarray(7)}
    )
    start = start_from(initial, CONFIG, TOKENIZER, notes.append, head=HEADS[target])
    params = start(state).params
    middle = f"; {note}" if note else ""
    assert notes == [f"starting from {exports / source}{middle}"]
    kept = {part for part in fresh if part not in note.partition(";")[0]}
    given = params_of(HEADS[source], CONFIG)
    assert_same(params, {part: given[part] if part in kept else fresh[part] for part in fresh})
