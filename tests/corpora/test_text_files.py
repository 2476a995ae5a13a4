"""The source ``text_files``."""

import errno
import gzip
import io
import os
import random
import re
import time
import uuid

import pytest

from bert_jax.corpora import file_source, unpacking
from bert_jax.corpora.jsonl import Source as JsonLines
from bert_jax.corpora.source import Piece
from bert_jax.corpora.text_files import Source
from bert_jax.corpora.unpacking import open_unpacked
from bert_jax.errors import UserError
from bert_jax.storage import files
from tests.corpora.reading import PACK, cut_everywhere, documents, items, kept_of, skipped


def test_free_text_is_split_and_blank_lines_end_sentences(tmp_path):
    (tmp_path / "b.txt").write_text("One two\nthree. Four.\n\n\nFive\n\n six.")
    (tmp_path / "a.txt").write_bytes("\ufeffÄ mark.\r\n\r\nLines end.\r\n".encode())
    assert documents(Source(paths=(f"{tmp_path}/*.txt",))) == {
        "a.txt": ("Ä mark.", "Lines end."),
        "b.txt": ("One two three.", "Four.", "Five", "six."),
    }


def test_one_sentence_a_line_and_blank_lines_between_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\n\nOne. Still one.\n  Two \n\n\nThree\n   \nFour")
    source = Source(paths=(f"{tmp_path}/a.txt",), format="sentences", document_boundary="blank_line")
    assert documents(source) == {"a.txt@2": ("One. Still one.", "Two"), "a.txt@27": ("Three",), "a.txt@37": ("Four",)}
    whole = Source(paths=source.paths, format="sentences")
    assert documents(whole) == {"a.txt": ("One. Still one.", "Two", "Three", "Four")}
    assert [(d.id, d.sentences) for d in items(whole)] == list(documents(whole).items())


def test_json_lines_are_not_read_as_prose(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"")
    for use in (Source.pieces, Source.fingerprint, Source.describe):
        with pytest.raises(
            UserError, match="a.jsonl.gz is JSON Lines, not plain text; take --config.corpus.source=jsonl"
        ):
            use(Source((str(tmp_path / "*"),)))


