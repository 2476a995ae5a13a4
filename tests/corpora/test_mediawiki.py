"""The source ``mediawiki``."""

import bz2
import collections
import gzip
import re
import sys
import xml.etree.ElementTree as ElementTree
from xml.sax.saxutils import escape

import pytest

pytest.importorskip("mwparserfromhell", reason="needs the extra wikipedia")

from bert_jax.corpora import file_source, mediawiki, unpacking  # noqa: E402
from bert_jax.corpora.mediawiki import Source, plain_text  # noqa: E402
from bert_jax.corpora.source import Piece  # noqa: E402
from bert_jax.errors import UserError  # noqa: E402
from bert_jax.records import Document  # noqa: E402
from tests.corpora.reading import cut_everywhere, documents, items, kept_of, skipped  # noqa: E402

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo><namespaces><namespace key="0" />'
    '<namespace key="6" case="first-letter">Datei</namespace><namespace key="14">Kategorie</namespace></namespaces>'
    "</siteinfo>\n"
)


def page(title, *texts, ns=0, redirect=""):
    revisions = "".join(f"<revision><id>1</id><text xml:space='preserve'>{escape(t)}</text></revision>" for t in texts)
    return f"  <page>\n<title>{escape(title)}</title><ns>{ns}</ns>{redirect}<id>1</id>{revisions}\n  </page>\n"


PAGES = [
    page("A & B", "The [[Datei:x.jpg]] first. It is <page>.\n== H ==\nMore &amp; more."),
    page("Gone", "#REDIRECT [[A & B]]", redirect='<redirect title="A" />'),
    page("Also gone", " #redirect [[A]]"),
    page("Talk:A", "Words.", ns=1),
    page("C", "'''C''' may be:\n* x\n{{Disambiguation|geo}}"),
    page("D (disambiguation)", "D may be."),
    page("Empty", "{{stub}}"),
    page("History", "Old.", "New."),
]
KEPT = {"A & B": ("The first.", "It is <page>.", "More & more."), "History": ("New.",)}
DUMP = HEAD + "".join(PAGES) + "</mediawiki>\n"


def test_pages_are_documents_and_the_rest_is_counted(tmp_path):
    (tmp_path / "a.xml").write_text(DUMP)
    source = Source(paths=(f"{tmp_path}/*",))
    assert documents(source) == KEPT
    assert skipped(source) == {
        "Gone": "redirect",
        "Also gone": "redirect",
        "Talk:A": "other namespace",
        "C": "disambiguation",
        "D (disambiguation)": "disambiguation",
        "Empty": "no text",
    }
    assert "Talk:A" in documents(Source(paths=source.paths, namespaces=(0, 1)))
    assert documents(Source(paths=source.paths, headings="keep"))["A & B"][2] == "H"


def test_compressed_dumps_give_the_same(tmp_path):
    (tmp_path / "a.xml.bz2").write_bytes(bz2.compress(DUMP.encode()))
    (tmp_path / "b.xml.gz").write_bytes(gzip.compress(DUMP.encode()))
    for name in ("a.xml.bz2", "b.xml.gz"):
        assert documents(Source(paths=(f"{tmp_path}/{name}",))) == KEPT


@pytest.mark.parametrize("block", [5, 64, 1 << 18])
def test_a_plain_dump_cut_anywhere_gives_each_page_once(tmp_path, monkeypatch, block):
    monkeypatch.setattr(mediawiki, "BLOCK_BYTES", block)
    (tmp_path / "a.xml").write_text(DUMP)
    step = 5 if block == 64 else 17
    cut_everywhere(Source(paths=(f"{tmp_path}/*",)), len(DUMP), range(1, len(DUMP), step))


@pytest.mark.parametrize("even", [True, False], ids=["pages in a stream", "streams cut pages"])
@pytest.mark.parametrize("block", [16, 1 << 16])
def test_a_multistream_dump_cut_anywhere_gives_each_page_once(tmp_path, monkeypatch, even, block):
    monkeypatch.setattr(unpacking, "PACKED_BYTES", block)
    whole = DUMP.encode()
    parts = [HEAD, *PAGES, "</mediawiki>\n"] if even else [DUMP[i : i + 100] for i in range(0, len(DUMP), 100)]
    packed = b"".join(bz2.compress(part.encode()) for part in parts)
    assert bz2.decompress(packed) == whole
    (tmp_path / "a.xml.bz2").write_bytes(packed)
    source = Source(paths=(f"{tmp_path}/*",))
    cut_everywhere(source, len(packed), range(1, len(packed), 13))
    monkeypatch.setattr(file_source, "PIECE_BYTES", 4 * 300)
    assert len(source.pieces()) > 3
    assert documents(source) == KEPT
    assert max(len(kept_of(source, p)) for p in source.pieces()) == 1  # pages are in several pieces


