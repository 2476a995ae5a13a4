"""Learn vectors of the entities of a knowledge graph, by TransE, for ERNIE (THU): a table and its lexicon."""

from __future__ import annotations

import argparse

from bert_jax.cli.flags import whole_number
from bert_jax.storage import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--input", required=True, metavar="FILE", help="facts, a line HEAD<TAB>RELATION<TAB>TAIL each")
    add("--output", required=True, metavar="FOLDER", help="the new folder for vectors.npy and entities.tsv")
    add("--size", type=whole_number(1, 4096), default=100, help="numbers of a vector (default: %(default)s)")
    add("--epochs", type=whole_number(1), default=200, help="how often each fact is read (default: %(default)s)")
    add("--seed", type=whole_number(0), default=0, help="of the first vectors and of the order (default: %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    from bert_jax.features.transe import LEXICON, VECTORS, Settings, learn, mean_rank, read_graph, write

    a = arguments
    files.check_new(a.output)
    graph = read_graph(a.input)
    files.check_writable(a.output, folder=True)
    count = len(graph.entities)
    print(f"{count:,} entities, {len(graph.relations):,} relations, {len(graph.triples):,} facts", flush=True)
    tables = learn(graph, Settings(a.size, a.epochs, a.seed))
    write(graph, tables, a.output)
    print(f"the tail of a fact has the rank {mean_rank(tables, graph.triples):,.1f} of {count:,} on average")
    print(f"{a.output}/{VECTORS} has {count + 1:,} rows of {a.size}, row 0 of zeros; {a.output}/{LEXICON} names them")
