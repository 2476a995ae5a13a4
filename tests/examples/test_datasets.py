"""Datasets that TFDS and Hugging Face prepare: the same examples from either."""

import datasets
import numpy as np
import pytest
import tensorflow_datasets as tfds

from bert_jax.errors import UserError
from bert_jax.examples.columns import Roles
from tests.examples.loading import loaded

SENTIMENTS = ["bad", "good"]
TAGS = ["O", "B-X"]
ROLES = Roles(("text",), ("label", "words", "tags", "answers"))
ROWS = [
    {
        "text": f"Text {i} é",
        "label": i % 2 if i else -1,
        "words": [f"w{i}", "x"],
        "tags": [i % 2, 0],
        "answers": {"text": ["T"] * i, "answer_start": list(range(i))},
    }
    for i in range(3)
]
EXPECTED = [
    {
        "id": f"test-{i}",
        "text": f"Text {i} é",
        **({"label": SENTIMENTS[i % 2]} if i else {}),
        "words": [f"w{i}", "x"],
        "tags": [TAGS[i % 2], "O"],
        "answers": [{"text": "T", "answer_start": start} for start in range(i)],
    }
    for i in range(3)
]


class TinyTask(tfds.core.GeneratorBasedBuilder):
    """Rows with every kind of feature that the roles know."""

    VERSION = tfds.core.Version("1.0.0")
    code_path = None  # else TFDS asks a package for it that it does not require

    def _info(self):
        text = tfds.features.Text()
        features = {
            "text": text,
            "label": tfds.features.ClassLabel(names=SENTIMENTS),
            "words": tfds.features.Sequence(text),
            "tags": tfds.features.Sequence(tfds.features.ClassLabel(names=TAGS)),
            "answers": tfds.features.Sequence({"text": text, "answer_start": np.int32}),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, download_manager):
        return {"train": self._generate_examples(3), "validation": self._generate_examples(1)}

    def _generate_examples(self, count):
        yield from enumerate(ROWS[:count])


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    TinyTask(data_dir=str(folder), file_format="array_record").download_and_prepare()
    return folder


def test_tfds(tfds_folder):
    config = {"format": "tfds_dataset", "options": {"name": "tiny_task"}}
    assert list(loaded(tfds_folder, ROLES, **config, splits={"test": "train"})["test"]) == EXPECTED
    assert list(loaded(tfds_folder, ROLES, **config, splits={"test": "train[:2]"})["test"]) == EXPECTED[:2]
    folder = tfds_folder / "tiny_task" / "1.0.0"
    assert list(loaded(folder, ROLES, format="tfds_dataset", splits={"test": "validation"})["test"]) == EXPECTED[:1]


def test_tfds_datasets_and_splits_that_are_not_there(tfds_folder):
    with pytest.raises(UserError, match="no split 'dev', set config.data.splits; .*train, validation"):
        loaded(tfds_folder, ROLES, format="tfds_dataset", options={"name": "tiny_task"}, splits={"dev": "dev"})
    with pytest.raises(UserError, match="no prepared TFDS dataset 'glue/sst2' in .*; check config.data.options.name"):
        loaded(tfds_folder, ROLES, format="tfds_dataset", options={"name": "glue/sst2"}, splits={"dev": "validation"})


@pytest.fixture
def saved(tmp_path):
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=SENTIMENTS),
            "words": datasets.Sequence(datasets.Value("string")),
            "tags": datasets.Sequence(datasets.ClassLabel(names=TAGS)),
            "answers": datasets.Sequence({"text": datasets.Value("string"), "answer_start": datasets.Value("int32")}),
        }
    )
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_list(ROWS, features=features)
    datasets.DatasetDict({"train": rows, "validation": rows.select([0])}).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_hugging_face_datasets(saved):
    assert list(loaded(saved, ROLES, format="hugging_face_dataset", splits={"test": "train"})["test"]) == EXPECTED
    config = {"format": "hugging_face_dataset", "options": {"name": str(saved)}}
    assert list(loaded("", ROLES, **config, splits={"test": "validation"})["test"]) == EXPECTED[:1]
    with pytest.raises(UserError, match="no split 'valid'.*did you mean 'validation'"):
        loaded("", ROLES, **config, splits={"dev": "valid"})
