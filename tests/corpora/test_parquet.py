"""The source ``parquet``."""

import pyarrow
import pyarrow.parquet
import pytest

from bert_jax.corpora import parquet
from bert_jax.corpora.parquet import Source
from bert_jax.errors import UserError
from tests.corpora.reading import documents, items, skipped


def write(path, columns, row_group_size=2):
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, path, row_group_size=row_group_size)
    return Source(paths=(str(path),))


def test_row_groups_are_pieces_and_rows_documents(tmp_path):
    source = write(tmp_path / "a.parquet", {"text": ["One. Two.", "a\nb", None, "", "Five."], "id": range(5)})
    assert [(p.start, p.stop) for p in source.pieces()] == [(0, 1), (1, 2), (2, 3)]
    assert all(p.num_bytes > 0 for p in source.pieces())
    assert documents(source) == {"a.parquet#0": ("One.", "Two."), "a.parquet#1": ("a", "b"), "a.parquet#4": ("Five.",)}
    assert skipped(source) == {"a.parquet#2": "no text", "a.parquet#3": "no text"}


def test_any_row_group_size_gives_the_same_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS", 20)
    texts = [f"Text {i}." for i in range(60)]
    found = [items(write(tmp_path / "a.parquet", {"text": texts}, n)) for n in (1, 7, 30, 100)]
    assert len(found[0]) == 60
    assert all(f == found[0] for f in found)


def test_lists_structs_and_large_strings(tmp_path):
    large = pyarrow.array(["Large."], pyarrow.large_string())
    write(tmp_path / "a.parquet", {"l": [["One. Two.", "3"]], "s": [{"t": "In."}], "large": large})
    paths = (f"{tmp_path}/*",)
    for column, sentences in {"l": ("One. Two.", "3"), "s.t": ("In.",), "large": ("Large.",)}.items():
        assert documents(Source(paths=paths, text_column=column)) == {"a.parquet#0": sentences}
        assert Source(paths=paths, text_column=column).pieces()[0].num_bytes > 0


def test_a_wrong_column_lists_those_there_before_anything_is_read(tmp_path):
    write(tmp_path / "a.parquet", {"body": ["x"], "id": [1]})
    with pytest.raises(UserError, match="a.parquet has no column 'text'; set .*text_column; .*body, id"):
        Source(paths=(f"{tmp_path}/*",)).pieces()
    with pytest.raises(UserError, match="row 0 has int where text is needed"):
        items(Source(paths=(f"{tmp_path}/*",), text_column="id"))


def test_bad_text_and_damaged_files_are_named_or_counted(tmp_path):
    bad = pyarrow.Array.from_buffers(pyarrow.string(), 2, pyarrow.array([b"ok", b"\xff"]).buffers())
    write(tmp_path / "a.parquet", {"text": bad})
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(UserError, match="b.parquet is damaged or not a parquet file"):
        Source(paths=(f"{tmp_path}/*",)).pieces()
    with pytest.raises(UserError, match="a.parquet, row 1 has text that is not Unicode"):
        items(Source(paths=(f"{tmp_path}/a*",)))
    source = Source(paths=(f"{tmp_path}/*",), bad_text="skip")
    assert documents(source) == {"a.parquet#0": ("ok",)}
    assert skipped(source) == {"a.parquet#1": "not UTF-8", "b.parquet": "damaged file"}


def test_damage_inside_a_file_is_named(tmp_path):
    source = write(tmp_path / "a.parquet", {"text": [f"{i * i}" for i in range(4000)]}, 4000)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:3000] = bytes(255 for _ in range(2996))
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(UserError, match="a.parquet is damaged or not a parquet file, in row groups 0 to 0"):
        items(source)
    assert set(skipped(Source(paths=source.paths, bad_text="skip")).values()) == {"damaged file"}


def test_a_file_without_rows_is_counted(tmp_path):
    source = write(tmp_path / "a.parquet", {"text": pyarrow.array([], pyarrow.string())})
    assert skipped(source) == {"a.parquet": "no text"}
