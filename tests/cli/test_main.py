"""The dispatcher: verbs, one-line errors, exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bert_jax
from bert_jax.cli import main, pretrain, tokenize
from bert_jax.errors import UserError
from bert_jax.program import program

ROOT = Path(bert_jax.__file__).resolve().parent.parent


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a failing command prints last, without ``error: ``."""
    assert main.run(argv) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert not any("Traceback" in line for line in lines)
    return lines[-1].removeprefix("error: ")


def test_no_verb_lists_every_verb_with_what_it_does(capsys):
    assert main.run([]) == 2
    listed = capsys.readouterr().err
    for verb in ("tokenize", "vocab", "corpus", "pretrain", "export", "import", "fill-mask", "report", "status"):
        [line] = [line for line in listed.splitlines() if line.split()[:1] == [verb]]
        assert len(line.split()) > 4


def test_an_unknown_verb_names_the_nearest(capsys):
    assert "did you mean 'tokenize'?" in error_of(capsys, "tokenise")


def test_help_of_a_verb_shows_its_own_flags_only(capsys):
    with pytest.raises(SystemExit) as exit_:
        main.run(["vocab", "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "--config" in text
    assert "--output" in text
    assert "--verbosity" not in text


def test_version(capsys):
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"bert-jax {bert_jax.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["vocab", "--config=quickstart"], "--output"),  # a missing flag
        (["vocab", "--config=quickstart", "--output=v", "--outptu=3"], "did you mean '--output'?"),
        (["vocab", "--config=quickstart", "--outptu=v"], "did you mean '--output'?"),
        (["pretrain", "--config=quickstart", "--workdir=r", "--lr=1"], "argument '--lr=1'; here it is --learning_rate"),
        (["export", "--workdir=r", "--format=onnx"], "here it is --as"),
        (["finetune", "--config=glue", "--workdir=r", "--epoch=1"], "did you mean '--epochs'?"),
        (["pretrain", "quickstart"], "did you mean --config=quickstart?"),
        (["vocab", "--config=quickstart", "--output=v", "--config.seed"], "--config.seed=VALUE"),
        (["vocab", "--config=quickstart", "--output=v", "--config.corpora.path=x"], "did you mean 'corpus'?"),
        (["vocab", "--config=quickstart", "--output=v", "--config.vocab.sise=9"], "did you mean 'size'?"),
        (["vocab", "--config=quickstart", "--output=v", "--config.corpus.source=docstring"], "mean 'docstrings'?"),
        (["vocab", "--config=quickstart", "--output=v", "stray"], "'stray'"),
        (["pretrain", "--config=quickstart", "--workdir=r", "--seed=1"], "a key of the recipe is --config.seed=VALUE"),
        (
            ["pretrain", "--config=continue:replay", "--workdir=r", "--config.corpus.source=jsonl"],
            "give --config.corpus.parts.general.source, --config.corpus.parts.own.source",
        ),
        (["tokenize", "--vocab=v", "--config.seed=1", "a"], "--config=RECIPE"),
        (["tokenize", "--vocab=v", "a", "b", "c"], "at most two"),
        (["tokenize", "--vocab=nowhere.txt", "a"], "nowhere.txt"),
        (["tokenize", "--vocab=v", "--max_length=ten", "a"], "'ten'"),
        (["corpus", "--config=quickstart", "--output=c"], "bert-jax vocab"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(capsys, tmp_path, monkeypatch, argv, said):
    monkeypatch.chdir(tmp_path)
    assert said in error_of(capsys, *argv)
    assert not list(tmp_path.iterdir()), "something was left half-written"


def test_a_file_named_without_its_ending_is_found(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text("")
    error = error_of(capsys, "pretrain", "--config=recipe", "--workdir=r")
    assert "the file of that name is --config=recipe.py" in error


def test_the_traceback_can_be_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("BERT_JAX_TRACEBACK", "1")
    assert main.run(["tokenise"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "code", "advice"),
    [
        ("Unable to initialize backend 'foo': 'foo' is not in the list of known backends: ['cpu']", 2, "JAX_PLATFORMS"),
        ("Unable to initialize backend 'tpu': ALREADY_EXISTS", 1, "JAX_PLATFORMS"),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes", 1, "micro_batches"),
        ("can't start new thread", 1, "ulimit -v"),
    ],
)
def test_a_fault_of_the_machine_is_one_line(capsys, monkeypatch, found, code, advice):
    def fail(arguments):
        raise RuntimeError(found)

    monkeypatch.setattr(tokenize, "run", fail)
    assert main.run(["tokenize", "--vocab=v", "a"]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"error: {found}; ")
    assert advice in said


def test_too_few_addresses_are_said_before_libraries_abort(capsys, monkeypatch):
    monkeypatch.setattr(main.resource, "getrlimit", lambda which: (1_500_000_000, -1))
    assert "limited to 1.5 GB (ulimit -v)" in error_of(capsys, "tokenize", "--vocab=v", "a")


def test_an_error_over_several_lines_is_joined(capsys, monkeypatch):
    def fail(arguments):
        raise UserError("first\nsecond")

    monkeypatch.setattr(tokenize, "run", fail)
    assert error_of(capsys, "tokenize", "--vocab=v", "a") == "first second"


@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupt_that_a_library_makes_an_import_error_of(number, monkeypatch, capsys):
    """As numpy's own import does, when it is cut by Ctrl-C."""

    def cut(arguments):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise (ImportError, SystemError)[number - 1]("numpy._core.multiarray failed to import") from error

    monkeypatch.setattr(tokenize, "run", cut)
    assert main.run(["tokenize", "--vocab=x", "a"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_has_the_shells_exit_code(monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenize, "run", interrupt)
    assert main.run(["tokenize", "--vocab=v", "a"]) == 130


def test_an_interrupt_says_what_is_kept(tmp_path, monkeypatch, capsys):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "run", interrupt)
    command = ["pretrain", "--config=quickstart", f"--workdir={tmp_path / 'run'}"]
    assert main.run(command) == 130
    assert capsys.readouterr().err == "interrupted\n"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "vocab.txt").touch()
    assert main.run(command) == 130
    assert capsys.readouterr().err == f"interrupted; {tmp_path}/run keeps what is done, and the same command goes on\n"


def test_a_bug_is_not_disguised(monkeypatch):
    def fail(arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(tokenize, "run", fail)
    with pytest.raises(ZeroDivisionError):
        main.run(["tokenize", "--vocab=v", "a"])


def test_as_a_module_the_exit_code_reaches_the_shell():
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax", "tokenise"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "did you mean 'tokenize'?" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tokenize", "--vocab=FOLDER", "a"], "FOLDER has neither tokenizer.json nor vocab.txt"),
        (["tokenize", "--vocab=FILE/vocab.txt", "a"], "vocab.txt"),
        (["import", "--input=FILE", "--workdir=FOLDER/out"], "FILE"),
        (["pretrain", "--config=quickstart", "--workdir=FILE"], "FILE"),
        (["pretrain", "--config=quickstart", "--workdir=FILE/run"], "FILE"),
        (["pretrain", "--config=quickstart", "--workdir="], "--workdir= has no value"),
        (["pretrain", "--config=quickstart", "--workdir=x", "--config.seed", "3"], "write --config.seed=VALUE"),
        (["checkpoint", "verify", "--workdir=--"], "--workdir=--: '--' is not a value; write --workdir=VALUE"),
        (["tokenize", "--vocab=FILE", "bad \udcff"], "is not UTF-8"),
        (["predict", "--workdir=none", "--output=FOLDER", "a"], "cannot write FOLDER: FOLDER is a folder"),
        (["evaluate", "--workdir=none", "--input=none", "--output=FILE/a"], "cannot write FILE/a: FILE is a file"),
        (["retrieve", "--workdir=none", "--squad=none", "--output=FOLDER"], "cannot write FOLDER: FOLDER is a folder"),
        (["export", "--workdir=none", "--output=FILE"], "FILE exists already"),
    ],
)
def test_paths_and_texts_that_cannot_be_read_are_one_line(tmp_path, capsys, arguments, expected):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("text")
    folder.mkdir()

    def filled(text):
        return text.replace("FILE", str(file)).replace("FOLDER", str(folder))

    assert main.run([filled(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    assert filled(expected) in error


@pytest.mark.parametrize(
    ("python", "on_path", "said"),
    [
        ("work/.venv/bin/python3", "", ".venv/bin/python3 -m bert_jax"),
        ("opt/bin/python3", "", "{}/opt/bin/python3 -m bert_jax"),
        ("opt/bin/python3", "opt/bin", "python3 -m bert_jax"),
        ("opt/bin/python3", "other", "{}/opt/bin/python3 -m bert_jax"),
    ],
)
def test_a_command_can_be_typed_where_it_was_shown(tmp_path, monkeypatch, python, on_path, said):
    for file in (python, "other/python3"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch(0o755)
    (tmp_path / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", str(tmp_path / on_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / python))
    assert program() == said.format(tmp_path)
