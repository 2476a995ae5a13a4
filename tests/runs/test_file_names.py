"""Files that are named after what a user names: two never have one name, and none is too long for a disk."""

import pytest

from bert_jax.configuration import build
from bert_jax.corpora.prepare import CorpusConfig
from bert_jax.errors import UserError
from bert_jax.experiments.grid import Grid
from bert_jax.experiments.nouns import Cell
from bert_jax.experiments.sweep import Sweep, sweep
from bert_jax.recipes import recipes
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.task_settings import predictions_file
from bert_jax.rows.phases import Phases


def settings(recipe, *keys):
    return FinetuningSettings.of(recipes.load(recipe, [f"--config.{key}=x" for key in keys]).to_dict())


def test_predictions_that_would_overwrite_each_other():
    train = ["tasks.c.data.splits.train", "tasks.c_dev.data.splits.train"]
    apart = settings("several", *train)  # each has the split dev, which is dealt
    files = [predictions_file(task, split) for task, one in apart.each.items() for split in one.data.names]
    assert files == [
        "predictions_c_train.jsonl",
        "predictions_c_dev.jsonl",
        "predictions_c_dev_train.jsonl",
        "predictions_c_dev_dev.jsonl",
    ]
    with pytest.raises(UserError) as refused:
        settings("several", *train, "tasks.c.data.splits.dev_dev")
    assert str(refused.value) == (
        "config.tasks.c.data: the split dev_dev and config.tasks.c_dev.data: the split dev would both be predicted "
        "into predictions_c_dev_dev.jsonl; rename one of them"
    )


@pytest.mark.parametrize(
    ("recipe", "keys", "length"),
    [
        ("several", [f"tasks.{'c' * 250}.data.splits.train"], 272),
        ("several", [f"tasks.{'é' * 80}.data.splits.train"], 182),  # of bytes
        ("several", [f"tasks.{'c' * 100}.data.splits.{split}" for split in ("train", f"test_{'d' * 50}")], 174),
        ("classification", ["data.splits.train", f"data.splits.dev{'x' * 250}"], 271),
    ],
)
def test_predictions_whose_name_is_too_long(recipe, keys, length):
    with pytest.raises(UserError, match=f"makes a file whose name has {length} bytes, .*; at most 160 are allowed"):
        settings(recipe, *keys)


def test_a_split_that_is_no_name():
    for split in ("dev/x", "dev x", "dev\n"):
        with pytest.raises(
            UserError, match="config.data has a split called 'dev.*'; letters, digits, _ and - are allowed"
        ):
            settings("classification", "data.splits.train", f"data.splits.{split}")


def test_phases_parts_and_columns():
    phase = {"num_steps": 1, "batch_size": 1, "max_length": 8}
    for name in ("a/b", "a b", "", "a\n", "p" * 101):
        with pytest.raises(UserError, match=r"config\.phases has the name .*; up to 100 letters, digits, _ and - are"):
            Phases.of({name: phase})
    with pytest.raises(UserError, match="a part of config.corpus.parts makes a file whose name has 161 bytes"):
        build(CorpusConfig, {"parts": {"a" * 161: {"path": "x"}}}, "config.corpus")
    with pytest.raises(UserError, match="a column of config.corpus.columns makes a file whose name has 161 bytes"):
        build(CorpusConfig, {"columns": {"a" * 161: {"annotator": "segmenter"}}}, "config.corpus")


def test_runs_of_a_grid(tmp_path):
    with pytest.raises(UserError, match="a run of the grid makes a file whose name has 166 bytes"):
        Grid([Cell(f"{'v' * 160}-seed0", {})], str(tmp_path))
    vary = {"task.a": ("1", "1+b=2"), "data.b": ("2", "2+b=2")}
    with pytest.raises(UserError, match=r"two combinations of --vary would both be called 'a=1\+b=2\+b=2'"):
        sweep(Sweep("classification", (), vary, (0,), str(tmp_path)))
