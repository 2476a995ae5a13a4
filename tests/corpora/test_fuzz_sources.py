"""Random bytes through the sources that read files of bytes: one line that names file and offset, or all accounted for.

The text that the sources keep is compared with a plain reading of each line.
"""

import random
import re
import time

import pytest

from bert_jax.corpora.jsonl import Source as JsonLines
from bert_jax.corpora.source import Skipped
from bert_jax.corpora.text_files import Source as TextFiles
from bert_jax.errors import UserError
from bert_jax.records import Document
from tests.corpora.reading import PACK

ATOMS = [
    *[b"\n", b"\r\n", b"\n\n", b" ", b"\t", b"\0", b"\x1b[0m", b"\x7f", b"\r", b"\x85", b"\xff\xfe", b"\x1c"],
    *[b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe9t\xe9", b"\xef\xbb\xbf", b"\xf0\x9f\x98"],
    *["\u3000", "\u2028", "\xa0", "é", "今天。", "\U0001f600", "\u202e", "e\u0301"],
    *["One word. ", "Mr. A said (", '"Yes!" ', "a" * 90, "...", "1.2.3", "?!", "[1]"],
]
JSON = [
    *(
        '{"text": "One. Two."}',
        '{"text": ["a", "b"]}',
        '{"text": null}',
        '{"text": 5}',
        '{"texts": "x"}',
        "{",
        "}",
        '"',
    ),
    *('{"text": "\\ud83d"}', '{"text": "\\u0000 z"}', "[" * 5000, "NaN", "1e999", '{"text": {"text": "x"}}'),
    *("\\", ": ,"),
]
REASONS = {
    *("not UTF-8", "NUL byte", "not a text file", "no text", "empty file", "damaged file"),
    *("not JSON", "not a JSON object", "no such field", "not text"),
}


def random_bytes(generator, atoms):
    atoms = [a if isinstance(a, bytes) else a.encode() for a in generator.sample(atoms, generator.randint(1, 9))]
    text = b"".join(generator.choices(atoms, k=generator.choice([0, 1, 5, 40, 400])))
    kind = generator.randrange(8)
    if kind == 0:
        text = generator.randbytes(generator.choice([1, 10, 1000, 20_000]))
    elif kind == 1:
        text = text.decode("utf-8", "replace").encode(generator.choice(["utf-16", "utf-16-le", "utf-32"]))
    elif kind == 2 and text:  # a few flipped bytes
        changed = bytearray(text)
        for _ in range(3):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        text = bytes(changed)
    return text


def random_file(generator, folder, number, atoms):
    """(path, its text, whether the archive around it was damaged)."""
    text = random_bytes(generator, atoms)
    suffix = generator.choice(["txt", "txt", *PACK])
    data = PACK[suffix](text) if suffix in PACK else text
    damaged = suffix in PACK and generator.random() < 0.3
    if damaged:
        cut = generator.randrange(len(data))
        data = generator.choice([data[:cut], data[:cut] + generator.randbytes(5) + data[cut + 5 :]])
    path = folder / f"{number}.{suffix}"
    path.write_bytes(data)
    return path, text, damaged


def good_sentences(text):
    """Yield the lines that are text of a file that has one sentence per line."""
    offset = 0
    for line in text.split(b"\n"):
        try:
            decoded = line.decode("utf-8")
        except UnicodeDecodeError:
            decoded = ""
        if offset == 0:
            decoded = decoded.removeprefix("\ufeff")
        if b"\0" not in line and decoded.split():
            yield " ".join(decoded.split())
        offset += len(line) + 1


def read_or_error(source, path):
    """All items, or ``None`` and the error checked."""
    try:
        return [item for piece in source.pieces() for item in source.read(piece)]
    except UserError as error:
        message = str(error)
        assert str(path) in message
        assert re.search(r"byte offset \d+|after \d+ unpacked bytes", message), message
        assert "\n" not in message
        return None


def check_text(path, text, damaged, generator):
    boundary = generator.choice(["file", "blank_line"])
    options = {"paths": (str(path),), "document_boundary": boundary}
    form = generator.choice(["free", "sentences"])
    strict = read_or_error(TextFiles(**options, format=form), path)
    found = read_or_error(TextFiles(**options, format="sentences", bad_text="skip"), path)
    assert found, "a file is accounted for"
    assert {i.reason for i in found if isinstance(i, Skipped)} <= REASONS
    assert all((i.id if isinstance(i, Document) else i.where).startswith(path.name) for i in found)
    if damaged or "not a text file" in {i.reason for i in found if isinstance(i, Skipped)}:
        return
    expected = list(good_sentences(text))
    assert [s for i in found if isinstance(i, Document) for s in i.sentences] == expected
    bad = sum(i.reason in ("not UTF-8", "NUL byte") for i in found if isinstance(i, Skipped))
    assert (strict is None) == (bad > 0)
    free = read_or_error(TextFiles(**options, bad_text="skip"), path)
    kept = "".join(s for i in free if isinstance(i, Document) for s in i.sentences)
    assert "".join(kept.split()) == "".join("".join(expected).split())


def check_json(path, text, damaged, generator):
    strict = read_or_error(JsonLines(paths=(str(path),)), path)
    found = read_or_error(JsonLines(paths=(str(path),), bad_text="skip"), path)
    assert found, "a file is accounted for"
    reasons = {i.reason for i in found if isinstance(i, Skipped)}
    assert reasons <= REASONS
    if not damaged and "not a text file" not in reasons and strict is not None:
        assert strict == found
    if not damaged and not reasons & {"not a text file", "no text", "empty file"}:
        assert len(found) == sum(1 for line in text.split(b"\n") if line.strip())


def run(folder, seed, count):
    generator = random.Random(seed)
    for number in range(count):
        for atoms, check in ((ATOMS, check_text), (ATOMS[:6] + JSON * 2, check_json)):
            path, text, damaged = random_file(generator, folder, number, atoms)
            check(path, text, damaged, generator)
            path.unlink()


def test_random_files(tmp_path):
    run(tmp_path, seed=0, count=150)


@pytest.mark.heavy
def test_many_random_files(tmp_path):
    run(tmp_path, seed=1, count=5000)


@pytest.mark.heavy
@pytest.mark.parametrize("part", ["word ", "a", "Hello there. ", "'\"([", "今天很好。", " "])
def test_a_line_of_50_mb(tmp_path, part):
    text = (part * (50_000_000 // len(part.encode()))).encode()
    (tmp_path / "0.txt").write_bytes(text)
    for form in ("free", "sentences"):
        start = time.process_time()
        [item] = read_or_error(TextFiles(paths=(f"{tmp_path}/*",), format=form), tmp_path)
        assert time.process_time() - start < 60
        kept = "".join(getattr(item, "sentences", ()))
        assert "".join(kept.split()) == "".join(text.decode().split())
