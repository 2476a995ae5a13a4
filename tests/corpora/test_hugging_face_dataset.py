"""The source ``hugging_face_dataset``, on local datasets: nothing is downloaded."""

import json
import sys

import pytest

datasets = pytest.importorskip("datasets", reason="needs the extra datasets")

import huggingface_hub  # noqa: E402

from bert_jax.corpora import hugging_face_dataset  # noqa: E402
from bert_jax.corpora import source as sources  # noqa: E402
from bert_jax.corpora.hugging_face_dataset import Source  # noqa: E402
from bert_jax.errors import UserError  # noqa: E402
from tests.corpora.reading import documents, items, skipped  # noqa: E402

ROWS = {
    "text": [f"Text {i}. More." for i in range(30)] + [None],
    "sentences": [["a. b.", "c"]] * 31,
    "page": [{"body": f"Body {i}."} for i in range(31)],
    "number": list(range(31)),
}


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    hugging_face_dataset._load.cache_clear()
    hugging_face_dataset._commit.cache_clear()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


@pytest.fixture
def saved(tmp_path):
    datasets.DatasetDict(train=datasets.Dataset.from_dict(ROWS)).save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


def test_rows_of_a_saved_dataset_are_documents(saved):
    source = Source(name=saved)
    assert documents(source) == {f"train#{i}": (f"Text {i}.", "More.") for i in range(30)}
    assert skipped(source) == {"train#30": "no text"}
    assert documents(Source(name=saved, text_column="sentences"))["train#7"] == ("a. b.", "c")
    assert documents(Source(name=saved, text_column="page.body"))["train#7"] == ("Body 7.",)
    assert source.describe()["rows"] == 31


def test_any_piece_size_gives_the_same_documents(saved, monkeypatch):
    source = Source(name=saved)
    whole = items(source)
    assert len(source.pieces()) == 1
    monkeypatch.setattr(sources, "PIECE_BYTES", 100)
    monkeypatch.setattr(hugging_face_dataset, "ROWS", 2)
    assert len(source.pieces()) > 3
    assert items(source) == whole


def test_a_folder_of_data_files_and_a_part_of_its_split(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    lines = [json.dumps({"text": t}) for t in ROWS["text"][:10]]
    (folder / "train.jsonl").write_text("\n".join(lines))
    source = Source(name=str(folder), split="train[:40%]")
    assert list(documents(source)) == [f"train[:40%]#{i}" for i in range(4)]
    before = source.fingerprint()
    (folder / "train.jsonl").write_text("\n".join(lines[1:]))
    assert source.fingerprint() != before


def test_errors_say_what_is_there_and_what_to_do(saved):
    with pytest.raises(UserError, match="no split 'test'; .*train"):
        Source(name=saved, split="test").pieces()
    with pytest.raises(UserError, match="no column 'txt'; .*did you mean 'text'"):
        Source(name=saved, text_column="txt").pieces()
    with pytest.raises(UserError, match="train, row 0 has int where text is needed"):
        items(Source(name=saved, text_column="number"))
    with pytest.raises(UserError, match="row 0 has no field 'page.title'; found: body"):
        items(Source(name=saved, text_column="page.title"))


def test_the_commit_is_pinned(saved, monkeypatch):
    """Fakes stand for the Hub's answer and its download, and record the requests."""
    commit, asked = "0123456789" * 4, []

    def dataset_info(self, name, revision=None):
        asked.append((name, revision))
        return huggingface_hub.hf_api.DatasetInfo(id=name, sha=commit, tags=[], downloads=0, likes=0, private=False)

    def load_dataset(name, config, split, revision):
        asked.append((name, config, split, revision))
        return datasets.load_from_disk(saved)[split]

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = Source(name="some/where", config_name="en", revision="v1")
    assert len(documents(source)) == 30
    assert asked == [("some/where", "v1"), ("some/where", "en", "train", commit)]
    assert source.pieces()[0].name == f"some/where@{commit}"
    assert source.describe()["revision"] == commit
    assert source.fingerprint() == Source(name="some/where", config_name="en", revision=commit).fingerprint()


def test_the_extra_is_named_where_it_is_missing(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install datasets"):
        Source(name=saved).pieces()
