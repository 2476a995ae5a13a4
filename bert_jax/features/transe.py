"""TransE (Bordes et al. 2013): learns a vector for each entity of a knowledge graph, in which head + relation is tail.

ERNIE (THU) reads such vectors (Zhang et al. 2019, section 3.3). ``bert-jax transe`` writes them as its table, with
row 0 for tokens without an entity, and the lexicon that says which row is whose.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.errors import UserError
from bert_jax.storage import files, reading

VECTORS, LEXICON = "vectors.npy", "entities.tsv"  # the files of a folder of vectors
_MARGIN, _BATCH_SIZE, _RULE = 1.0, 1024, optax.adam(0.01)
_MOST_RANKED = 1000  # triples whose tails are ranked
_Tables = dict[str, jax.Array]  # "entities" [N, E] and "relations" [R, E]


class Graph(NamedTuple):
    """A knowledge graph. The names of entities and of relations are sorted; ``triples`` [T, 3] int32 index them."""

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    triples: np.ndarray  # head, relation, tail


@dataclasses.dataclass(frozen=True)
class Settings:
    """How vectors are learned. The paper takes plain gradient descent and up to 1,000 epochs; here it is Adam."""

    size: int = 100  # E, the width of a vector
    epochs: int = 200
    seed: int = 0


def read_graph(path: str) -> Graph:
    """Return the graph of a UTF-8 file with a line ``HEAD<TAB>RELATION<TAB>TAIL`` for each fact; a fact counts once.

    Raises ``UserError`` for a missing file, a line without three names, or a graph of fewer than two entities.
    """
    source = files.as_path(path)
    if not source.is_file():
        raise UserError(f"no file {path}; give a file of facts, a line HEAD<TAB>RELATION<TAB>TAIL each")
    facts = set()
    for number, line in enumerate(reading.utf8_text(source, path, "file of facts").splitlines(), 1):
        names = tuple(name.strip() for name in line.split("\t"))
        if line.strip() and (len(names) != 3 or not all(names)):
            raise UserError(f"{path}:{number} is {line[:60]!r}; a head, a relation and a tail are needed, tabs between")
        if line.strip():
            facts.add(names)
    entities, relations = (sorted({fact[i] for fact in facts for i in places}) for places in ((0, 2), (1,)))
    if len(entities) < 2:
        raise UserError(f"{path} has {len(entities)} entities; facts about two or more are needed")
    rows, kinds = ({name: i for i, name in enumerate(names)} for names in (entities, relations))
    triples = [(rows[head], kinds[relation], rows[tail]) for head, relation, tail in sorted(facts)]
    return Graph(tuple(entities), tuple(relations), np.array(triples, np.int32))


def learn(graph: Graph, settings: Settings) -> _Tables:
    """Return the vectors of entities, of length 1, and of relations, learned by algorithm 1 of the paper.

    A true triple has to be nearer than a triple with a random head or tail, by a margin of 1 in the L1 distance.
    """
    first, key = jax.random.split(jax.random.key(settings.seed))
    bound = 6 / settings.size**0.5
    shapes = {"entities": (len(graph.entities), settings.size), "relations": (len(graph.relations), settings.size)}
    tables = {
        name: jax.random.uniform(jax.random.fold_in(first, i), shape, minval=-bound, maxval=bound)
        for i, (name, shape) in enumerate(shapes.items())
    }
    tables = {name: _normalised(table) for name, table in tables.items()}
    state = _RULE.init(tables)
    for epoch in range(settings.epochs):
        tables, state = _epoch(tables, state, jnp.asarray(graph.triples), jax.random.fold_in(key, epoch))
    return tables


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _epoch(tables: _Tables, state: Any, triples: jax.Array, key: jax.Array) -> tuple[_Tables, Any]:
    """Return tables and optimizer state after each triple was read once, in random order."""
    size = min(_BATCH_SIZE, len(triples))
    steps = -(-len(triples) // size)
    order = jnp.resize(jax.random.permutation(key, len(triples)), (steps, size))  # the first fill up the last batch

    def step(carry: Any, inputs: Any) -> tuple[Any, None]:
        (tables, state), (batch, number) = carry, inputs
        corrupted = _corrupted(triples[batch], len(tables["entities"]), jax.random.fold_in(key, number + 1))

        def loss(tables: _Tables) -> jax.Array:
            gap = _MARGIN + distances(tables, triples[batch]) - distances(tables, corrupted)
            return jnp.sum(jnp.maximum(gap, 0.0)) / size

        updates, state = _RULE.update(jax.grad(loss)(tables), state, tables)
        tables = optax.apply_updates(tables, updates)
        return ({**tables, "entities": _normalised(tables["entities"])}, state), None

    return jax.lax.scan(step, (tables, state), (order, jnp.arange(steps)))[0]  # type: ignore[no-any-return]


def _corrupted(triples: jax.Array, num_entities: int, key: jax.Array) -> jax.Array:
    """Return triples [T, 3] in which a random entity takes the place of the head or of the tail."""
    sides, others = jax.random.split(key)
    side = jax.random.bernoulli(sides, shape=(len(triples), 1)) * 2
    other = jax.random.randint(others, (len(triples), 1), 0, num_entities, triples.dtype)
    return jnp.where(jnp.arange(3)[None, :] == side, other, triples)


def distances(tables: _Tables, triples: jax.Array) -> jax.Array:
    """Return the L1 distance from head + relation to tail of each of triples [..., 3]."""
    entities, relations = tables["entities"], tables["relations"]
    gaps = entities[triples[..., 0]] + relations[triples[..., 1]] - entities[triples[..., 2]]
    return jnp.sum(jnp.abs(gaps), axis=-1)


def mean_rank(tables: _Tables, triples: np.ndarray) -> float:
    """Return the mean rank of true tails among all entities, 1 the best, over at most 1,000 evenly spaced triples."""
    chosen = triples[:: -(-len(triples) // _MOST_RANKED)]
    heads = tables["entities"][chosen[:, 0]] + tables["relations"][chosen[:, 1]]

    def rank(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        sought, tail = pair
        gaps = jnp.sum(jnp.abs(sought[None, :] - tables["entities"]), axis=1)
        return 1 + jnp.sum(gaps < gaps[tail])

    return float(jnp.mean(jax.lax.map(rank, (heads, jnp.asarray(chosen[:, 2])))))


def _normalised(table: jax.Array) -> jax.Array:
    """Return ``table`` with rows of length 1."""
    return table / jnp.linalg.norm(table, axis=1, keepdims=True)


def write(graph: Graph, tables: _Tables, folder: str | os.PathLike[str]) -> None:
    """Write the table of entities, whose row 0 is zeros, and the lexicon of their rows into a new ``folder``."""
    vectors = np.asarray(tables["entities"], np.float32)
    with files.whole_directory(folder) as place:
        np.save(place / VECTORS, np.concatenate([np.zeros_like(vectors[:1]), vectors]))
        lines = [f"{name}\t{row}\n" for row, name in enumerate(graph.entities, 1)]
        (place / LEXICON).write_text("".join(lines), encoding="utf-8")
