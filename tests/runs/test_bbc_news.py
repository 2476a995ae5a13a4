"""The worked example: a zip of folders of texts, read as published, dealt 80 to 20."""

from collections import Counter

import pytest

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.examples.load import DataConfig, load
from bert_jax.recipes import recipes
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.tasks.classification import Task


def test_the_recipe_is_sound():
    FinetuningSettings.of(recipes.load("bbc_news").to_dict())


def test_what_stands_after_the_colon_is_read():
    assert recipes.load("bbc_news:bbc").data.splits.train == "bbc"


def data(name, **changes):
    return configuration.build(DataConfig, {**recipes.load(name).data.to_dict(), **changes}, "config.data")


def test_the_zip_as_published(shared_data):
    notes = []
    folder = shared_data("en_bbc_news")
    splits = load(data("bbc_news", overlap="warn"), folder, Task.roles, notes.append)
    classes = Counter(example["label"] for examples in splits.values() for example in examples)
    assert classes == {"business": 510, "entertainment": 386, "politics": 417, "sport": 511, "tech": 401}
    assert {name: len(examples) for name, examples in splits.items()} == {"train": 1780, "dev": 445}
    shares = Counter(example["label"] for example in splits["dev"])
    assert all(abs(shares[name] - count / 5) < 1 for name, count in classes.items())
    [odd] = [e for examples in splits.values() for e in examples if e["id"].endswith("sport/199.txt")]
    assert "£" in odd["text"]
    with pytest.raises(UserError, match="sport/199.txt is not UTF-8"):
        load(data("bbc_news", options={"bad_text": "error"}), folder, Task.roles, notes.append)


def test_texts_that_stand_twice_are_not_trained_on(shared_data):
    notes = []
    splits = load(data("bbc_news"), shared_data("en_bbc_news"), Task.roles, notes.append)
    assert len(splits["dev"]) == 445
    assert len(splits["train"]) == 1748
    assert not {e["text"] for e in splits["train"]} & {e["text"] for e in splits["dev"]}
