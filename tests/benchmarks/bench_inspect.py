"""Speed of the inspection in tokens/s of processor time."""

import itertools
import tarfile
import time

import pytest

from bert_jax.corpora.docstrings import Source
from bert_jax.corpora.source import documents
from bert_jax.inspection.inspect import InspectionRequest, inspect
from tests.inspection.corpora import build
from tests.toy import learn_wordpiece


@pytest.fixture(scope="module")
def books(request):
    """60 books where ``../shared/data`` is there, else the docstrings of installed packages; lines are sentences."""
    shared = request.config.rootpath.parent / "shared" / "data" / "en_books" / "en_books.tar.xz"
    if not shared.exists():
        return ["\n".join(document.sentences) for document in documents(Source(("stdlib", "numpy", "jax")))]
    with tarfile.open(shared) as archive:
        files = (archive.extractfile(member) for member in archive if member.isfile())
        return [file.read().decode() for file in itertools.islice(files, 60)]


def test_inspection(books, tmp_path, request):
    vocab = request.config.rootpath.parent / "shared" / "data" / "vocab" / "bert-base-uncased-vocab.txt"
    if not vocab.exists():
        vocab = tmp_path / "vocab.txt"
        vocab.write_text("".join(f"{piece}\n" for piece in learn_wordpiece(books, 8192)))
    corpus = build(tmp_path, [text.splitlines() for text in books], vocab)
    start = time.process_time()
    found = inspect(InspectionRequest(str(corpus), str(vocab)))[""]
    seconds = time.process_time() - start
    tokens = sum(split["num_tokens"] for split in found.corpus["splits"].values())
    print(f"\ninspection: {tokens / seconds / 1e6:.1f} M tokens/s of {tokens / 1e6:.1f} M")
