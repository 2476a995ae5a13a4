"""A folder for a user's own text: its recipe is read, and its commands can be typed and run."""

import csv
import importlib

import pytest

from bert_jax.cli import main
from bert_jax.recipes import recipes
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from tests import toy
from tests.docs import pages, test_walks

FITTING = [
    name for name in recipes.names() if name.startswith("pretrain/") and "parts" not in recipes.load(name).corpus
]
VARIANTS = ("modernbert:small", "modernbert_chinese:tiny", "ettin:1b")


def new(name, *flags):
    """Make a folder and return the commands of its README."""
    assert main.run(["new", name, *flags]) == 0
    with open(f"{name}/README.md", encoding="utf-8") as file:
        return list(pages.commands(file.read()))


@pytest.fixture
def typed(monkeypatch):
    """Return a function that reads a command as ``bert-jax`` does, without running it."""

    def read(words):
        seen = []
        module = importlib.import_module(f"bert_jax.cli.{main.verbs()[words[0]]}")
        monkeypatch.setattr(module, "run", seen.append)
        assert main._dispatch(words) == 0
        return seen[0]

    return read


def test_what_is_in_the_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = new("mine")
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"recipe.py", "README.md", ".gitignore", "text"}
    verbs = ["pretrain", "pretrain", "fill-mask", "finetune", "predict", "export", "export"]
    assert [words[0] for words in commands] == verbs
    assert "put .txt files into mine/text" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "mine")
    config = recipes.load("recipe.py")
    assert (config.corpus.source, config.corpus.options.paths) == ("text_files", "text/*.txt")
    assert config.phases == recipes.load("quickstart").phases


@pytest.mark.parametrize("recipe", [*FITTING, *VARIANTS])
def test_each_recipe_makes_a_folder_whose_commands_can_be_typed(recipe, tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    commands = new("mine", f"--from={recipe}")
    monkeypatch.chdir(tmp_path / "mine")
    trial, whole, *_ = [PretrainingSettings.of(typed(words).config.to_dict()) for words in commands[:2]]
    [parent] = [PretrainingSettings.of(recipes.load(recipe).to_dict())]
    assert whole.corpus.options["language"] == parent.corpus.options.get("language", "en")
    assert whole.model == parent.model
    for phase in whole.phases:
        lengths = [(of.phases[phase].get(key) or 0) for of in (trial, whole) for key in ("num_steps", "num_tokens")]
        assert lengths[0] * 10 <= lengths[2]
        assert lengths[1] * 10 <= lengths[3]
    for words in commands[2:]:
        typed(words)
    assert (commands[0][2] == "--init=MODEL") == (not {"size", "num_layers"} & {*parent.model})


@pytest.mark.parametrize("recipe", ["mass", "transformer_xl:tiny"])
def test_a_model_without_a_class_in_transformers_is_not_exported(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "export" not in [words[0] for words in new("mine", f"--from={recipe}")]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["there"], "there has recipe.py already; give another name"),
        (["there/recipe.py"], "there/recipe.py exists already, and is no folder"),
        (["mine", "--from=classification"], "is one for fine-tuning; name one for pretraining"),
        (["mine", "--from=continue:replay"], "mixes several texts"),
        (["mine", "--from=other.py"], "is a file; copy it"),
        (["mine", "--from=quickstat"], "did you mean 'quickstart'"),
        (["gs://bucket/mine"], "name a folder of this machine"),
    ],
)
def test_what_is_refused_leaves_nothing(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "recipe.py").write_text("mine")
    assert main.run(["new", *flags]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "recipe.py"]


def test_a_folder_that_is_there_is_taken(tmp_path, monkeypatch, capsys):
    place = tmp_path / "novels"
    (place / "text").mkdir(parents=True)
    (place / "text" / "a.txt").write_text("Text.")
    monkeypatch.chdir(place)
    assert new(".")
    assert "put .txt files into text, then follow README.md" in capsys.readouterr().out
    assert (place / "README.md").read_text().startswith("# novels\n")
    assert (place / "text" / "a.txt").read_text() == "Text."
    assert recipes.load("recipe.py")


@pytest.mark.heavy
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("recipe", ["quickstart", "modernbert:small", "gpt2", "clm_mlm"])
def test_the_commands_run(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = new("mine", f"--from={recipe}")
    monkeypatch.chdir(tmp_path / "mine")
    for seed in range(20):
        toy.write_text(tmp_path / "mine" / "text" / f"{seed}.txt", documents=4, seed=seed)
    sentences = [text for text in (tmp_path / "mine" / "text" / "0.txt").read_text().split("\n") if text]
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((text, "house" in text) for text in sentences * 3)])
    for words in commands:
        typed = [word for word in words if not word.startswith(("--config.phases", "--config.schedule"))]
        assert main.run([*typed, *test_walks.short(typed)]) == 0, words
