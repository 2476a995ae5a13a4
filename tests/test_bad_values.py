"""Values that are no good are one line, before anything is made."""

import json
import os
import shutil
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.workdir.run_record import only_writer, read_run
from tests import toy
from tests.tasks import toy_tasks

ORIGINAL = Path(__file__).resolve().parent / "interchange" / "original"
LINES = {
    "--config.optimizer.clip_norm=0": "config.optimizer.clip_norm is 0.0; more than 0 is needed, or None",
    "--config.optimizer.clip_norm=-1": "config.optimizer.clip_norm is -1.0; more than 0 is needed, or None",
    "--config.objective.next_sentence_weight=-1": "config.objective.next_sentence_weight is -1.0; at least 0",
    "--config.checkpoints.keep_every_steps=-1": "config.checkpoints.keep_every_steps is -1; at least 1",
    "--heartbeat_seconds=nan": "argument --heartbeat_seconds: found 'nan'; a number of seconds above 0",
    "--heartbeat_seconds=1e300": "argument --heartbeat_seconds: found '1e300'; a number of seconds above 0, at most",
    "--config.training.stall_seconds=1e308": "stall_seconds is 1e+308; more than 0 and at most 10,000,000 is needed",
    "--arrival_seconds=-5": "argument --arrival_seconds: found '-5'; a number of seconds above 0",
    "--config.loader.num_workers=100000": "config.loader.num_workers is 100,000; 0 to 256 are allowed",
    "--config.phases.phase1.batch_size=1000000000": "its rows alone take 689.18 GiB on this machine",
    "--config.training.eval_rows=1000000000": "config.training.eval_rows is 1,000,000,000: its rows alone take",
    "--config.seed=11111111111111111111111": "config.seed has 23 digits; a whole number below 2^63",
    f"--learning_rate={'9' * 400}": "config.schedule.peak_learning_rate is inf; a finite number is needed",
    f"--config.phases.phase1.num_epochs={'9' * 400}": "phases.phase1.num_epochs is 400 digits long; a finite number",
    "--config.model.hidden_size=100000000000": "hidden_size is 100,000,000,000; 1 to 1,048,576 are allowed",
    "--config.model.mlp_dim=4000000": "training takes at least",
    "--config.model.attention_kernel=rows": "is 'rows', which runs on TPUs, and the devices are cpu; here 'plain' can",
    "--config.model.attention_kernel=cudnn": "is 'cudnn', which runs on NVIDIA GPUs, and the devices are cpu; here",
    "--config.model.attention_kernel=flash": "is 'flash', which runs on NVIDIA GPUs, and the devices are cpu; here",
    "--config.model.attention_kernel=fast": "config.model.attention_kernel is 'fast'; ",
    "--config.corpus.heldout_fraction=-1": "config.corpus.heldout_fraction is -1.0; a number between 0 and 1 is needed",
    "--config.corpus.num_workers=-1": "config.corpus.num_workers is -1; at least 0 is needed",
    "--config.corpus.part_bytes=-1": "config.corpus.part_bytes is -1; at least 0 is needed",
    "--config.objective.name=None": "there is no objective 'None' in bert_jax.objectives; valid: ",
    "--config.corpus.parts={'a':5}": "config.corpus.parts.a is 5; the keys of a part are needed",
    "--config.phases.phase1.num_steps=3000000000": "the phases have 3,000,001,500 steps in all; at most 2,147,483,647",
    "--config.model.sise=tiny": "unknown key config.model.sise; did you mean 'size'?",
    "--config.objective.nam=mlm": "unknown key config.objective.nam; did you mean 'name'?",
    "--config.examples=('none',)": "config.examples has no [MASK] in 'none'; write [MASK] where a word is to be found",
    "--config.examples=('\\ud800 [MASK]',)": r"the recipe has '\ud800', half of a character",
    "--config.corpus.parts={'..': {'path': 'x'}}": "config.corpus.parts has the key '..'; a key is text without dots",
    "--config.objective.next_sentence_weight=1e39": "_weight is 1e+39; at least 0 is needed, and 1e-6 to 1e6 where",
    "--config.schedule.peak_learning_rate=1e39": "peak_learning_rate is 1e+39; below 3.4e38 is needed, for float32",
    "--config.optimizer.b1=0.9999999999999999": "config.optimizer.b1 is 0.9999999999999999; from 0 to below 1 is",
    "--config.model.dropout_rate=0.99999999999": "config.model.dropout_rate is 0.99999999999; 0 or more and below 1",
    "--config.model..size=small": "--config.model..size is not a key; write one such as --config.model.size=VALUE",
    "--config.model.hidden_size=32#c": "config.model.hidden_size is '32#c'; expected int",
    "--peak_learning_rate=1e-4": "a key of the recipe is --config.schedule.peak_learning_rate=VALUE",
    "--learning_rate=fast": "config.schedule.peak_learning_rate is 'fast'; expected float",
    "--batch_size=8": "give --config.phases.phase1.batch_size=VALUE or --config.phases.phase2.batch_size=VALUE",
    "--config.schedule={'warmup_steps': 5, 'warmup_fraction': 0.1}": "has warmup_steps and warmup_fraction, of which",
    "--hidden_sise=64": "a key of the recipe is --config.model.hidden_size=VALUE",
    "--workdir=/": "--workdir=/ is not a place for one run",
    "--workdir=a\0b": "is not UTF-8 text",
    "--workdir=a\ud800": "is not UTF-8 text",
}


