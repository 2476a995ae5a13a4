"""The command as a whole: one run to its end, starting from a model, and a workdir that does not fit."""

import gc
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bert_jax.checkpoints import restoring
from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.loading import load
from bert_jax.objectives.base import PretrainingObjective
from bert_jax.reporting import run_log
from bert_jax.reporting.report_speed import paces
from bert_jax.runs import pretraining
from bert_jax.training.loop import Run
from bert_jax.workdir import run_record
from tests import toy
from tests.runs.commands import first_state, pretrain, records

on_one_device = pytest.mark.usefixtures("one_device")
# The schedule is a part of the step: runs on one device with as many steps have a step that is compiled once.
LONGER = {"phase1": {"num_steps": 30, "batch_size": 8, "max_length": 32}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """The workdir of a run that has ended, on all eight devices."""
    folder = tmp_path_factory.mktemp("finished")
    kept = {"at": (0, "3, 600 words"), "keep": 1}
    assert pretrain(folder, toy.recipe(text, examples=None, checkpoints=kept)) == 0
    return folder / "run"


def shorter(text: Path, **changes: Any) -> dict[str, Any]:
    """The recipe of a run of two steps."""
    phases = {"phase1": {"num_steps": 2, "batch_size": 8, "max_length": 32}}
    return toy.recipe(text, phases=phases, schedule={"warmup_steps": 1}, examples=(), export=False, **changes)


def test_what_a_run_leaves(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, evaluations = records(finished, "train"), records(finished, "eval")
    assert [r["step"] for r in train] == list(range(2, 25, 2))
    assert [r["step"] for r in evaluations] == [0, 8, 16, 24]
    wanted = {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "perplexity", "mlm_accuracy_no_punctuation"}
    assert wanted <= evaluations[0].keys()
    rates = {"learning_rate", "gradient_norm", "tokens_per_second", "mfu", "input_wait_seconds"}
    assert wanted | rates <= train[0].keys()
    assert evaluations[-1]["mlm_loss"] < evaluations[0]["mlm_loss"]
    names = {path.name for path in finished.iterdir()}
    assert {"vocab.txt", "corpus", "checkpoints", "events", "report.html", "hugging_face", "run.json"} <= names
    baselines = json.loads((finished / "baselines.json").read_text())
    names = {"unigram_cross_entropy", "trigram_cloze_cross_entropy", "nsp_majority_rate"}
    assert set(baselines) - {"reckoned_for", "phases", "unknown_share"} == names
    assert [0.5 <= rates["nsp_majority_rate"] < 1 for rates in baselines["phases"].values()] == [True]
    shown = json.loads((finished / "examples.json").read_text())[0]["answer"]
    assert f"in the text: {shown}" in (finished / "report.html").read_text()
    capsys.readouterr()
    assert run(["status", f"--workdir={finished}", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["step"], status["last_save_step"]) == ("finished", 24, 24)
    assert run(["fill-mask", f"--workdir={finished}", "--json", "the [MASK] sees [MASK]."]) == 0
    filled = json.loads(capsys.readouterr().out)
    assert [len(candidates) for candidates in filled["predictions"]] == [5, 5]
    card = (finished / "hugging_face" / "README.md").read_text()
    assert not re.search(r'": "/', card)  # a path of this machine
    assert '"source": "text_files"' in card
    assert "| 3-gram cloze " in card  # the strongest first


def test_the_revisions_of_a_run_are_exported_one_by_one(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export that was cut goes on."""
    named, output = run_record.read_run(str(finished))["revisions"], tmp_path / "out"
    assert named == {"step0": 0, "step3": 3, "600_words": 7}
    assert saved_steps(str(finished)) == [*named.values(), 24]
    capsys.readouterr()
    assert run(["export", f"--workdir={finished}", "--revisions", f"--output={output}"]) == 0
    assert "3 revisions are in" in capsys.readouterr().out
    for name, step in named.items():
        jax.tree.map(np.testing.assert_array_equal, load(str(output / name)).params, load(str(finished), step).params)
    shutil.rmtree(output / "step3")
    assert run(["export", f"--workdir={finished}", "--revisions", f"--output={output}"]) == 0
    assert capsys.readouterr().out.count("exported to") == 1
    for flags, problem in (
        (("--as=BertModel",), "holds the revisions of another run, or by other flags; give another --output"),
        (("--step=3",), "--revisions exports every step that is named, each by its name; leave --step out"),
    ):
        assert run(["export", f"--workdir={finished}", "--revisions", f"--output={output}", *flags]) == 2
        assert problem in capsys.readouterr().err
    (tmp_path / "ep0-ba7-rank0.pt").write_bytes(b"PK")
    for workdir, problem in (
        (tmp_path / "none", f"there is no folder {tmp_path / 'none'}; give the folder of a run"),
        (output / "step3", "has no revisions; a run that is begun with --config.checkpoints.at=pythia"),
    ):
        assert run(["export", f"--workdir={workdir}", "--revisions", f"--output={tmp_path / 'other'}"]) == 2
        assert problem in capsys.readouterr().err
    for verb in (["export", "--workdir={}", "--output=x"], ["import", "--input={}", f"--workdir={tmp_path / 'x'}"]):
        assert run([word.format(tmp_path / "ep0-ba7-rank0.pt") for word in verb]) == 2
        assert "is a file of PyTorch, a pickle, which is not read here; launch/flexbert.py" in capsys.readouterr().err


def test_steps_to_trace_reach_the_loop_or_are_one_line(
    text: Path, tmp_path: Path, reached: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pretrain(tmp_path, toy.recipe(text), "--profile=20:25") == 2
    assert "--profile=20:25 ends past the run, which has 24 steps; give steps from 1 to 24" in capsys.readouterr().err
    assert not (tmp_path / "run").exists(), "before anything slow"
    assert pretrain(tmp_path, toy.recipe(text), "--profile=20:24") == 130
    assert [str(run.experiment.profiled) for run in reached] == ["20:24"]


def test_model_and_objective_are_made_once(
    text: Path, tmp_path: Path, reached: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: made.append(name) or function(*given, **named))

    counted(pretraining, "choose_model")
    counted(PretrainingObjective, "__init__")
    assert pretrain(tmp_path, toy.recipe(text)) == 130
    assert made == ["choose_model", "__init__"]
    [task] = [run.task for run in reached]
    assert task.setting.model.vocab_size == task.tokenizer.size  # type: ignore[attr-defined]


def test_the_report_of_a_run_says_how_fast_it_was(finished: Path) -> None:
    [pace] = paces(run_log.read_records(str(finished)), run_record.read_run(str(finished)))
    assert (len(pace.records), pace.steps) == (11, 2)
    assert pace.percentile(50) > 0
    assert "How fast it was" in (finished / "report.html").read_text()


@on_one_device
def test_going_on_from_an_export_with_new_pieces(
    finished: Path, tmp_path: Path, text: Path, reached: list[Run]
) -> None:
    old = (finished / "vocab.txt").read_text().split("\n")[:-1]
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*old, "mountains", "##zzz"]) + "\n")
    flags = [f"--init={finished / 'hugging_face'}", f"--vocab={vocab}"]
    assert pretrain(tmp_path, shorter(text), *flags) == 130
    assert reached[0].task.setting.model.vocab_size == len(old) + 2  # type: ignore[attr-defined]
    _, first = first_state(reached[0])
    rows = [
        np.asarray(params["encoder"]["embeddings"]["word_embeddings"])
        for params in (first.params, load(str(finished)).params)
    ]
    np.testing.assert_array_equal(rows[0][: len(old)], rows[1][: len(old)])


@on_one_device
def test_the_first_evaluation_is_that_of_the_model_started_from_and_the_first_saved_step_binds_the_vocabulary(
    finished: Path, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text((finished / "vocab.txt").read_text() + "extra\n")
    elsewhere = shorter(text, corpus={"path": str(finished / "corpus")})
    flags = [f"--init={finished}"]
    assert pretrain(tmp_path, elsewhere, *flags, f"--vocab={vocab}") == 2
    assert "made with another vocabulary" in capsys.readouterr().err
    assert pretrain(tmp_path, elsewhere, *flags, f"--vocab={finished / 'vocab.txt'}") == 0
    first, last = records(tmp_path / "run", "eval")[0], records(finished, "eval")[-1]
    assert first["mlm_loss"] == pytest.approx(last["mlm_loss"], abs=1e-5)
    assert first["step"] == 0
    assert pretrain(tmp_path, elsewhere, *flags, f"--vocab={vocab}") == 2
    assert f"was trained with another vocabulary than {vocab}" in capsys.readouterr().err


def test_import_makes_a_workdir(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir, again = tmp_path / "imported", tmp_path / "again"
    assert run(["import", f"--input={finished / 'hugging_face'}", f"--workdir={workdir}"]) == 0
    assert run(["export", f"--workdir={workdir}", f"--output={again}"]) == 0
    assert (again / "model.safetensors").read_bytes() == (finished / "hugging_face/model.safetensors").read_bytes()


def test_a_model_whose_record_is_gone_is_not_trained_over(
    finished: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An imported folder has step 0 alone, which counts as saved."""
    assert run(["import", f"--input={finished / 'hugging_face'}", f"--workdir={tmp_path / 'run'}"]) == 0
    (tmp_path / "run" / "run.json").unlink()
    files = sorted(tmp_path.rglob("*"))
    assert pretrain(tmp_path, toy.recipe(text)) == 2
    assert "has checkpoints, but no run.json that says whose they are; put it back" in capsys.readouterr().err
    assert {file for file in tmp_path.rglob("*") if file.name not in (".lock", "recipe.json")} <= {*files}


def test_a_workdir_of_another_config(
    finished: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = toy.write_recipe(tmp_path / "recipe.json", toy.recipe(text, optimizer={"weight_decay": 0.1}, seed=1))
    before = (finished / "run.json").read_bytes()
    assert run(["pretrain", f"--config={recipe}", f"--workdir={finished}"]) == 2
    error = capsys.readouterr().err
    assert "config.seed: 0 -> 1" in error
    assert "config.optimizer.weight_decay: 0.01 -> 0.1" in error
    assert (finished / "run.json").read_bytes() == before


@on_one_device
def test_a_longer_run_needs_extend(
    finished: Path, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, (tmp_path := tmp_path / "my runs") / "run")
    longer = toy.recipe(text, phases=LONGER)
    assert pretrain(tmp_path, longer) == 2
    assert "--extend" in capsys.readouterr().err
    assert pretrain(tmp_path, longer, "--extend") == 0
    assert f"fill-mask --workdir='{tmp_path / 'run'}' " in capsys.readouterr().err
    assert records(tmp_path / "run", "train")[-1]["step"] == 30
    [start] = run_record.read_run(str(tmp_path / "run"))["restarts"]
    assert start["extended"] == ["config.phases.phase1.num_steps: 24 -> 30"]
    assert "- step: 30\n" in (tmp_path / "run" / "hugging_face" / "README.md").read_text()
    assert pretrain(tmp_path, toy.recipe(text), "--extend") == 2
    assert "reached step 30, but the phases end at 24" in capsys.readouterr().err


def test_another_vocabulary_in_the_workdir(
    finished: Path, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    vocab = tmp_path / "run" / "vocab.txt"
    vocab.write_text(vocab.read_text() + "extra\n")
    assert pretrain(tmp_path, toy.recipe(text)) == 2
    assert f"{vocab} is damaged: its sha256 differs from vocab.json" in capsys.readouterr().err


@on_one_device
def test_a_disk_that_fills_during_a_save(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = ocp.CheckpointManager.save

    def save(self: ocp.CheckpointManager, step: int, **keywords: Any) -> bool:
        if step >= 15:
            raise OSError(28, "No space left on device")
        return real(self, step, **keywords)

    monkeypatch.setattr(ocp.CheckpointManager, "save", save)
    recipe = toy.recipe(text, phases=LONGER, export=False, examples=())
    assert pretrain(tmp_path, recipe) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "No space left on device" in error
    assert "free some space" in error
    monkeypatch.undo()

    beside: list[float] = []  # bytes on the devices beside the state that is read, in bytes of that state
    read, before = restoring._read_tree, live_bytes()

    def read_tree(folder: Any, shapes: Any, *rest: Any) -> Any:
        size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
        beside.append((live_bytes() - before) / size)
        return read(folder, shapes, *rest)

    monkeypatch.setattr(restoring, "_read_tree", read_tree)
    assert pretrain(tmp_path, recipe) == 0
    assert "resumed at step 10" in capsys.readouterr().err
    assert len(beside) == 1
    assert beside[0] < 0.1  # a restore holds one state, not a fresh one too


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@on_one_device
def test_corrected_commands_after_tries_that_failed_and_two_phases_with_one_clock(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text; too little for a corpus, but enough for a vocabulary, which is made again when the text has come."""
    monkeypatch.chdir(tmp_path)  # a relative workdir, as people type it
    source = tmp_path / "text.txt"
    assert pretrain(Path(), toy.recipe(source, corpus={"options": {"paths": ("nothing/*.txt",)}})) == 2
    source.write_text("ab ab.\n")
    assert pretrain(Path(), toy.recipe(source)) == 2
    source.write_text(text.read_text())
    phases = {
        "phase1": {"num_steps": 6, "batch_size": 16, "max_length": 16},
        "phase2": {"num_steps": 6, "batch_size": 8, "max_length": 32},
    }
    assert pretrain(Path(), toy.recipe(source) | {"phases": phases}) == 0
    assert len((tmp_path / "run" / "vocab.txt").read_text().split()) > 50
    train = records(tmp_path / "run", "train")
    assert [r["phase"] for r in train] == ["phase1"] * 3 + ["phase2"] * 3
    # The mean rate of two steps, warm-up over 4 of 12: one clock through both phases.
    rates = [1e-3 * (s / 4 if s < 4 else (12 - s) / 8) for s in range(12)]
    np.testing.assert_allclose([r["learning_rate"] for r in train], np.reshape(rates, (6, 2)).mean(1), rtol=1e-5)


def test_an_import_is_trained_from_not_in(finished: Path, tmp_path: Path, text: Path, capsys) -> None:
    assert run(["import", f"--input={finished / 'hugging_face'}", f"--workdir={tmp_path / 'run'}"]) == 0
    assert pretrain(tmp_path, toy.recipe(text)) == 2
    assert f"train from it with --init={tmp_path / 'run'}" in capsys.readouterr().err


def test_two_writers(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bert_jax.workdir.run_record import only_writer

    with only_writer(str(finished)), pytest.raises(UserError, match="in use by process"), only_writer(str(finished)):
        pass


@on_one_device
def test_a_mixture_of_two_sources(
    tmp_path: Path, text: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old text replayed among new: the shares of the rows, and each part's own held-out figures."""
    other = toy.write_text(tmp_path / "other.txt", documents=40, seed=5)
    options = toy.recipe(text)["corpus"]["options"]
    parts = {
        "old": {"options": options, "weight": 1},
        "new": {"options": {**options, "paths": (str(other),)}, "weight": 3},
        "only_evaluated": {"options": options, "weight": 0},
    }
    at_end = {"training": {"eval_every_steps": 30}, "checkpoints": {"every_steps": 30}}
    recipe = toy.recipe(text, corpus={"parts": parts, "options": {}}, phases=LONGER, **at_end)
    assert pretrain(tmp_path, recipe) == 0
    shown = capsys.readouterr().err
    assert "shares of the rows: new 75.0%, old 25.0%, only_evaluated 0.0%" in shown
    beat, first = (next(x for x in shown.splitlines() if y in x) for y in ("to beat", "step 0 held-out"))
    assert all(", only_evaluated " in line for line in (beat, first)), (beat, first)
    last = records(tmp_path / "run", "eval")[-1]
    assert {"mlm_loss", "mlm_loss/old", "mlm_loss/new", "nsp_accuracy/new", "mlm_loss/only_evaluated"} <= set(last)
    low, high = sorted((last["mlm_loss/old"], last["mlm_loss/new"]))
    assert low <= last["mlm_loss"] <= high
    baselines = json.loads((tmp_path / "run" / "baselines.json").read_text())
    low, high = sorted(baselines[f"unigram_cross_entropy/{part}"] for part in ("old", "new"))
    assert low < baselines["unigram_cross_entropy"] < high + 0.1
    assert {path.name for path in (tmp_path / "run" / "corpus").iterdir()} == set(parts)
    reached = request.getfixturevalue("reached")
    assert pretrain(tmp_path, recipe) == 130  # finished; nothing is built again
    assert len(reached) == 1
    said = capsys.readouterr().err
    assert "reading" not in said
    assert "steps are done already; --extend with more steps goes on" in said


def test_a_part_with_too_little_to_hold_out_is_named(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]):
    parts = {"old": {"options": toy.recipe(text)["corpus"]["options"]}}
    recipe = toy.recipe(text, corpus={"parts": parts, "options": {}, "heldout_fraction": 1e-9})
    assert pretrain(tmp_path, recipe) == 2
    error = capsys.readouterr().err
    assert "old has 60 documents with text" in error
    assert "--config.corpus.parts.old.options.document_boundary=pages" in error


@on_one_device
def test_the_best_step_of_a_run_in_epochs_is_its_result(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rate is so high that the model gets worse after the first evaluations."""
    config = toy.recipe(
        text,
        phases={"phase1": {"num_epochs": 2.0, "batch_size": 8, "max_length": 32}},
        schedule={"peak_learning_rate": 0.3, "warmup_fraction": 0.6},
        selection={"metric": "mlm_loss"},
        checkpoints={"every_steps": None},
        examples=(),
    )
    del config["schedule"]["warmup_steps"], config["training"]["eval_every_steps"]
    config["training"]["evaluations_per_epoch"] = 3
    assert pretrain(tmp_path, config, "--config.selection.metric=mlm_los") == 2
    assert "config.selection.metric is 'mlm_los'; did you mean 'mlm_loss'?" in capsys.readouterr().err
    assert pretrain(tmp_path, config) == 0
    evaluations = records(tmp_path / "run", "eval")
    steps = [record["step"] for record in evaluations]
    every = steps[1]
    assert steps == [*range(0, steps[-1], every), steps[-1]]
    assert len(steps) in (6, 7), "three an epoch, and step 0"
    best = min(evaluations[1:], key=lambda record: record["mlm_loss"])
    assert best["step"] < steps[-1]
    assert load(str(tmp_path / "run")).step == best["step"]
    assert f"best by mlm_loss at step {best['step']}" in capsys.readouterr().err
    kept = {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == set(steps[-3:]), "a save after each evaluation"