def test_each_line_can_be_a_document(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffOne. Two.\r\n \nThree.\nFour")
    found = documents(Source(paths=(f"{tmp_path}/a.txt",), document_boundary="line"))
    assert list(found) == ["a.txt@0", "a.txt@16", "a.txt@23"]
    assert list(found.values()) == [("One.", "Two."), ("Three.",), ("Four",)]


def test_a_title_of_wikitext_begins_a_document(tmp_path):
    text = " \n = A b = \n \n One . \n Two . \n \n = = Part = = \n \n = 1 + 1 = \n 2 . \n \n = é ? = \n \n Three . \n"
    (tmp_path / "a.txt").write_text(text)
    source = Source(paths=(f"{tmp_path}/a.txt",), document_boundary="title", format="sentences")
    assert documents(source) == {
        "a.txt@2": ("= A b =", "One .", "Two .", "= = Part = =", "= 1 + 1 =", "2 ."),
        f"a.txt@{text.index(' = é')}": ("= é ? =", "Three ."),
    }
    cut_everywhere(source, len(text.encode()))
    (tmp_path / "a.txt").write_text(f"Before.\n\n{text}")
    assert len(documents(source)) == 3
    cut_everywhere(source, len(text.encode()) + 9)


def test_a_book_becomes_documents_of_some_pages(tmp_path):
    paragraphs = [f"Paragraph {i}. {'It goes on and on. ' * 50}" for i in range(40)]
    (tmp_path / "a.txt").write_text("\n\n".join(paragraphs))
    (tmp_path / "b.txt").write_text("Short.\n\nToo.")
    source = Source(paths=(f"{tmp_path}/*",), document_boundary="pages")
    found = documents(source)
    *whole, rest, short = (sum(map(len, sentences)) for sentences in found.values())
    assert len(whole) == 3
    assert all(10_000 <= length < 11_000 for length in whole)
    assert 0 < rest < 10_000
    assert short == len("Short.Too.")
    joined = [sentence for document in found.values() for sentence in document]
    assert joined == [s for d in documents(Source(paths=source.paths)).values() for s in d]


@pytest.mark.parametrize("boundary", ["file", "blank_line"])
def test_compressed_files_give_the_same_documents(tmp_path, boundary):
    text = ("A sentence. " * 500 + "\n\n") * 60  # more than a block
    (tmp_path / "plain").write_text(text)
    for suffix, pack in PACK.items():
        (tmp_path / f"small.{suffix}").write_bytes(pack(text[:300].encode()) + pack(text[300:].encode()))
    found: dict[str, list] = {}
    for name, sentences in documents(Source(paths=(f"{tmp_path}/*",), document_boundary=boundary)).items():
        file, _, offset = name.partition("@")
        found.setdefault(file, []).append((offset, sentences))
    assert list(found) == ["plain", "small.bz2", "small.gz", "small.xz", "small.zst"]
    assert all(documents_of == found["plain"] for documents_of in found.values())


def test_pieces_cut_anywhere_give_each_document_once(tmp_path):
    text = "\ufeffOne.\r\nTwo.\r\n\r\n \t\r\nThree é.\n\n\nFour.\nFünf.\n  \n\nSix."
    (tmp_path / "a.txt").write_bytes(text.encode())
    for boundary in ("blank_line", "line"):
        source = Source(paths=(f"{tmp_path}/a.txt",), document_boundary=boundary, format="sentences")
        cut_everywhere(source, len(text.encode()))


def test_big_files_are_cut_by_size_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(file_source, "PIECE_BYTES", 1000)
    text = "".join(f"Document {i} here.\n" * (i % 7) + "\n" for i in range(300))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    source = Source(paths=(f"{tmp_path}/*",), document_boundary="blank_line")
    pieces = source.pieces()
    plain = [p for p in pieces if p.name.endswith("a.txt")]
    assert [(p.start, p.stop) for p in plain[:2]] == [(0, 1000), (1000, 2000)]
    assert plain[-1].stop == -1
    assert sum(p.num_bytes for p in plain) == len(text)
    assert len(pieces) == len(plain) + 1  # a compressed file is read from its beginning
    assert len(Source(paths=source.paths).pieces()) == 2  # a file that is a document is not cut either
    found = [d for p in plain for d in kept_of(source, p)]
    assert found == kept_of(source, Piece(plain[0].name, num_bytes=len(text)))
    assert len(found) == len(set(found)) == sum(i % 7 > 0 for i in range(300))


def test_names_are_below_the_common_folder_and_files_come_once(tmp_path):
    for name in ("x/1.txt", "y/z/2.txt"):
        files.write_text(tmp_path / name, "Text.")
    globs = (f"{tmp_path}/**/*.txt", f"{tmp_path}/x/*.txt")
    assert list(documents(Source(paths=globs))) == ["x/1.txt", "y/z/2.txt"]


def test_object_stores_are_read(tmp_path):
    bucket = f"memory://bucket-{uuid.uuid4().hex}"
    files.write_bytes(f"{bucket}/a/1.txt.gz", gzip.compress(b"One. Two."))
    files.write_text(f"{bucket}/b/2.txt", "Three.\n\nFour.\n\n\nFive.\n")
    source = Source(paths=(f"{bucket}/**/*.*",))
    assert {name: len(s) for name, s in documents(source).items()} == {"a/1.txt.gz": 2, "b/2.txt": 3}
    assert source.describe()["files"] == 2
    cut_everywhere(Source(paths=(f"{bucket}/b/2.txt",), document_boundary="blank_line"), 23)


def test_fingerprint_follows_content_and_settings_and_not_place_or_time(tmp_path):
    for folder in ("a", "b"):
        files.write_text(tmp_path / folder / "x.txt", "Text.")
    a, b = (Source(paths=(f"{tmp_path}/{f}/*.txt",)) for f in "ab")
    assert a.fingerprint() == b.fingerprint()
    assert a.fingerprint() != Source(paths=a.paths, format="sentences").fingerprint()
    assert len({JsonLines(paths=a.paths, **o).fingerprint() for o in ({}, {"text_field": "b"})}) == 2
    before = b.fingerprint()
    files.write_text(tmp_path / "b" / "x.txt", "Texts")
    assert b.fingerprint() != before


def test_no_match_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"no file matches '.*\*\.txt'"):
        Source(paths=(f"{tmp_path}/*.txt",)).pieces()
    with pytest.raises(UserError, match=rf"it is a folder, write '{tmp_path}/\*' for the files in it"):
        Source(paths=(str(tmp_path),)).pieces()
    with pytest.raises(UserError, match="Is a directory; name a file"), open_unpacked(str(tmp_path)):
        pass
    with pytest.raises(UserError, match="paths is empty"):
        Source(paths=()).pieces()


def test_files_without_text_are_counted(tmp_path):
    (tmp_path / "a.txt").write_text("Good.")
    (tmp_path / "b.txt").write_text("")
    (tmp_path / "c.txt").write_text(" \n\u3000\n")
    (tmp_path / "d.txt").write_text("\n \n")
    for suffix in PACK:
        (tmp_path / f"e.{suffix}").write_bytes(b"")
    for boundary in ("file", "blank_line"):
        source = Source(paths=(f"{tmp_path}/*",), document_boundary=boundary)
        assert len(documents(source)) == 1
        found = {where.partition("@")[0]: reason for where, reason in skipped(source).items()}
        packed = {f"e.{suffix}": "empty file" for suffix in PACK}
        assert found == {"b.txt": "empty file", "c.txt": "no text", "d.txt": "no text", **packed}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fine\nan \xe9t\xe9\n", "is not UTF-8 at byte offset 8 (byte 0xe9); convert it (such as with: iconv "),
        (b"fine\n\n\nan \xe9t\xe9\n", "is not UTF-8 at byte offset 10 (byte 0xe9)"),
        (b"\xef\xbb\xbfab\xff", "is not UTF-8 at byte offset 5 (byte 0xff)"),
        (b"half a pair \xed\xa0\x80", "is not UTF-8 at byte offset 12 (byte 0xed)"),
        ("今天很好".encode("gb18030"), "is not UTF-8 at byte offset 0 (byte 0xbd)"),
        (b"text\n\x89PNG\0", "has a NUL byte at byte offset 9"),
        ("hi".encode("utf-16"), "has a NUL byte at byte offset 3 (it is UTF-16, binary or damaged)"),
    ],
)
def test_bad_bytes_are_named_with_file_and_offset(tmp_path, content, message):
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/bad.txt {message}")) as caught:
        items(Source(paths=(f"{tmp_path}/*.txt",)))
    assert "--config.corpus.options.bad_text=skip" in str(caught.value)