def test_bad_dumps_are_named_or_counted(tmp_path):
    (tmp_path / "a.xml").write_text("<html></html>")
    with pytest.raises(UserError, match="a.xml is not a MediaWiki XML dump"):
        items(Source(paths=(f"{tmp_path}/a*",)))
    (tmp_path / "b.xml").write_text(DUMP.replace("<id>1</id>", "<id>", 1))
    with pytest.raises(UserError, match="b.xml after byte 0 has a page that is not XML"):
        items(Source(paths=(f"{tmp_path}/b*",)))
    (tmp_path / "c.bz2").write_bytes(bz2.compress(DUMP.encode())[:-40])
    with pytest.raises(UserError, match="c.bz2 is damaged"):
        items(Source(paths=(f"{tmp_path}/c*",)))
    reasons = skipped(Source(paths=(f"{tmp_path}/*",), bad_text="skip")).values()
    assert {"not a dump", "not XML", "damaged file"} <= set(reasons)


def test_the_extra_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    mediawiki._library.cache_clear()
    with pytest.raises(UserError, match=r"pip install mwparserfromhell$"):
        Source(paths=(f"{tmp_path}/*",)).pieces()


def test_a_real_dump(shared_data):
    [path] = shared_data("en_wikipedia_dump_sample").glob("*.bz2")
    dump = bz2.decompress(path.read_bytes())
    pages = [ElementTree.fromstring(p) for p in re.findall(rb"<page>.*?</page>", dump, re.S)]
    [piece] = Source(paths=(str(path),)).pieces()
    generator = Source(paths=(str(path),)).read(Piece(*piece))
    found = [next(generator) for _ in range(40)]  # the whole takes seconds
    kept = {item.id: item for item in found if isinstance(item, Document)}
    assert [i.id if isinstance(i, Document) else i.where for i in found] == [p.findtext("title") for p in pages[:40]]
    reasons = collections.Counter(i.reason for i in found if not isinstance(i, Document))
    redirects = [p for p in pages[:40] if p.find("redirect") is not None and p.findtext("ns") == "0"]
    assert reasons["redirect"] == len(redirects) > 10
    assert kept["Anarchism"].sentences[0].startswith("Anarchism is a political philosophy that advocates")
    text = "\n".join(s for d in kept.values() for s in d.sentences)
    assert sum(map(text.count, ("{{", "[[", "<ref", "{|", "'''"))) < len(text) / 20_000


# ---- markup ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bold''' and ''[[Page|shown]]'' and [[Other]]s.", "Bold and shown and Others."),
        ("A{{cite|x={{y}}}} b<ref name=a>{{c}} gone</ref>, c<ref name=a/>.", "A b, c."),
        (
            "[[File:X.jpg|thumb|A [[link]] in it]]Text.[[Category:Y]] [[fr:Z]] [[:Category:Shown]]",
            "Text. Category:Shown",
        ),
        ("{| class=x\n! head\n|-\n| [[cell]] || two\n|}\nAfter.", "After."),
        ("Before ({{IPA|x}}) and (; from Greek) it.", "Before and (from Greek) it."),
        ("One&nbsp;two&ndash;three<!-- no -->.__NOTOC__", "One two–three."),
        ("[http://x.org The site] and [http://y.org] end.", "The site and end."),
        ("First.\nSecond<br/>third.\n\nFourth.", "First.\nSecond\nthird.\nFourth."),
        ("<math>x</math>H<sub>2</sub>O <span>is</span> <nowiki>[[wet]]</nowiki>", "H2O is [[wet]]"),
        ("<gallery>\nA.jpg|b\n</gallery><div>In.</div>Out.", "In.\nOut."),
    ],
)
def test_what_a_reader_sees_is_kept(markup, text):
    assert plain_text(markup) == text


def test_headings_and_lists_are_kept_on_request():
    markup = "Top.\n== Head ==\n* one\n# two\n: three\n; four : five\nEnd."
    assert plain_text(markup) == "Top.\nEnd."
    assert plain_text(markup, headings="keep").split("\n") == ["Top.", "Head", "End."]
    assert plain_text(markup, lists="keep").split("\n") == ["Top.", "one", "two", "three", "four five", "End."]


def test_names_of_a_wiki_for_files_and_categories():
    markup = "[[Datei:X.jpg|mini|Bild]]Text.[[Kategorie:Y]]"
    assert plain_text(markup, ("Datei", "Kategorie")) == "Text."
    assert plain_text(markup) != "Text."
