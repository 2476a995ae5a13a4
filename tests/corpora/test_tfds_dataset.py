"""The source ``tfds_dataset``, on a dataset that TFDS itself prepares."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bert_jax.corpora import source as sources
from bert_jax.corpora import tfds_dataset
from bert_jax.corpora.tfds_dataset import Source
from bert_jax.errors import UserError
from tests.corpora.reading import documents, items, skipped

COUNT = 40


class TinyText(tfds.core.GeneratorBasedBuilder):
    """Texts as strings, nested and as lists."""

    VERSION = tfds.core.Version("1.2.0")
    code_path = None  # else TFDS asks a package for it that it does not require

    def _info(self):
        text = tfds.features.Text()
        features = {"text": text, "page": {"body": text}, "sentences": tfds.features.Sequence(text), "size": np.int64}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, download_manager):
        return {"train": self._generate_examples(COUNT), "test": self._generate_examples(1)}

    def _generate_examples(self, count):
        for i in range(count):
            text = f"Text {i} é. More.\n\nIts _NEWLINE_second." if i else ""
            yield i, {"text": text, "page": {"body": f"Body {i}."}, "sentences": ["a. b.", "c"], "size": i}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("tfds"))
    TinyText(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_examples_are_documents(data_dir):
    source = Source(name="tiny_text", data_dir=data_dir)
    found = documents(source)
    assert len(found) == COUNT - 1
    expected = {(f"Text {i} é.", "More.", "Its _NEWLINE_second.") for i in range(1, COUNT)}
    assert set(found.values()) == expected
    [empty] = skipped(source).items()
    assert empty[1] == "no text"
    numbers = [(i.id if hasattr(i, "id") else i.where) for i in items(source)]
    assert numbers == [f"train#{i}" for i in range(COUNT)]


def test_records_are_those_that_tfds_reads(data_dir):
    records = tfds.builder("tiny_text", data_dir=data_dir).as_data_source(split="train")
    expected = {f"train#{i}": (records[i]["page"]["body"].decode(),) for i in range(COUNT)}
    assert documents(Source(name="tiny_text:1.2.0", data_dir=data_dir, text_field="page.body")) == expected


def test_lists_blank_lines_and_parts_of_splits(data_dir):
    lists = documents(Source(name="tiny_text", data_dir=data_dir, text_field="sentences", split="test"))
    assert lists == {"test#0": ("a. b.", "c")}
    source = Source(name="tiny_text", data_dir=data_dir, document_rule="blank_line", split="train[:50%]")
    found = documents(source)
    assert len(found) + len(skipped(source)) >= COUNT
    assert found["train[:50%]#3@1"] == ("Its _NEWLINE_second.",)


def test_any_piece_size_gives_the_same_documents(data_dir, monkeypatch):
    source = Source(name="tiny_text", data_dir=data_dir)
    whole = items(source)
    assert len(source.pieces()) == 1
    for size in (100, 1000):
        monkeypatch.setattr(sources, "PIECE_BYTES", size)
        monkeypatch.setattr(tfds_dataset, "RECORDS", 3)
        assert len(source.pieces()) > 2
        assert items(source) == whole


def test_markers_of_a_dataset_are_line_breaks(data_dir, monkeypatch):
    monkeypatch.setitem(tfds_dataset.MARKERS, "tiny_text", ("_NEWLINE_",))
    found = documents(Source(name="tiny_text", data_dir=data_dir))
    assert all(s[-2:] == ("Its", "second.") for s in found.values())


def test_a_folder_and_the_card(data_dir):
    source = Source(name="", data_dir=f"{data_dir}/tiny_text/1.2.0", split="test", text_field="sentences")
    assert len(documents(source)) == 1
    assert source.describe()["dataset"] == "tiny_text/1.2.0"
    assert source.describe()["records"] == 1
    assert source.fingerprint() != Source(name="tiny_text", data_dir=data_dir).fingerprint()


def test_errors_say_what_is_there_and_what_to_do(data_dir):
    with pytest.raises(UserError, match="tfds build wikipedia/20230601.en --file_format=array_record --data_dir="):
        Source(name="wikipedia/20230601.en", data_dir=data_dir).pieces()
    with pytest.raises(UserError, match="no split 'validation'; .* found: test, train"):
        Source(name="tiny_text", data_dir=data_dir, split="validation").pieces()
    with pytest.raises(UserError, match="train#0 has no field 'page.title'; found: body"):
        items(Source(name="tiny_text", data_dir=data_dir, text_field="page.title"))
    with pytest.raises(UserError, match="train#0 has int where text is needed"):
        items(Source(name="tiny_text", data_dir=data_dir, text_field="size"))


def test_another_format_names_the_command_that_converts_it(data_dir, tmp_path):
    folder = tmp_path / "tiny_text" / "1.2.0"
    folder.mkdir(parents=True)
    origin = f"{data_dir}/tiny_text/1.2.0"
    for name in ("features.json", "dataset_info.json"):
        with open(f"{origin}/{name}") as file:
            facts = json.load(file)
        (folder / name).write_text(json.dumps({**facts, **({"fileFormat": "tfrecord"} if "splits" in facts else {})}))
    with pytest.raises(UserError, match=f"prepared as tfrecord.* tfds convert_format --dataset_version_dir={folder} "):
        Source(name="tiny_text", data_dir=str(tmp_path)).pieces()


def test_a_damaged_and_a_missing_dataset_are_named(data_dir, tmp_path):
    folder = tmp_path / "tiny_text" / "1.2.0"
    shutil.copytree(f"{data_dir}/tiny_text/1.2.0", folder)
    [shard] = folder.glob("*train*")
    good = shard.read_bytes()
    source = Source(name="", data_dir=str(folder))
    assert len(documents(source)) == COUNT - 1
    shard.write_bytes(good[: len(good) // 2])
    with pytest.raises(UserError, match="1.2.0 is damaged or not whole, in the records from 0 on of 'train'"):
        items(source)
    shard.unlink()
    with pytest.raises(UserError, match="1.2.0 is damaged or not whole"):
        items(source)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="no prepared TFDS dataset"):
        items(source)


def test_reading_leaves_tensorflow_and_jax_alone(data_dir):
    script = (
        "import sys; from bert_jax.corpora.tfds_dataset import Source\n"
        f"source = Source(name='tiny_text', data_dir={data_dir!r})\n"
        "from bert_jax.corpora.source import documents\n"
        "print(len(list(documents(source))), [m for m in ('tensorflow', 'jax', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{COUNT - 1} []"
