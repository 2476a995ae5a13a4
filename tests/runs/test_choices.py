"""Multiple choice and ranking by flags alone, from files in the forms of C3, DREAM and SWAG."""

import json
import re

import pytest

from bert_jax.cli.main import run
from bert_jax.configuration import build
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig, load
from bert_jax.recipes import recipes
from bert_jax.tasks import multiple_choice, ranking

C3 = [
    [["女：你好。", "男：再见。"], [{"question": "谁？", "choice": ["男", "女", "狗"], "answer": "女"}], "1-1"],
    [["女：茶。"], [{"question": "何？", "choice": ["茶", "水"], "answer": "茶"}] * 2, "1-2"],
]
SWAG = {
    "video-id": "a1",
    "sent1": "He sits.",
    "sent2": "He",
    **{f"ending{i}": f"runs {i}." for i in range(4)},
    "label": 2,
}
TABLE = ",".join(SWAG) + "\n" + ",".join(map(str, SWAG.values())) + "\n"


def examples(folder, recipe, *typed, roles=multiple_choice.Task.roles):
    data = recipes.load(recipe, [*typed, "--config.data.dev_fraction=0.0"]).to_dict()["data"]
    return load(build(DataConfig, data, "config.data"), folder, roles, lambda line: None)["train"]


def test_the_json_of_c3(tmp_path):
    (tmp_path / "c3.json").write_text(json.dumps(C3, ensure_ascii=False, indent=1), "utf-8")
    train = "--config.data.splits.train=c3.json"
    found = examples(tmp_path, "multiple_choice:c3", train)
    assert [example["id"] for example in found] == ["1-1-0", "1-2-0", "1-2-1"]
    expected = {"context": "女：你好。\n男：再见。", "question": "谁？", "choices": ["男", "女", "狗"], "label": "女"}
    assert found[0] == {"id": "1-1-0", **expected}
    with pytest.raises(UserError, match=r"has a JSON array, not an object") as raised:
        examples(tmp_path, "multiple_choice", train)
    hints = [train, *re.findall(r"--config\.data\.options\.\S+", str(raised.value))[:1]]
    with pytest.raises(UserError, match="no column 'context' .*; there are: 0, 2, answer, choice, number, question"):
        examples(tmp_path, "multiple_choice", *hints)
    named = [f"--config.data.columns.{role}={name}" for role, name in (("context", 0), ("choices", "choice"))]
    [first, *_] = examples(tmp_path, "multiple_choice", *hints, *named, "--config.data.columns.label=answer")
    assert {name: value for name, value in first.items() if name != "id"} == expected


@pytest.mark.parametrize(
    ("name", "text"), [("swag.jsonl", json.dumps(SWAG)), ("swag.csv", TABLE), ("swag.json", json.dumps([SWAG]))]
)
def test_the_columns_of_swag(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    expected = {"context": "He sits.", "question": "He", "choices": [f"runs {i}." for i in range(4)]}
    choices = "--config.data.columns.choices=('ending0','ending1','ending2','ending3')"
    typed = (choices, "--config.data.columns.context=sent1", "--config.data.columns.question=sent2")
    for recipe, flags in (("multiple_choice:swag", ()), ("multiple_choice", typed)):
        [example] = examples(tmp_path, recipe, f"--config.data.splits.train={name}", *flags)
        assert {role: example[role] for role in expected} == expected
        assert str(example["label"]) == "2"


def test_columns_of_a_ranking(tmp_path):
    (tmp_path / "a.tsv").write_text("question\tpair\tlabel\tgroup\nq\ta\t1\tx\nq\tb\t0\tx\n")
    typed = ("--config.data.splits.train=a.tsv", "--config.data.columns.text=question")
    first, _ = examples(tmp_path, "ranking", *typed, roles=ranking.Task.roles)
    assert first == {"id": "train-0", "text": "q", "pair": "a", "group": "x", "label": "1"}


@pytest.mark.parametrize("group", ["", "tasks.one."])
def test_another_task_has_no_roles_of_the_recipe(tmp_path, group):
    (tmp_path / "a.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "answer": 1}\n')
    typed = [f"--config.{group}task.name=multiple_choice", f"--config.{group}data.columns.label=answer"]
    config = recipes.load("several" if group else "classification", typed).to_dict()
    data = config["tasks"]["one"]["data"] if group else config["data"]
    assert data["columns"] == {"label": "answer"}
    typed.append(f"--config.{group}data.columns.text=context")  # what was typed is named
    config = recipes.load("several" if group else "classification", typed).to_dict()
    data = config["tasks"]["one"]["data"] if group else config["data"]
    with pytest.raises(UserError, match="config.data.columns.text is not a role of this task"):
        load(
            build(DataConfig, {"format": "table", **data, "splits": {"train": "a.jsonl"}}, "config.data"),
            tmp_path,
            multiple_choice.Task.roles,
            print,
        )


def test_a_choice_is_learned_and_predicted_by_flags_alone(tmp_path, one_device, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [SWAG | {"sent1": f"He sits {i}.", "label": i % 4} for i in range(24)]
    lines = [",".join(map(str, row.values())) for row in rows]
    (tmp_path / "swag.csv").write_text("\n".join([",".join(SWAG), *lines]) + "\n")
    flags = ["--steps=2", "--batch_size=8", "--max_length=24", "--config.vocab.size=200", "--config.export=False"]
    model = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 64, "max_length": 24}
    flags += [f"--config.model={model}", "--config.training.loggers=()", "--config.data.splits.train=swag.csv"]
    assert run(["finetune", "--config=multiple_choice:swag", "--workdir=run", *flags]) == 0
    new = {name: value for name, value in SWAG.items() if name != "label"}
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(new)}\n{json.dumps(new)}\n")
    capsys.readouterr()
    assert run(["predict", "--workdir=run", "--input=new.jsonl"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(len(record["probabilities"]), record["text"][:5]) for record in records] == [(4, "runs ")] * 2
