"""Senses are told by what tells them, and by nothing else; all of it in small is a heavy test.

That one runs where gensim is: ``.venv-bench/bin/python -m pytest -m heavy tests/benchmarks/test_senses.py``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import distance

from bert_jax.errors import UserError
from bert_jax.features.extract import TextFeatures, encode_item
from bert_jax.features.inputs import Item
from bert_jax.text import tokenizer as tokenizers
from tests import toy
from tests.benchmarks import sense_vectors, senses
from tests.benchmarks.sense_vectors import Occurrence, OfModel


def write_conll(folder: Path, documents: list[str]) -> None:
    """``documents`` of sentences, one a line; words have ``/TAG`` unless it is O. The last two are valid and test."""
    for name, part in zip(senses.FILES, (documents[:-2], documents[-2:-1], documents[-1:]), strict=True):
        text = ""
        for document in part:
            text += "-DOCSTART- O\n\n"
            for line in document.splitlines():
                text += "\n".join(" ".join((*word.split("/"), "O")[:2]) for word in line.split()) + "\n\n"
        (folder / name).write_text(text)


def test_words_with_two_senses_are_found_by_the_rule(tmp_path: Path) -> None:
    documents = [
        f"The mark fell {i}\nA Mark/B-PER Twain/I-PER spoke {i}\nBank/B-ORG of/I-ORG X{i}/I-ORG\n"
        f"out of {i}\nParis/B-LOC {i}"
        for i in range(4)
    ]
    documents[1] += "\nParis/B-ORG won\nParis/B-ORG lost\nParis/B-ORG drew"  # in one document alone
    documents[2] += "\nThe mark fell 1"  # seen before
    documents[3] += "\nA bill 3\nBill/B-PER 3"  # once each
    write_conll(tmp_path, documents)
    found = senses.find_words(str(tmp_path), least=3)
    assert list(found) == ["mark"]
    assert Counter(one.sense for one in found["mark"]) == {"O": 4, "PER": 4}
    assert {one.words[one.place] for one in found["mark"]} == {"mark"}
    assert [one.document for one in found["mark"][:4]] == ["train.txt:1", "train.txt:2", "valid.txt:1", "test.txt:1"]
    with pytest.raises(UserError, match="no word of .* has two senses with 10 occurrences"):
        senses.find_words(str(tmp_path))
    (tmp_path / "test.txt").write_text("words\nalone\n")
    with pytest.raises(UserError, match="test.txt:1 has words without tags"):
        senses.find_words(str(tmp_path))
    (tmp_path / "test.txt").unlink()
    with pytest.raises(UserError, match="no file .*test.txt"):
        senses.find_words(str(tmp_path))


def test_occurrences_are_told_as_one_by_one() -> None:
    from sklearn.metrics import balanced_accuracy_score  # not in .venv-bench
    from sklearn.model_selection import LeaveOneGroupOut

    rng = np.random.default_rng(5)
    for _ in range(5):
        given = rng.choice(["LOC", "ORG"], 40)
        vectors = rng.normal(size=(40, 6)) + 2
        vectors[given == "ORG", 0] += 2
        documents = rng.integers(0, 9, 40).astype(str)
        expected = np.empty(40, dtype=given.dtype)
        for train, test in LeaveOneGroupOut().split(vectors, given, documents):
            directions = [v / np.sqrt(v @ v) for v in vectors]
            common = np.mean([directions[i] for i in train], axis=0)
            centroids = {s: np.mean([directions[i] for i in train if given[i] == s], axis=0) for s in set(given)}
            for i in test:
                away = {s: distance.cosine(directions[i] - common, c - common) for s, c in centroids.items()}
                expected[i] = min(away, key=lambda sense: away[sense])
        told = senses.tell(vectors, given.tolist(), documents.tolist())
        assert told == expected.tolist()
        assert senses.balanced_accuracy(given, told) == pytest.approx(balanced_accuracy_score(given, expected))
        assert 0.5 < balanced_accuracy_score(given, expected) < 1


def test_only_vectors_that_differ_tell_senses_apart() -> None:
    """Both senses stand among the same words, so that windows are alike; contextual vectors differ in one sign."""
    of = [Occurrence(("a", "bank", "b"), 1, ("O", "ORG")[i % 3 == 0], str(i // 2)) for i in range(30)]
    sides = np.array([[1.0, 5.0, 1.0 if one.sense == "O" else -1.0] for one in of])
    static = {"a": np.array([1.0, 0, 0]), "b": np.array([0, 1.0, 0])}
    found = {"bank": of, "match": of}
    model = OfModel({"bank": sides, "match": sides}, static, {})
    scores = senses.results(found, model, static, Counter(a=30, b=30))["scores"]
    assert {kind: set(of_words.values()) for kind, of_words in scores.items()} == {
        senses.CONTEXTUAL: {1.0},
        senses.AVERAGED: {0.5},
        senses.WORD2VEC: {0.5},
        senses.MAJORITY: {0.5},
    }
    summary = senses.summary(found, [scores, scores])
    verdicts = {(d["group"], d["difference"]): d["verdict"] for d in summary["differences"]}
    assert verdicts["all words", "contextual - averaged contextual"] == "shown"
    assert verdicts["all words", "averaged contextual - word2vec"] == "not shown"
    assert not any(group == senses.GROUPS[2] for group, _ in verdicts), "no word here has names of two kinds"


def test_two_errors_over_words_and_seeds() -> None:
    rng = np.random.default_rng(0)
    one_seed = rng.normal(size=(30, 1))
    assert senses.two_errors(one_seed) == pytest.approx(2 * stats.sem(one_seed[:, 0]))
    draws = [0.2 * rng.normal(size=(30, 1)) + 0.3 * rng.normal(size=(1, 3)) for _ in range(4000)]
    assert np.mean([senses.two_errors(draw) ** 2 for draw in draws]) == pytest.approx(
        4 * np.var([draw.mean() for draw in draws]), rel=0.1
    )


def test_a_word_has_the_mean_of_its_pieces(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ri", "##ver", "##s", ".", "a"]))
    row = ("a", "rivers", ".", "zzz")
    tokens = encode_item(tokenizers.load(vocabulary), Item("1", " ".join(row)), 7)  # [CLS] a ri ##ver ##s . [SEP]
    vectors = np.arange(7.0)[:, None] ** 2
    found = sense_vectors.word_vectors(TextFeatures(Item("1", ""), tokens, {"last": vectors}), row, "last")
    np.testing.assert_allclose(found[:, 0], [1, (4 + 9 + 16) / 3, 25, np.nan])


def test_neighbours_of_each_sense() -> None:
    plane = {"river": [1, 0.1], "money": [0.1, 1], "shore": [1, -0.2], "rare": [1, 0], "bank": [1, 1]}
    averaged = {word: np.array(vector, float) for word, vector in plane.items()}
    occurrences = np.array([[1.0, 0.01 * i] for i in range(15)] + [[0.01 * i, 1.0] for i in range(15)])
    model = OfModel({}, averaged, {"bank": ([f"text {i}" for i in range(30)], occurrences)})
    counts = Counter(dict.fromkeys(averaged, 20)) | Counter(rare=19)
    counts["rare"] = 19
    lines = senses.homonym_table(model, averaged, counts)
    assert [line["of"] for line in lines[2:]] == [senses.AVERAGED, senses.WORD2VEC]
    of_river, of_money = sorted(lines[:2], key=lambda line: int(line["of"].split()[1]))
    assert of_river["neighbours"] == ["river", "shore", "money"]
    assert of_money["neighbours"] == ["money", "river", "shore"]
    assert int(of_river["of"].split()[1]) < 15 <= int(of_money["of"].split()[1])


def test_text_is_read_from_a_file_or_a_tar(tmp_path: Path) -> None:
    book = "# A Title\n\n" + "The King's " * 40 + "\n\nAn end.\n"
    (tmp_path / "book.md").write_text(book)
    with tarfile.open(tmp_path / "books.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "book.md", "author/book.md")
    rows = senses.read_rows(str(tmp_path / "books.tar.xz"), 1_000)
    assert rows == senses.read_rows(str(tmp_path / "book.md"), 1_000)
    assert sorted(map(len, rows)) == [3, 60, 60]
    assert Counter(word for row in rows for word in row)["king"] == 40
    assert len(senses.read_rows(str(tmp_path / "book.md"), 2)) < 3
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match="has no text"):
        senses.read_rows(str(tmp_path / "empty.txt"), 5)


def test_what_is_missing_or_wrong_is_one_line(monkeypatch, capsys, tmp_path: Path) -> None:
    flags = ["--init=nowhere", f"--text={tmp_path}/none", f"--labelled={tmp_path}", f"--workdir={tmp_path}/out"]
    monkeypatch.setitem(sys.modules, "gensim", None)
    assert senses.main(flags) == 2
    assert "word2vec needs gensim, which is not installed; take .venv-bench" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "gensim", sys.modules["json"])  # as if it were there
    assert senses.main([*flags, "--seeds=one"]) == 2
    assert "--seeds takes whole numbers" in capsys.readouterr().err
    assert senses.main(flags) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: no file {tmp_path}/train.txt")
    assert not (tmp_path / "out").exists()


@pytest.mark.heavy
def test_the_whole_command_in_small(shared_data: Callable[[str], Path], tmp_path: Path, one_device, capsys) -> None:
    if importlib.util.find_spec("gensim") is None:
        pytest.skip("needs the package gensim, of the extra bench")
    from bert_jax.runs import api

    books, labelled = shared_data("en_books") / "en_books.tar.xz", shared_data("conll2003_ner")
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(" ".join(row) for row in senses.read_rows(str(books), 100_000)))
    config = toy.recipe(text, vocab={"size": 2_000, "min_frequency": 2}, model={"max_length": 64}, examples=())
    config["objective"] = {"name": "mlm", "arrangement": "sentences"}
    api.pretrain(config, run := tmp_path / "run")
    flags = [f"--init={run}", f"--text={books}", f"--labelled={labelled}", "--layer=last"]
    flags += [f"--workdir={tmp_path}/out", "--words=100000", "--senses=3"]
    assert senses.main([*flags, "--seeds=0"]) == 0
    first = (tmp_path / "out" / "seed-0.json").read_text()
    capsys.readouterr()
    assert senses.main([*flags, "--seeds=0,1"]) == 0
    printed = capsys.readouterr()
    assert "seed 1:" in printed.err
    assert "seed 0:" not in printed.err, "it was done"
    assert (tmp_path / "out" / "seed-0.json").read_text() == first
    record = json.loads((tmp_path / "out" / "table.json").read_text())
    assert (tmp_path / "out" / "table.md").read_text() == senses.text_of(record) == printed.out.removesuffix("\n")
    assert [one["word"] for one in record["words"]] == ["chicago", "mark", "atlanta"]
    assert {one["word"] for one in record["neighbours"]} >= {"light", "mean"}
    one, other = (seed[senses.AVERAGED] for seed in record["scores"])
    assert one == other, "one model, one text"
    seeds = [json.loads((tmp_path / "out" / f"seed-{seed}.json").read_text())["neighbours"] for seed in (0, 1)]
    of_word2vec = [[line["neighbours"] for line in lines if line["of"] == senses.WORD2VEC] for lines in seeds]
    assert of_word2vec[0] != of_word2vec[1]
