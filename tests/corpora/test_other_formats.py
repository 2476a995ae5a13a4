"""Files that are no plain text are refused, or read by their tags; prose with signs is read as prose."""

import bz2
from html import escape

import pytest

from bert_jax.corpora.build import build
from bert_jax.corpora.hugging_face_dataset import Source as HubSource
from bert_jax.corpora.jsonl import Source as JsonSource
from bert_jax.corpora.other_formats import other_format
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError
from tests.corpora.reading import cut_everywhere, documents, skipped

ARTICLES = [f"Title {i}\n\nOne of {i}. Two <b>of</b> & {i}.\nThree.\n\nFour." for i in range(3)]
EXTRACTED = "".join(
    f'<doc id="{i}" url="https://x?curid={i}" title="Title {i}">\n{escape(text, quote=False)}\n</doc>\n'
    for i, text in enumerate(ARTICLES)
)


@pytest.mark.parametrize("boundary", ["file", "blank_line", "line", "title"])
@pytest.mark.parametrize("form", ["free", "sentences"])
def test_an_article_of_wikiextractor_is_a_document_without_its_tags(tmp_path, boundary, form):
    text = EXTRACTED.replace("</doc>\n", "</doc>\n\n", 1)
    (tmp_path / "wiki_00").write_text(text)
    (tmp_path / "wiki_01.bz2").write_bytes(bz2.compress(text.encode()))
    source = Source(paths=(f"{tmp_path}/wiki_*",), document_boundary=boundary, format=form)
    found = documents(source)
    starts = [text.index(f'<doc id="{i}"') for i in range(3)]
    assert [*found] == [f"{name}@{start}" for name in ("wiki_00", "wiki_01.bz2") for start in starts]
    for i, sentences in enumerate(found.values()):
        assert " ".join(sentences) == " ".join(ARTICLES[i % 3].split())
        assert sentences[0] == f"Title {i % 3}"
    if boundary != "file":
        cut_everywhere(Source(paths=(f"{tmp_path}/wiki_00",), document_boundary=boundary, format=form), len(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!DOCTYPE html>\n<html><body>Text.</body></html>", "is HTML, not plain text; take the text out of it first"),
        ("\ufeff\n<div class='x'>\n<p>Text.</p></div>", "is HTML"),
        ('<?xml version="1.0"?>\n<TEI><p>Text.</p></TEI>', "is XML"),
        ("<DOC>\n<DOCNO> 1 </DOCNO>\nText.\n</DOC>\n", "is XML"),
        ('<mediawiki xmlns="x">\n<page><title>A</title></page></mediawiki>', "--config.corpus.source=mediawiki"),
        ('{"text": "One.", "id": 1}\n{"text": "Two."}\n', "is JSON, not plain text; take --config.corpus.source=jsonl"),
        ('[\n {"text": "One."},\n {"te', "--config.corpus.source=jsonl"),
        ("id,text\n" + "".join(f"{i},A line of text.\n" for i in range(9)), "is a table"),
        ('"text"\t"label"\n' + '"One, two."\t"a"\n' * 9, "is a table"),
        ("text,label\r\n" + "A line of text.,a\r\n" * 3, "is a table"),
        ('"Row ID","The Text"\n' + '1,"Two lines\nof text, in quotes."\n' * 4, "is a table"),
        ('1,"A line, in quotes."\n' * 10, "is a table"),
        ("0\tA line of text.\n" * 10, "is a table"),
        ("PAR1\x15\x04", "--config.corpus.source=parquet"),
        ("%PDF-1.4\n", "is a PDF file, not plain text; save it as plain text, CSV or JSON Lines"),
        ("{\\rtf1\\ansi Text.}", "is an RTF file"),
        ("PK\x03\x04\x14\x00", "is a zip archive, as .xlsx, .docx and .odt files are"),
        ("SQLite format 3\0", "is an SQLite database"),
    ],
)
def test_what_is_no_plain_text_is_named_before_anything_is_read(tmp_path, text, said):
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text("Text.\n")
    with pytest.raises(UserError) as raised:
        Source(paths=(f"{tmp_path}/*",)).pieces()
    assert said in str(raised.value)
    source = Source(paths=(f"{tmp_path}/*",), bad_text="skip")
    assert documents(source) == {"b.txt": ("Text.",)}
    assert skipped(source) == {"a.txt@0": "not plain text"}


@pytest.mark.parametrize(
    "text",
    [
        "If a < b and c > d, then a <b> is no tag.\n</end>\n",
        "Well,yes\nno,no\nOne, two,three.\nred,green\nThen, at last, he spoke.\n",
        "Oh\nno, no\n",
        "<s> a sentence </s>\n<s> another </s>\n",
        '{curly} text. {"quoted"}\n[1] A footnote.\n',
        "a, b, c\nd, e, f\ng, h, i\nj, k, l\n",
        "= Title =\n\n<unk> of <unk>\n",
        "word\nword\nword\nword\nword\n",
        "\tA paragraph begins here.\n" * 12,
        '"Yes," he said.\n"No, not now," said she.\n' * 6,
        '"Yes","no".\nOne line.\n' * 9,
        "Title\n<p>one tag</p>\n",
    ],
)
def test_prose_with_signs_is_read(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    source = Source(paths=(f"{tmp_path}/a.txt",))
    assert source.pieces()
    assert documents(source)


def test_the_source_that_a_message_names_reads_the_file(tmp_path):
    (tmp_path / "a.txt").write_text('{"text": "One."}\n{"text": "Two."}\n')
    with pytest.raises(UserError, match="source=jsonl"):
        build(Source(paths=(f"{tmp_path}/a.txt",)), None, tmp_path / "out")  # type: ignore[arg-type]
    assert [*documents(JsonSource(paths=(f"{tmp_path}/a.txt",))).values()] == [("One.",), ("Two.",)]


def test_the_source_of_tables_reads_one(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    (tmp_path / "a.csv").write_text("id,body\n" + "".join(f'{i},"One, {i}."\n' for i in range(5)))
    with pytest.raises(
        UserError, match="source=hugging_face_dataset .*--config.corpus.options.name and a column as .*text_column"
    ):
        Source(paths=(f"{tmp_path}/a.csv",)).pieces()
    table = HubSource(name=str(tmp_path), text_column="body")
    assert [*documents(table).values()] == [(f"One, {i}.",) for i in range(5)]


@pytest.mark.parametrize("name", ["a.csv", "a.TSV", "a.csv.gz"])
def test_a_table_is_known_by_its_name(name):
    assert "is a table" in str(other_format(b"a text,other col\nOne, two.,a\n", name))
    assert other_format(b"One text a line.\nTwo.\n", name) is None
