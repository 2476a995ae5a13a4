"""A fault that touches little text is counted but not graded as bad; lines and fixes say no more than they should."""

import random
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpora.store import Corpus
from bert_jax.inspection.fixes import Fixes
from bert_jax.inspection.inspect import InspectionRequest, inspect
from bert_jax.rows.arrangements.sentence_pairs import Arrangement
from bert_jax.rows.rows_config import RowsConfig
from tests.inspection.corpora import WORDS, build, stored, texts, write_vocab


def test_a_few_equal_documents_of_one_line_are_counted_but_harmless(tmp_path: Path) -> None:
    vocab = write_vocab(tmp_path / "vocab.txt")
    corpus = build(tmp_path, [*texts(120), *([["baba keke ."]] * 14)], vocab)
    found = inspect(InspectionRequest(str(corpus), str(vocab)))[""]
    held = [document for document in stored(corpus, "heldout") if len(document) == 1]
    assert 0 < len(held) < 13  # else they are not in both splits, and more than once in one
    for name, facts in (
        ("duplicate_documents", {"repeated_documents": 13 - len(held)}),
        ("heldout_overlap", {"documents": len(held)}),
    ):
        check = found.check(name)
        assert (check.status, check.fix) == ("ok", "")
        assert check.facts.items() >= facts.items()


def test_the_largest_document_is_named_with_its_share(tmp_path: Path) -> None:
    vocab = write_vocab(tmp_path / "vocab.txt")
    one, rest = texts(20, seed=1), texts(38)
    corpus = build(tmp_path, [[line for lines in one for line in lines], *rest], vocab)
    check = inspect(InspectionRequest(str(corpus), str(vocab)))[""].check("documents")
    assert 0.25 < check.facts["largest_share"] < 0.5
    assert check.fix.startswith(f"one document holds {100 * check.facts['largest_share']:.1f} % of the text: ")


def test_the_share_of_random_pairs_follows_from_the_chunks_of_one_sentence(tmp_path: Path) -> None:
    vocab = write_vocab(tmp_path / "vocab.txt")
    corpus = build(tmp_path, texts(400, seed=1), vocab)
    facts = inspect(InspectionRequest(str(corpus), str(vocab), max_lengths=(24, 32)))[""].check("next_sentence_balance")
    for length, shares in facts.facts.items():
        one = shares["one_sentence_chunks"]
        assert abs(shares["random_share"] - (one + (1 - one) / 2)) < 0.03, length
        limits = RowsConfig(int(length), packing="packed").limits
        rows = Arrangement().plan(Corpus(corpus).split("train"), np.uint64(1), int(length), limits)  # as a run plans
        assert abs(shares["random_share"] - np.concatenate(list(rows))["is_random"].mean()) < 0.03, length
    assert "of a single sentence, which has no true second part, and half of the others; at 32, " in facts.figure


def test_a_fix_that_was_applied_is_not_named_again() -> None:
    text = {"format": "sentences", "document_boundary": "blank_line", "files": 30, "language": "de"}
    first, second = Fixes({"source": text}, "config.corpus.parts.old"), Fixes({"duplicates": "exact"})
    assert first.joins_lines() == "--config.corpus.parts.old.options.format=free"
    assert first.longer_documents() == "--config.corpus.parts.old.options.document_boundary=file"
    assert (first.duplicates(), second.duplicates()) == (
        "--config.corpus.duplicates=exact",
        "drop headers, footers and notices from the text before the build",
    )
    free = Fixes({"source": text | {"format": "free", "document_boundary": "file"}, "duplicates": "exact"})
    assert free.joins_lines() == ""
    assert "document_boundary" not in free.longer_documents()
    assert "--config.corpus.duplicates" not in free.duplicates()
    assert Fixes({"source": {"line_breaks": "end_sentences"}}).joins_lines().endswith("line_breaks=are_spaces")
    assert Fixes({"source": text | {"files": 1}}).longer_documents().startswith("--config.objective.name=mlm")


@pytest.mark.parametrize("lines", [1, 40])
def test_titles_are_not_hard_wrapped(tmp_path: Path, lines: int) -> None:
    """Lines of one width without a final mark, one or many a document: with no sentence anywhere they are no prose."""
    vocab, rng = write_vocab(tmp_path / "vocab.txt"), random.Random(2)
    titles = [[" ".join(rng.choices(WORDS, k=rng.randint(7, 10))) for _ in range(lines)] for _ in range(200)]
    titles = [[f"{of[0]} .", *of[1:]] if i % 5 == 0 and lines > 1 else of for i, of in enumerate(titles)]
    corpus = build(tmp_path, titles, vocab)
    check = inspect(InspectionRequest(str(corpus), str(vocab), max_lengths=(32,)))[""].check("line_ends")
    assert check.facts["unmarked_share"] > 0.9
    assert check.status == "ok"
    assert "hard-wrapped" not in check.figure
