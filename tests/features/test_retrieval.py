"""Search by meaning: vectors in order, the nearest found, BM25 as its formula says, and bad files."""

import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.checkpoints.saving import save_params
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.examples.collection import Collection, read_collection, read_squad
from bert_jax.features.extract import Extractor
from bert_jax.features.retrieval import as_table, bm25, bm25_class, retrieve, words
from bert_jax.interchange.loading import load
from bert_jax.models.encoders import bert
from bert_jax.models.heads import SentenceVector
from bert_jax.models.model import Model, Part, config_facts, fresh_params
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.rows.example_rows import padded_length
from bert_jax.runs.own_text import own_sentences
from bert_jax.tasks.metrics.retrieval import Nearest, retrieval_metrics
from bert_jax.text.tokenizer import wordpiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DOCUMENTS = {f"d{i}": " ".join(LETTERS[i : i + 1 + i % 7]) for i in range(20)} | {"q1": "a b c"}
QUERIES = {"q0": "a b", "q1": "a b c", "q2": "k l m n", "q3": "z"}
RELEVANCES = {"q0": {"d0": 2, "d1": 1}, "q1": {"d2": 1}, "q2": {"d10": 1, "d11": 0}}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that has learned nothing."""
    folder = tmp_path_factory.mktemp("model") / "run"
    folder.mkdir()
    tokenizer = wordpiece([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])
    tokenizer.save(folder / tokenizer.file_name)
    model = bert.Config(tokenizer.size, 16, 1, 2, 32, max_length=64, initializer_range=0.5)
    facts = {"model": config_facts(model), "lowercase": True, "vocabulary_sha256": tokenizer.sha256}
    save_params(str(folder), jax.tree.map(np.asarray, fresh_params(model)), facts)
    return str(folder)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The collection above as BEIR writes it."""
    paths = {name: tmp_path / name for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv")}
    documents = [{"_id": name, "title": "", "text": text} for name, text in DOCUMENTS.items()]
    queries = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    for path, records in zip(paths.values(), (documents, queries), strict=False):
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    lines = [f"{q}\t{d}\t{score}" for q, grades in RELEVANCES.items() for d, score in grades.items()]
    paths["qrels.tsv"].write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return paths


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_come_in_the_order_of_the_texts(workdir: str, pooling: Any) -> None:
    trained = load(workdir)
    texts = ["a b c d e f g " * n for n in (3, 1, 9)] + list(DOCUMENTS.values())
    found = Extractor(trained, [pooling], 64, batch_size=8).texts(texts)
    model = Model(trained.config, (Part.of("sentence_vector", SentenceVector, pooling=pooling),))

    @jax.jit
    def apply(ids, mask):
        batch = {"input_ids": ids, "token_type_ids": jnp.zeros_like(ids), "attention_mask": mask}
        return model.apply({"params": trained.params}, batch)

    for row in (0, 2, 5, len(texts) - 1):
        encoded = trained.tokenizer.encode(texts[row], None, 64)
        ids, mask = (jnp.asarray(x)[None] for x in (encoded.input_ids, encoded.attention_mask))
        np.testing.assert_allclose(found[row], apply(ids, mask)["embeddings"][0], atol=2e-5, err_msg=f"text {row}")


def test_few_lengths_are_compiled() -> None:
    lengths = {padded_length(n, 512) for n in range(1, 513)}
    assert lengths == {16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512}
    assert all(padded_length(n, 512) >= n for n in range(1, 513))
    assert padded_length(100, 100) == 100


def test_nearest_block_by_block() -> None:
    rng = np.random.default_rng(0)
    queries, vectors = rng.normal(size=(5, 8)), rng.normal(size=(100, 8))
    nearest = Nearest(queries, 7)
    for start in (0, 3, 60):
        nearest.add(vectors[start : {0: 3, 3: 60, 60: 100}[start]])
    cosines = (queries @ vectors.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(vectors, axis=1)
    np.testing.assert_array_equal(nearest.places, np.argsort(-cosines, axis=1)[:, :7])
    np.testing.assert_allclose(nearest.scores, np.sort(cosines, axis=1)[:, ::-1][:, :7])


def test_a_search(workdir: str, files: dict[str, Path]) -> None:
    collection = read_collection(*files.values())
    assert set(collection.queries) == set(RELEVANCES), "a query without relevances is not scored"
    found = retrieve(Extractor(load(workdir), ["mean"]), collection, top=4)
    encode = Extractor(load(workdir), ["mean"], 64, 64).texts
    documents, queries = (encode(list(texts.values())) for texts in (collection.documents, collection.queries))
    cosines = (queries @ documents.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(documents, axis=1)
    for row, query in enumerate(collection.queries):
        order = [list(DOCUMENTS)[i] for i in np.argsort(-cosines[row])]
        assert list(found.rankings[query]) == [name for name in order if name != query][:4]
    assert found.metrics["model"] == retrieval_metrics(RELEVANCES, found.rankings, (4,))
    assert found.metrics["bm25"]["recall@4"] == 1


def test_without_bm25s_the_search_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UserError, match="^BM25 needs the package bm25s; .*pip install bm25s, or give --baseline=none$"):
        bm25_class()


def test_bm25_is_its_formula() -> None:
    """Robertson and Zaragoza 2009, section 3.4, with Lucene's idf."""
    collection = Collection(DOCUMENTS, QUERIES, RELEVANCES)
    counts = {name: Counter(text.split()) for name, text in DOCUMENTS.items()}
    mean = sum(c.total() for c in counts.values()) / len(counts)
    frequency = Counter(word for c in counts.values() for word in c)
    for query, ranking in bm25(collection, 5).items():
        assert query not in ranking
        for name, score in ranking.items():
            wanted = 0.0
            for word in QUERIES[query].split():
                idf = math.log(1 + (len(counts) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                tf = counts[name][word]
                wanted += idf * tf / (tf + 0.9 * (1 - 0.4 + 0.4 * counts[name].total() / mean))
            assert score == pytest.approx(wanted, rel=1e-4)


def test_words() -> None:
    assert words("Don't stop, Übung_1!") == ["don", "t", "stop", "übung_1"]
    assert words("北京 2008") == ["北", "京", "2008"]


def test_the_command(workdir: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--workdir={workdir}", f"--corpus={files['corpus.jsonl']}", f"--queries={files['queries.jsonl']}"]
    output = tmp_path / "found.jsonl"
    assert run(["retrieve", *flags, f"--qrels={files['qrels.tsv']}", f"--output={output}"]) == 0
    printed = capsys.readouterr().out
    assert "21 documents, 3 queries; step 0, mean pooling, at most 64 tokens" in printed
    assert printed.splitlines()[1].split() == ["ndcg@10", "recall@10", "mrr@10"]
    assert [line.split()[0] for line in printed.splitlines()[2:]] == ["model", "bm25"]
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(record["id"], len(record["documents"])) for record in found] == [("q0", 10), ("q1", 10), ("q2", 10)]
    assert run(["retrieve", *flags, "--top=2"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["id"] for record in printed] == list(QUERIES), "without relevances every query is searched"
    assert printed[3]["documents"][0]["text"] == DOCUMENTS[printed[3]["documents"][0]["id"]]
    typed = [*flags[:2], "--query=a b"]
    for wrong in (
        *([flags[0]], [*flags, "--squad=x.json"], flags[:2], [*flags, "--top=0"], [*flags, "--query=a"]),
        *([*typed, "--qrels=x.tsv"], [*flags[:2], "--query= "], [flags[0], "--query=a"]),
    ):
        assert run(["retrieve", *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_typed_texts_in_plain_text(workdir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "sentences.txt"
    corpus.write_text("\ufeffa b c\n\nx y\n" + "k " * 150 + "\n")
    flags = ["retrieve", f"--workdir={workdir}", f"--corpus={corpus}", "--top=2"]
    assert run([*flags, "--query=a b c", "--query=x y"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [printed[0], printed[3]] == ["a b c", "x y"]
    assert printed[1] == "  1.000  a b c  (1)", "the document of line 1 answers query 1"
    assert printed[4] == "  1.000  x y  (3)"
    assert run([*flags, "--query=k k k k", "--json"]) == 0
    [record] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["text"] for one in record["documents"]][:1] == [("k " * 150).strip()]
    assert as_table(record).splitlines()[1].endswith("...  (4)")
    assert run(["retrieve", f"--workdir={workdir}@7", f"--corpus={corpus}", "--query=x"]) == 2
    assert "has only steps 0" in capsys.readouterr().err  # as with --step=7


def test_a_run_searches_its_own_text(workdir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = shutil.copytree(workdir, tmp_path / "run")
    flags = ["retrieve", f"--workdir={own}", "--query=k l m", "--top=1"]

    def wrong(corpus: object, **more: object) -> str:
        (own / "run.json").write_text(json.dumps({"format": 2, "config": {"corpus": corpus, **more}}))
        assert run(flags) == 2
        return capsys.readouterr().err

    for name, text in (("a", "a b c.\nx y."), ("b", "q r. \n\nk l m.")):
        (tmp_path / f"{name}.txt").write_text(text)
    corpus = {"source": "text_files", "options": {"paths": (str(tmp_path / "?.txt"),), "format": "sentences"}}
    (own / "run.json").write_text(json.dumps({"format": 2, "config": {"corpus": corpus}}))
    assert run(flags) == 0
    printed = capsys.readouterr()
    assert "4 sentences of the run's own text" in printed.err
    assert printed.out.splitlines()[1].endswith("k l m.  (b.txt:2)")
    assert own_sentences(str(own), most=3) == ({"a.txt:1": "a b c.", "a.txt:2": "x y.", "b.txt:1": "q r."}, True)
    assert "was not pretrained on text" in wrong({})
    assert "is private" in wrong(corpus, private=True)
    assert "only as tokens" in wrong({"path": "store"})
    assert run([*flags[:2], f"--queries={tmp_path / 'a.txt'}"]) == 2
    assert "--queries needs --corpus=FILE" in capsys.readouterr().err


def test_which_ids_are_shared(tmp_path: Path, files: dict[str, Path]) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other.txt"
    for path in (plain, other):
        path.write_text("a b\nb c\n")
    assert read_collection(plain, other) == Collection({"1": "a b", "2": "b c"}, {"1": "a b", "2": "b c"}, {}, False)
    assert read_collection(plain, plain).shared_ids, "the nearest other texts of a file"
    unnamed = files["corpus.jsonl"].rename(tmp_path / "corpus")
    assert read_collection(unnamed, files["queries.jsonl"]) == Collection(DOCUMENTS, QUERIES, {})
    assert not read_collection(plain, files["queries.jsonl"]).shared_ids
    other.write_bytes(b"good\n\xff\n")
    with pytest.raises(UserError, match=r"other.txt:2 is not UTF-8"):
        read_collection(plain, other)
    other.write_text("\n")
    with pytest.raises(UserError, match="other.txt has no text; write one text a line"):
        read_collection(plain, other)


def test_progress_is_told_after_each_batch(workdir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_jax.features.retrieval.BLOCK_TEXTS", 16)
    told: list[tuple[int, int]] = []
    extractor = Extractor(load(workdir), ["mean"], batch_size=8)
    retrieve(extractor, Collection(DOCUMENTS, QUERIES, {}), progress=lambda done, texts: told.append((done, texts)))
    assert told == [(4, 4), (8, 21), (16, 21), (21, 21)]


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("corpus.jsonl", '{"_id": "d0", "text": "again"}', "the _id 'd0' of another"),
        ("corpus.jsonl", '{"id": "d0", "text": "again"}', r"has no _id and text \(id, text\)"),
        ("corpus.jsonl", "{", "is not JSON"),
        ("queries.jsonl", '{"_id": "q9", "text": " "}', "1 queries without text, such as 'q9'"),
        ("qrels.tsv", "q9\td0\t1", "the query 'q9', which is not in the queries"),
        ("qrels.tsv", "q0\td99\t1", "the document 'd99', which is not in the corpus"),
        ("qrels.tsv", "q0\td0\tmuch", "the score 'much'"),
        ("qrels.tsv", "q0\td0", "has 2 fields where 3 are needed"),
    ],
)
def test_bad_files(file: str, line: str, said: str, files: dict[str, Path]) -> None:
    with open(files[file], "a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    with pytest.raises(UserError, match=said):
        read_collection(*files.values())


def test_missing_columns_and_files(files: dict[str, Path]) -> None:
    files["qrels.tsv"].write_text("query\tdocument\tscore\nq0\td0\t1\n")
    with pytest.raises(UserError, match="has no column query-id, corpus-id; its first line names query, document"):
        read_collection(*files.values())
    files["qrels.tsv"].unlink()
    with pytest.raises(UserError, match=r"no file .*qrels\.tsv"):
        read_collection(*files.values())


def test_squad(tmp_path: Path) -> None:
    qas = [{"id": "1", "question": "Who?", "answers": []}, {"id": "2", "question": "?", "is_impossible": True}]
    paragraphs = [{"context": "One.", "qas": qas}, {"context": "Two.", "qas": []}, {"context": "One.", "qas": qas[:1]}]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]}))
    collection = read_squad(path)
    assert list(collection.documents.values()) == ["One."]
    assert collection.queries == {"question-0": "Who?"}
    assert collection.relevances == {"question-0": {"paragraph-0": 1}}


def test_real_questions(shared_data: Callable[[str], Path]) -> None:
    collection = read_squad(shared_data("squad_format_en") / "xquad.en.json")
    assert (len(collection.documents), len(collection.queries)) == (240, 1187), "three questions are asked of two"
    assert retrieval_metrics(collection.relevances, bm25(collection, 10), (10,))["ndcg@10"] > 0.9
    chinese = read_squad(shared_data("squad_format_en") / "xquad.zh.json")
    assert retrieval_metrics(chinese.relevances, bm25(chinese, 10), (10,))["ndcg@10"] > 0.8
