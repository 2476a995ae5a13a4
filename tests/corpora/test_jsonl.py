"""The source ``jsonl``."""

import gzip
import json
import re

import pytest

from bert_jax.corpora import byte_ranges, file_source
from bert_jax.corpora.jsonl import Source
from bert_jax.corpora.source import Skipped
from bert_jax.errors import UserError
from tests.corpora.reading import cut_everywhere, documents, items, skipped


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return (str(path),)


def test_strings_and_lists_nested_fields_and_line_breaks(tmp_path):
    records = [{"text": "One. Two\nthree.", "a": {"b": ["Four. Five.", " six  "]}, "a.c": "Dot."}, {"text": None}]
    paths = write(tmp_path / "a.jsonl", records[0])
    assert documents(Source(paths=paths)) == {"a.jsonl@0": ("One.", "Two", "three.")}
    assert documents(Source(paths=paths, line_breaks="are_spaces")) == {"a.jsonl@0": ("One.", "Two three.")}
    assert documents(Source(paths=paths, text_field="a.b")) == {"a.jsonl@0": ("Four. Five.", "six")}
    assert documents(Source(paths=paths, text_field="a.c")) == {"a.jsonl@0": ("Dot.",)}
    assert items(Source(paths=write(tmp_path / "a.jsonl", records[1]))) == [Skipped("a.jsonl@0", "no text")]


def test_blank_lines_and_the_end_of_compressed_files(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf{"text": "A."}\r\n\r\n \n{"text": "B."}'))
    (tmp_path / "b.json").write_text("")
    source = Source(paths=(f"{tmp_path}/*",))
    assert documents(source) == {"a.json.gz@0": ("A.",), "a.json.gz@23": ("B.",)}
    assert skipped(source) == {"b.json": "empty file"}


def test_pieces_cut_anywhere_give_each_document_once(tmp_path, monkeypatch):
    paths = write(tmp_path / "a.jsonl", *({"text": "é" * (i % 5) + "Text."} for i in range(9)))
    size = (tmp_path / "a.jsonl").stat().st_size
    cut_everywhere(Source(paths=paths), size)
    whole = items(Source(paths=paths))
    monkeypatch.setattr(file_source, "PIECE_BYTES", 10)
    assert len(Source(paths=paths).pieces()) > 20
    assert items(Source(paths=paths)) == whole


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("size", [1, 7, 8000, 1 << 18])
def test_an_array_is_read_as_its_objects_are(indent, size, tmp_path, monkeypatch):
    records = [{"text": f'"{i}" é\\\\ ]}},[{{ [{{', "more": [{"a": [1, "]"]}, 2]} for i in range(50)]
    (tmp_path / "a.json").write_text(f"\ufeff \n{json.dumps(records, indent=indent)}\n")
    monkeypatch.setattr(byte_ranges, "BLOCK_BYTES", size)
    monkeypatch.setattr(file_source, "PIECE_BYTES", 100)
    source = Source(paths=(f"{tmp_path}/*",), line_breaks="are_spaces")
    assert len(source.pieces()) == 1
    found = documents(source)
    raw = (tmp_path / "a.json").read_bytes()
    assert [raw[int(name.partition("@")[2])] for name in found] == [ord("{")] * 50
    lines = Source(paths=write(tmp_path / "b.jsonl", *records), line_breaks="are_spaces")
    assert list(found.values()) == list(documents(lines).values())


def test_an_array_that_is_spoilt(tmp_path):
    source = Source(paths=(f"{tmp_path}/*",), bad_text="skip")
    (tmp_path / "a.json").write_text('[{"text": "A."}, 5, {"text" "B."},, {"text": "C."}]')
    assert list(documents(source).values()) == [("A.",), ("C.",)]
    assert skipped(source) == {"a.json@17": "not a JSON object", "a.json@20": "not JSON"}
    for spoilt in ('[{"text": "A."}] {"text": "B."}', '[{"text": "A."}, {"text": "B', '[{"text": "A."}'):
        (tmp_path / "a.json").write_text(spoilt)
        assert skipped(source) == {"a.json": "not JSON"}
        with pytest.raises(UserError, match=r"a\.json (goes on after|ends in the middle of) its JSON array"):
            items(Source(paths=source.paths))


@pytest.mark.parametrize(
    ("line", "reason", "message"),
    [
        (b'{"text": "a"', "not JSON", "at byte offset 15 has text that is not JSON"),
        (b"[" * 100_000, "not JSON", "at byte offset 15 has text that is not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "not JSON", "at byte offset 15 has text that is not JSON"),
        (b'["a"]', "not a JSON object", "at byte offset 15 has a JSON list"),
        (
            b'{"texts": "a", "id": 1}',
            "no such field",
            "at byte offset 15 has no field 'text'; did you mean 'texts'? found: id, texts",
        ),
        (b'{"text": 5}', "not text", "at byte offset 15 has int where text is needed"),
        (b'{"text": [5]}', "not text", "at byte offset 15 has int where text is needed, '5'"),
        (b'{"text": {"a": 1}}', "not text", "at byte offset 15 has dict where text is needed"),
        (b'{"text": "a\\ud800b"}', "not UTF-8", "at byte offset 15 has text that is not Unicode, at character 1"),
        (b'{"text": "\xff"}', "not UTF-8", "is not UTF-8 at byte offset 25 (byte 0xff)"),
    ],
)
def test_bad_lines_are_named_or_counted(tmp_path, line, reason, message):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ok"}\n' + line + b'\n{"text": "too"}\n')
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/a.jsonl {message}")) as caught:
        items(Source(paths=(f"{tmp_path}/*",)))
    assert "--config.corpus.options.bad_text=skip" in str(caught.value)
    source = Source(paths=(f"{tmp_path}/*",), bad_text="skip")
    assert [s for sentences in documents(source).values() for s in sentences] == ["ok", "too"]
    assert skipped(source) == {"a.jsonl@15": reason}
