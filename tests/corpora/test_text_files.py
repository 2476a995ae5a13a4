"""The source ``text_files``."""

import gzip
import lzma
import re
import uuid

import pytest

from bert_jax import files
from bert_jax.corpora.text_files import Source
from bert_jax.errors import UserError


def documents(**settings) -> dict[str, tuple[str, ...]]:
    return {d.id: d.sentences for d in Source(**settings).documents()}


def test_free_text_is_split_and_blank_lines_end_sentences(tmp_path):
    (tmp_path / "b.txt").write_text("One two\nthree. Four.\n\n\nFive\n\n six.")
    (tmp_path / "a.txt").write_bytes("\ufeffÄ mark.\r\n\r\nLines end.\r\n".encode())
    assert documents(paths=(f"{tmp_path}/*.txt",)) == {
        "a.txt": ("Ä mark.", "Lines end."),
        "b.txt": ("One two three.", "Four.", "Five", "six."),
    }


def test_one_sentence_a_line_and_blank_lines_between_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\n\nOne. Still one.\n  Two \n\n\nThree\n   \nFour")
    settings = {"paths": (f"{tmp_path}/a.txt",), "format": "sentences"}
    assert documents(**settings, document_boundary="blank_line") == {
        "a.txt@2": ("One. Still one.", "Two"),
        "a.txt@27": ("Three",),
        "a.txt@37": ("Four",),
    }
    assert documents(**settings) == {"a.txt": ("One. Still one.", "Two", "Three", "Four")}


def test_compressed_files_give_the_same_documents(tmp_path):
    text = "A sentence. " * 500
    (tmp_path / "plain").write_text(text)
    (tmp_path / "small.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "small.xz").write_bytes(lzma.compress(text.encode()))
    found = documents(paths=(f"{tmp_path}/*",))
    assert list(found) == ["plain", "small.gz", "small.xz"]
    assert len(set(found.values())) == 1


def test_names_are_below_the_common_folder_and_files_come_once(tmp_path):
    for name in ("x/1.txt", "y/z/2.txt"):
        files.write_text(tmp_path / name, "Text.")
    globs = (f"{tmp_path}/**/*.txt", f"{tmp_path}/x/*.txt")
    assert list(documents(paths=globs)) == ["x/1.txt", "y/z/2.txt"]


def test_object_stores_are_read(tmp_path):
    bucket = f"memory://bucket-{uuid.uuid4().hex}"
    files.write_bytes(f"{bucket}/a/1.txt.gz", gzip.compress(b"One. Two."))
    files.write_text(f"{bucket}/b/2.txt", "Three.")
    source = Source(paths=(f"{bucket}/**/*.*",))
    assert {d.id: len(d.sentences) for d in source.documents()} == {"a/1.txt.gz": 2, "b/2.txt": 1}
    assert source.describe()["files"] == 2


def test_fingerprint_follows_content_and_settings_and_not_place_or_time(tmp_path):
    for folder in ("a", "b"):
        files.write_text(tmp_path / folder / "x.txt", "Text.")
    a, b = (Source(paths=(f"{tmp_path}/{f}/*.txt",)) for f in "ab")
    assert a.fingerprint() == b.fingerprint()
    assert a.fingerprint() != Source(paths=a.paths, format="sentences").fingerprint()
    before = b.fingerprint()
    files.write_text(tmp_path / "b" / "x.txt", "Texts")
    assert b.fingerprint() != before


def test_no_match_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"no file matches '.*\*\.txt'"):
        documents(paths=(f"{tmp_path}/*.txt",))
    with pytest.raises(UserError, match="paths is empty"):
        documents(paths=())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fine\nan \xe9t\xe9\n", "is not UTF-8 at byte offset 8 (byte 0xe9)"),
        (b"\xef\xbb\xbfab\xff", "is not UTF-8 at byte offset 5 (byte 0xff)"),
        (b"text\n\x89PNG\0", "has a NUL byte at byte offset 9"),
        ("hi".encode("utf-16"), "has a NUL byte at byte offset 3"),
    ],
)
def test_bad_bytes_are_named_with_file_and_offset(tmp_path, content, message):
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/bad.txt {message}")):
        documents(paths=(f"{tmp_path}/*.txt",))


def test_offset_in_a_compressed_file_is_that_of_the_unpacked_text(tmp_path):
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"x" * 5000 + b"\n\xff"))
    with pytest.raises(UserError, match="byte offset 5001"):
        documents(paths=(f"{tmp_path}/bad.gz",))


@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_cut_or_wrong_archives_are_named(tmp_path, suffix):
    pack = {"gz": gzip.compress, "xz": lzma.compress}[suffix]
    whole = pack(b"".join(b"%d line\n" % i for i in range(5000)))
    for content in (whole[: len(whole) // 2], b"no archive at all"):
        (tmp_path / f"bad.{suffix}").write_bytes(content)
        with pytest.raises(UserError, match=rf"bad\.{suffix} is damaged"):
            documents(paths=(f"{tmp_path}/bad.{suffix}",))