@pytest.mark.parametrize("boundary", ["file", "blank_line", "line", "title"])
def test_bad_lines_are_skipped_and_counted(tmp_path, boundary):
    (tmp_path / "a.txt").write_bytes(b"One line.\n\xff bad\nTwo lines.\n\nnul \0\n\nThree lines.\n")
    (tmp_path / "b.txt").write_bytes("text".encode("utf-16"))
    (tmp_path / "c.txt").write_bytes("что это такое".encode("cp1251"))
    source = Source(paths=(f"{tmp_path}/*",), document_boundary=boundary, bad_text="skip")
    kept = [s for sentences in documents(source).values() for s in sentences]
    assert kept == ["One line.", "Two lines.", "Three lines."]
    found = skipped(source)
    assert found.pop("b.txt") == found.pop("c.txt") == "not a text file"
    assert found == {"a.txt@10": "not UTF-8", "a.txt@32": "NUL byte"}


def test_bad_lines_far_into_a_file_are_skipped_alone(tmp_path):
    good = b"A line.\n" * 2000
    (tmp_path / "a.txt").write_bytes(good + b"\xff bad\nTwo.\nnul \0 here\nThree.\n")
    source = Source(paths=(f"{tmp_path}/*",), bad_text="skip", format="sentences")
    assert documents(source)["a.txt"] == ("A line.",) * 2000 + ("Two.", "Three.")
    assert skipped(source) == {"a.txt@16000": "not UTF-8", f"a.txt@{16000 + 11 + 4}": "NUL byte"}


def test_offset_in_a_compressed_file_is_that_of_the_unpacked_text(tmp_path):
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"x" * 5000 + b"\n\xff"))
    with pytest.raises(UserError, match="byte offset 5001"):
        items(Source(paths=(f"{tmp_path}/bad.gz",)))


@pytest.mark.parametrize("suffix", PACK)
def test_cut_or_wrong_archives_are_named_or_counted(tmp_path, suffix):
    whole = PACK[suffix](b"".join(b"%d line\n\n" % (i * i) for i in range(9000)))
    for content in (whole[: len(whole) // 2], whole[:-3], b"no archive at all"):
        (tmp_path / f"bad.{suffix}").write_bytes(content)
        with pytest.raises(UserError, match=rf"bad\.{suffix} is damaged after \d+ unpacked bytes"):
            items(Source(paths=(f"{tmp_path}/bad.{suffix}",)))
        source = Source(paths=(f"{tmp_path}/bad.{suffix}",), bad_text="skip", document_boundary="blank_line")
        assert "damaged file" in skipped(source).values()


class FailingFile(io.FileIO):
    """A file of a disk that fails after some bytes."""

    def read(self, size=-1):
        if self.tell() >= 8000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(size)

    def readinto(self, buffer):
        buffer[: len(read)] = (read := self.read(len(buffer)))
        return len(read)


@pytest.mark.parametrize("suffix", ["txt", *PACK])
@pytest.mark.parametrize("bad_text", ["error", "skip"])
def test_a_disk_that_fails_is_no_damaged_file(suffix, bad_text, tmp_path, monkeypatch):
    content = random.Random(0).randbytes(30_000).hex().encode()
    (tmp_path / f"a.{suffix}").write_bytes(PACK.get(suffix, bytes)(content))
    source = Source(paths=(f"{tmp_path}/a.{suffix}",), bad_text=bad_text)
    pieces = source.pieces()
    monkeypatch.setattr(unpacking.reading, "open_plain", FailingFile)
    with pytest.raises(UserError, match=rf"^cannot read {tmp_path}/a\.{suffix}: Input/output error; its disk fails"):
        list(source.read(pieces[0]))
    with pytest.raises(UserError, match=rf"^cannot read {tmp_path}/a\.{suffix}: Input/output error; its disk fails"):
        source.fingerprint()


@pytest.mark.parametrize("line", ["word ", "a", "Hello there. ", "'\"([", "今天很好。"])
def test_a_long_line_is_read_in_linear_time_and_loses_nothing(tmp_path, line):
    text = line * (500_000 // len(line))
    (tmp_path / "a.txt").write_text(text)
    start = time.process_time()
    sentences = documents(Source(paths=(f"{tmp_path}/a.txt",)))["a.txt"]
    assert time.process_time() - start < 3  # a quadratic reader takes minutes
    assert "".join(sentences).replace(" ", "") == text.replace(" ", "")
    assert max(map(len, sentences)) <= 1 << 13
