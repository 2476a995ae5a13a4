"""What ``predict`` asks for before a model is read."""

import dataclasses
import json
import re
import shlex
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.saving import save_params
from bert_jax.cli.main import run
from bert_jax.models.model import config_facts
from bert_jax.runs.prediction import load_tuned, predict, read_examples, texts_as_examples, trial
from bert_jax.tasks.classification import Config
from bert_jax.training.mesh import unbox
from tests.tasks import toy_tasks


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "give either texts or --input=FILE"),
        (["a text", "--input=x.tsv"], "give either texts or --input=FILE"),
        (["a text"], "is neither a Hugging Face directory"),
        (["a text", "--option=alone"], "--option: found 'alone'; KEY=VALUE is needed"),
    ],
)
def test_slips(tmp_path, capsys, flags, said):
    assert run(["predict", f"--workdir={tmp_path}", *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_folder_is_named(tmp_path, capsys):
    assert run(["predict", f"--workdir={tmp_path / 'nope'}", "a text"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'nope'} is neither a Hugging Face directory" in said
    assert said.endswith("; there is no such folder\n")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A fresh classifier, saved as a run saves it; ``data.json`` says what its columns were."""
    folder = tmp_path_factory.mktemp("classifier")
    task = toy_tasks.make_task("classification", {"train": toy_tasks.examples("classification", 8)})
    tokenizer = task.setting.tokenizer
    facts = {
        "model": config_facts(task.setting.model),
        "lowercase": True,
        "vocabulary_sha256": tokenizer.sha256,
        "task": {"name": "classification", **dataclasses.asdict(Config())},
        "labels": list(task.setting.labels),
        "max_length": 16,
    }
    tokenizer.save(folder / tokenizer.file_name)
    params = jax.tree.map(np.asarray, unbox(task.init(jax.random.key(0))).params)
    save_params(str(folder), params, facts | {"data": {"format": "jsonl", "options": {}, "columns": {}}})
    paired = {"format": "jsonl", "options": {}, "columns": {"text": "first", "pair": "second"}}
    tokenizer.save(folder / "paired" / tokenizer.file_name)
    save_params(str(folder / "paired"), params, facts | {"data": paired})
    return folder


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["a text", "  "], "text 2 is [' ']; a text is needed for each example"),
        (["--input=nope.jsonl"], "no file nope.jsonl"),
        (["a text", "--option=nope=1"], "unknown key task.nope"),
    ],
)
def test_what_a_model_has_no_use_for(workdir, tmp_path, capsys, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    assert run(["predict", f"--workdir={workdir}", *flags]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_of_pairs_takes_texts_two_by_two(workdir, tmp_path, capsys):
    paired = ["predict", f"--workdir={workdir / 'paired'}"]
    assert run([*paired, "one text"]) == 2
    assert "text 1 is ['one text']; 2 texts, text and pair, are needed for each example" in capsys.readouterr().err
    assert run([*paired, "one text", "its pair", "a text", "another"]) == 0
    typed = capsys.readouterr().out
    assert len(typed.splitlines()) == 2
    (tmp_path / "raw.txt").write_text("one text\tits pair\n\na text\tanother\n")
    assert run([*paired, f"--input={tmp_path / 'raw.txt'}", "--format=raw_text"]) == 0
    output = capsys.readouterr()
    first, blank, last = map(json.loads, output.out.splitlines())
    assert blank == {"id": "2", "prediction": None}
    assert [{**record, "id": str(i)} for i, record in enumerate((first, last))] == [
        *map(json.loads, typed.splitlines())
    ]
    assert [first["id"], last["id"]] == ["1", "3"]
    assert "1 of 3 lines are blank; their prediction is null" in output.err
    assert run([*paired, f"--input={tmp_path / 'raw.txt'}"]) == 2
    assert "If the file has a text a line, add --format=raw_text" in capsys.readouterr().err
    (tmp_path / "raw.txt").write_text("one text\tits pair\na text\n")
    assert run([*paired, f"--input={tmp_path / 'raw.txt'}", "--format=raw_text"]) == 2
    assert "raw.txt:2 is ['a text']; 2 texts, text and pair, are needed" in capsys.readouterr().err


def test_it_reports_what_happens_to_the_texts(workdir, capsys):
    assert run(["predict", f"--workdir={workdir}", "中 文 字 符", "the film was " * 20]) == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 2
    assert "1 of 2 sequences are longer than 16 tokens" in output.err
    assert "of the tokens are [UNK]; is the vocabulary one of this language?" in output.err


def test_predictions_say_how_far_they_are(workdir):
    model = load_tuned(str(workdir))
    seen = []
    predict(
        model, texts_as_examples(model, {str(i): "a text" for i in range(40)}), progress=lambda *done: seen.append(done)
    )
    assert seen == [(32, 40), (40, 40)]


def test_what_to_type_next_lets_own_code_run(workdir):
    model = load_tuned(str(workdir))
    assert trial(model, "run") == 'predict --workdir=run "TEXT"'
    assert trial(model, "my runs/$1") == "predict --workdir='my runs/$1' \"TEXT\""
    own: Any = SimpleNamespace(encoder="toy.py@0123456789abcdef")
    assert trial(dataclasses.replace(model, config=own), "run") == 'predict --workdir=run --trust_code "TEXT"'


def test_outputs_that_are_no_numbers_are_said_to_be(workdir):
    model, notes = load_tuned(str(workdir)), list[str]()
    examples = texts_as_examples(model, {"a": ("a text",), "b": ("b",)})
    broken = dataclasses.replace(model, params=jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), model.params))
    for one in (model, broken):
        predict(one, examples, note=notes.append)
    said = [line for line in notes if "finite" in line]
    assert said == ["the model's outputs for 2 of 2 rows are not finite numbers; do not trust the predictions for them"]


HINT = re.compile(r"--config\.data\.[\w.]+=(?:'[^']*'|[^\s;]+)")


@pytest.mark.parametrize(
    ("name", "text", "texts"),
    [
        ("a.csv", '\ufefffirst;second\r\n"a ""good"" film; yes";x\r\n', 1),
        ("a.csv", "first\tsecond\na film\tb\n", 1),
        ("a.jsonl", '{"first": "a film", "second": "x"}\n{"first": "", "second": "y"}\n', 1),
        ("a.csv", "first,second\r'a',b\r\r", 1),
        ("a.json", '[{"first": "a", "second": "b"}]', 1),
        ("a.json", '{"version": 1, "data": [{"first": "a", "second": "b"}]}', 1),
    ],
)
def test_a_file_of_another_form_is_read_as_a_message_says(workdir, tmp_path, capsys, name, text, texts):
    (tmp_path / name).write_bytes(text.encode())
    command = ["predict", f"--workdir={workdir / 'paired'}", f"--input={tmp_path / name}"]
    if run(command):
        hints = shlex.split(" ".join(dict.fromkeys(HINT.findall(capsys.readouterr().err))))
        assert hints
        assert run([*command, *hints]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["id"] for record in records] == ["test-0"]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--config.data.splits.train=x", "--config.data.splits.train changes nothing here; keys of the task"),
        ("--config.model.size=tiny", "and config.data.format, config.data.options, config.data.columns"),
        ("--config.data.option.delimiter=;", "config.data.option.delimiter changes nothing here"),
        ("--config.data.options.delimitor=;", "unknown key config.data.options.delimitor; did you mean 'delimiter'"),
        ("--config.task.nope=1", "unknown key task.nope"),
    ],
)
def test_keys_that_change_nothing_are_named(workdir, tmp_path, capsys, flag, said):
    (tmp_path / "a.csv").write_text("first,second\na,b\n")
    assert run(["predict", f"--workdir={workdir / 'paired'}", f"--input={tmp_path / 'a.csv'}", flag]) == 2
    assert said in capsys.readouterr().err
    assert run(["predict", f"--workdir={workdir}", "a text", "--config.data.columns.text=x"]) == 2
    assert "keys of the task (config.task.KEY) count, and config.data with a file" in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"a film\ncaf\xe9\n", "a film\nbad \ud800".encode("utf-8", "surrogatepass")])
def test_raw_text_that_is_not_utf8_is_refused_with_its_line(workdir, tmp_path, capsys, text):
    (tmp_path / "a.txt").write_bytes(text)
    assert run(["predict", f"--workdir={workdir}", "--format=raw_text", f"--input={tmp_path / 'a.txt'}"]) == 2
    assert f"{tmp_path / 'a.txt'}:2 is not UTF-8; convert it (such as with: iconv" in capsys.readouterr().err


def test_json_is_read_by_a_model_that_was_trained_on_lines(workdir, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a film"}\n')
    model = load_tuned(str(workdir))
    model = dataclasses.replace(model, facts=model.facts | {"data": {"format": "conll", "options": {}, "columns": {}}})
    [example] = read_examples(model, str(tmp_path / "a.jsonl"), None, "test", print)
    assert example["text"] == "a film"
