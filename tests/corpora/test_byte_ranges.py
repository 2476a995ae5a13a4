"""Lines and paragraphs of byte ranges, against a plain reading of the whole."""

import random
import re

import pytest

from bert_jax.corpora import byte_ranges
from bert_jax.corpora.unpacking import open_unpacked

ATOMS = [b"\n", b"\n", b"\n\n", b"\r\n", b" ", b"\t", b"ab", b"c", "é".encode(), b"\x0c", b"\r"]


def of_ranges(read, path, cuts):
    ends = [0, *cuts, -1]
    found = []
    for start, stop in zip(ends, ends[1:], strict=False):
        with open_unpacked(str(path)) as file:
            found += read(file, start, stop)
    return found


def plain_paragraphs(text: bytes):
    """Runs of lines that are not white space, with the offset of the first."""
    found, offset, open_ = [], 0, False
    for line in re.findall(rb"[^\n]*\n|[^\n]+", text):
        if not line.strip():
            open_ = False
        elif open_:
            found[-1] = (found[-1][0], found[-1][1] + line)
        else:
            found.append((offset, line))
            open_ = True
        offset += len(line)
    return [(offset, part.rstrip()) for offset, part in found]


@pytest.mark.parametrize("block", [3, 7, 1 << 18])
def test_any_cut_gives_each_line_and_paragraph_once(tmp_path, monkeypatch, block):
    monkeypatch.setattr(byte_ranges, "BLOCK_BYTES", block)
    generator = random.Random(block)
    path = tmp_path / "a"
    for _ in range(60):
        text = b"".join(generator.choices(ATOMS, k=generator.randrange(30)))
        path.write_bytes(text)
        lines = [(m.start(), m[0].removesuffix(b"\n")) for m in re.finditer(rb"[^\n]*\n|[^\n]+", text)]
        paragraphs = plain_paragraphs(text)
        cuts = [sorted(generator.sample(range(1, len(text)), 2)) for _ in range(3) if len(text) > 3]
        for cut in [*([c] for c in range(1, len(text))), *cuts]:
            assert of_ranges(byte_ranges.lines, path, cut) == lines, (text, cut)
            found = of_ranges(byte_ranges.paragraphs, path, cut)
            assert [(o, p.rstrip()) for o, p in found] == paragraphs, (text, cut)
