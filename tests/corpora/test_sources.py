"""What every source of documents promises."""

import dataclasses
import json
import pickle
import uuid

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bert_jax import configuration
from bert_jax.corpora import file_source
from bert_jax.corpora.bad_text import BadTextError
from bert_jax.corpora.jsonl import Source as JsonLines
from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.storage import files
from tests.corpora.reading import items

SOURCES = sorted(catalogue.parts("corpora", having="Source"))


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_a_frozen_dataclass_with_the_contract(name):
    made = catalogue.find("corpora", name).Source
    assert made.__dataclass_params__.frozen
    assert all(callable(getattr(made, method)) for method in ("pieces", "read", "fingerprint", "describe"))
    assert all(field.name in configuration.typing.get_type_hints(made) for field in dataclasses.fields(made))


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "docstrings"])
def test_options_are_typed(name):
    made = catalogue.find("corpora", name).Source
    required = {
        f.name: ("x",) if f.name == "paths" else "x" for f in dataclasses.fields(made) if f.name in ("paths", "name")
    }
    built = configuration.build(made, {**required, "bad_text": "skip", "language": "de"}, "options")
    assert (built.bad_text, built.language) == ("skip", "de")
    assert pickle.loads(pickle.dumps(built)) == built
    with pytest.raises(UserError, match="bad_text is 'ignore'; allowed: 'error', 'skip'"):
        configuration.build(made, {**required, "bad_text": "ignore"}, "options")


def test_facts_for_the_manifest_are_json(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    facts = json.loads(json.dumps(JsonLines(paths=(f"{tmp_path}/*",)).describe()))
    assert facts["files"] == 1
    assert facts["file_bytes"] == 13


def test_an_error_of_a_worker_arrives_whole(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xff")
    with pytest.raises(BadTextError) as caught:
        items(JsonLines(paths=(f"{tmp_path}/*",)))
    sent = pickle.loads(pickle.dumps(caught.value))
    assert str(sent) == str(caught.value)
    assert sent.skip_or_raise("skip") == caught.value.skip_or_raise("skip")


class Checksums(MemoryFileSystem):
    """A store that keeps checksums and does not like to be read."""

    protocol = "checksums"
    tag = "1"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("checksums://", "memory://"))

    def info(self, path, **options):
        return {**super().info(path, **options), "etag": self.tag}

    def _open(self, path, mode="rb", **options):
        assert mode != "rb", "read to be hashed"
        return super()._open(path, mode, **options)


def test_a_checksum_of_the_store_stands_for_the_content(monkeypatch):
    fsspec.register_implementation("checksums", Checksums, clobber=True)
    name = f"checksums://{uuid.uuid4().hex}/a"
    files.write_text(name, "text")
    before = file_source.hash_files([name], ())
    monkeypatch.setattr(Checksums, "tag", "2")
    assert file_source.hash_files([name], ()) != before