@pytest.mark.parametrize("flag", LINES)
def test_one_line_and_nothing_left_behind(flag, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--config.model.num_layers=4000", flag] if "mlp_dim" in flag else [flag]  # fits no machine
    assert run(["pretrain", "--config=quickstart", "--workdir=new", *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert LINES[flag] in said
    assert not list(tmp_path.iterdir())


def test_a_corpus_is_no_workdir(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text("{}")
    assert run(["pretrain", "--config=quickstart", f"--workdir={tmp_path}"]) == 2
    assert f"--workdir={tmp_path} is a corpus; give a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_the_current_folder_was_removed(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(["status", "--workdir=run"]) == 2
    assert "error: the current folder was removed; change to one that is there" in capsys.readouterr().err


def test_a_length_that_no_table_holds(capsys):
    assert run(["tokenize", "--vocab=vocab.txt", "--max_length=99999999999", "a"]) == 2
    assert "found '99999999999'; a whole number from 1 to 1,000,000" in capsys.readouterr().err


def test_a_refused_run_leaves_no_folder(tmp_path, capsys):
    recipe = toy.write_recipe(tmp_path / "recipe.json", toy.recipe(toy.write_text(tmp_path / "text.txt")))
    flags = [f"--config={recipe}", f"--workdir={tmp_path / 'runs' / 'new'}"]
    assert run(["pretrain", *flags, "--config.vocab.path=nowhere"]) == 2
    assert run(["pretrain", *flags, "--config.corpus.options.paths=nowhere"]) == 2
    assert not (tmp_path / "runs").exists()
    os.mkfifo(tmp_path / "config.json")
    assert run(["pretrain", *flags, f"--init={tmp_path}"]) == 2
    assert not (tmp_path / "runs").exists()
    (tmp_path / "bad.txt").write_bytes(b"Text.\n\0")  # which is found once the run has begun
    assert run(["pretrain", *flags, f"--config.corpus.options.paths={tmp_path / 'bad.txt'}"]) == 2
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs" / "new").mkdir(parents=True)
    assert run(["pretrain", *flags, "--config.vocab.path=nowhere"]) == 2
    assert list((tmp_path / "runs").rglob("*")) == [tmp_path / "runs" / "new"]  # it was there before


@pytest.mark.parametrize("made", ["checkpoints", "run-seed0/checkpoints", "inputs/corpus", "corpus.partial", None])
@pytest.mark.parametrize("error", [UserError, OSError])
def test_an_error_takes_no_work_away(made, error, tmp_path):
    """As of the second run of a grid, or of a disk that fills up in a build."""

    def work():
        with only_writer(str(tmp_path / "new")):
            (tmp_path / "new" / (made or "run-seed1")).mkdir(parents=True)
            raise error("the second run diverged")

    with pytest.raises(error):
        work()
    assert (tmp_path / "new").exists() == bool(made)
    assert not made or (tmp_path / "new" / made).exists()


def test_epochs_beyond_number(tmp_path, capsys):
    recipe = toy_tasks.recipe("classification")
    recipe["phases"]["train"]["num_epochs"] = 1e308
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    assert toy_tasks.finetune(tmp_path) == 2
    assert (
        "config.phases.train.num_epochs is 1e+308; more than 0 and at most 1,000,000 is allowed"
        in capsys.readouterr().err
    )


def test_a_kernel_for_other_devices_is_refused_before_training(tmp_path, capsys):
    toy_tasks.write_toy(tmp_path, "classification")
    assert toy_tasks.finetune(tmp_path, "--config.model.attention_kernel=cudnn") == 2
    said = capsys.readouterr().err
    assert "error: config.model.attention_kernel is 'cudnn', which runs on NVIDIA GPUs, and the devices are cpu" in said
    assert not (tmp_path / "run").exists()


def test_a_split_to_predict_is_found_wrong_before_training(tmp_path, capsys):
    whole = [{"text": f"a text {i}", "positive": f"the text {i}"} for i in range(8)]
    for name in ("train", "dev"):
        toy_tasks.write_examples(tmp_path / f"{name}.jsonl", whole)
    toy_tasks.write_examples(tmp_path / "test.jsonl", [{**whole[0], "similarity": "high"}])
    recipe = toy_tasks.recipe("sentence_embeddings")
    recipe["data"]["splits"]["test"] = "test.jsonl"
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    assert toy_tasks.finetune(tmp_path) == 2
    assert "has the similarity 'high'; a number is needed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["{}", '{"format": 2, "identity": 5}', "[]", "{", None])
def test_a_run_that_has_steps_and_no_record_of_what_it_is(content, tmp_path, capsys):
    recipe = toy.write_recipe(tmp_path / "recipe.json", toy.recipe(toy.write_text(tmp_path / "text.txt")))
    step = tmp_path / "run" / "checkpoints" / "7"
    step.mkdir(parents=True)
    (step / "commit_success.txt").write_text("")
    if content is not None:
        (tmp_path / "run" / "run.json").write_text(content)
    assert run(["pretrain", f"--config={recipe}", f"--workdir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "every checkpoint has a copy" in said
    assert step.exists()


def test_the_home_folder_is_expanded_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(["status", "--workdir=~/none"]) == 2
    assert f"{tmp_path}/none" in capsys.readouterr().err
    assert run(["pretrain", "--config=quickstart", "--workdir=~"]) == 2
    assert f"--workdir={tmp_path} is not a place for one run" in capsys.readouterr().err
    assert run(["status", "--workdir", "~/none"]) == 2  # in quotes
    assert f"{tmp_path}/none" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with only_writer("~/run"):  # from Python
        for same in ("run/", "link", "link/../run", "run/../run"):
            with pytest.raises(UserError, match="in use by process"), only_writer(same):
                raise AssertionError("two hold it")
    assert not (tmp_path / "~").exists()


def test_a_recipe_nested_too_deep(tmp_path, capsys):
    (tmp_path / "recipe.json").write_text("[" * 100_000)
    assert run(["pretrain", f"--config={tmp_path / 'recipe.json'}", f"--workdir={tmp_path / 'new'}"]) == 2
    assert "recipe.json is not JSON: maximum recursion depth exceeded" in capsys.readouterr().err


def test_a_pipe_is_not_read(tmp_path, capsys):
    os.mkfifo(tmp_path / "config.json")
    assert run(["import", f"--input={tmp_path}", f"--workdir={tmp_path / 'new'}"]) == 2
    assert f"{tmp_path / 'config.json'} is a pipe, a socket or a device" in capsys.readouterr().err
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(UserError, match=r"run.json is a pipe"):
        read_run(str(tmp_path))


def test_a_size_that_no_model_has_is_not_imported(tmp_path, capsys):
    shutil.copytree(ORIGINAL, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "bert_config.json").read_text())
    (tmp_path / "model" / "bert_config.json").write_text(json.dumps({**config, "hidden_size": 10**12}))
    assert run(["import", f"--input={tmp_path / 'model'}", f"--workdir={tmp_path / 'new'}", "--lowercase=true"]) == 2
    assert "hidden_size is 1,000,000,000,000; 1 to 1,048,576 are allowed" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
