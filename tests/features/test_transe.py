"""TransE: facts that it has not read are likelier than chance, a seed says everything, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.features.transe import Graph, Settings, distances, learn, mean_rank, read_graph

GROUPS, ENTITIES = 5, 100
LINKS = [(0, 1), (1, 2), (3, 2), (4, 0)]  # relation -> the groups of its heads and of its tails


def toy_graph(seed: int, facts: int = 1200) -> Graph:
    """Return a graph in which a relation links any member of one group to any member of another."""
    rng = np.random.default_rng(seed)
    which = rng.integers(len(LINKS), size=facts)
    heads, tails = (np.array(LINKS)[which].T + GROUPS * rng.integers(ENTITIES // GROUPS, size=(2, facts))).tolist()
    triples = np.unique(np.stack([heads, which, tails], axis=1), axis=0).astype(np.int32)
    return Graph(tuple(f"entity {i}" for i in range(ENTITIES)), tuple("abcd"), rng.permutation(triples))


def test_facts_that_were_not_read_rank_high() -> None:
    graph = toy_graph(0)
    known, hidden = graph.triples[::2], graph.triples[1::2]
    tables = learn(graph._replace(triples=known), Settings(16, 40))
    np.testing.assert_allclose(np.linalg.norm(tables["entities"], axis=1), 1.0, rtol=1e-5)
    chance, error = (ENTITIES + 1) / 2, ENTITIES / 12**0.5 / len(hidden) ** 0.5  # the mean rank of random tails
    assert mean_rank(tables, known) < mean_rank(tables, hidden) < chance - 10 * error
    assert abs(mean_rank(learn(graph, Settings(16, 0)), hidden) - chance) < 6 * error


def test_the_mean_rank_is_by_hand() -> None:
    tables = {"entities": np.array([[0.0], [1.0], [3.0]], np.float32), "relations": np.array([[1.5]], np.float32)}
    triples = np.array([[0, 0, 1], [0, 0, 2]], np.int32)
    assert mean_rank(tables, triples) == (1 + 2) / 2
    np.testing.assert_allclose(distances(tables, triples), [0.5, 1.5])


def test_a_seed_says_everything() -> None:
    graph, tables = toy_graph(1, 100), [learn(toy_graph(1, 100), Settings(8, 3, seed)) for seed in (0, 0, 1)]
    assert len(graph.triples) > 90
    np.testing.assert_array_equal(tables[0]["entities"], tables[1]["entities"])
    assert np.abs(tables[0]["entities"] - tables[2]["entities"]).max() > 0.1


def test_the_command_writes_a_table_and_its_lexicon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = tmp_path / "facts.tsv"
    facts.write_text("Ada Lovelace\tborn in\tLondon\n\nParis\tin\tFrance\nLondon\tin\tEngland\nParis\tin\tFrance\n")
    argv = ["transe", f"--input={facts}", f"--output={tmp_path / 'graph'}", "--size=6", "--epochs=2"]
    assert run(argv) == 0
    assert "5 entities, 2 relations, 3 facts" in capsys.readouterr().out
    vectors = np.load(tmp_path / "graph" / "vectors.npy")
    assert (vectors.shape, vectors.dtype) == ((6, 6), np.float32)
    assert vectors.any(axis=1).tolist() == [False, *[True] * 5]
    lines = (tmp_path / "graph" / "entities.tsv").read_text().splitlines()
    assert lines == ["Ada Lovelace\t1", "England\t2", "France\t3", "London\t4", "Paris\t5"]
    assert run(argv) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\tb\tc\na\tb\n", "facts.tsv:2 is 'a\\tb'; a head, a relation and a tail are needed, tabs between"),
        ("a\t\tc\n", "facts.tsv:1 is 'a\\t\\tc'; a head"),
        ("\n", "facts.tsv has 0 entities; facts about two or more are needed"),
        (None, "no file "),
    ],
)
def test_files_that_are_no_graph(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "facts.tsv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as error:
        read_graph(str(path))
    assert said in str(error.value)
