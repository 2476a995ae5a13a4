"""Writes FewRel's sentences in two splits, and the facts of the first split as a knowledge graph.

    python tests/benchmarks/fewrel_graph.py val_wiki.json fewrel

``train.json`` has 560 sentences of each relation and ``dev.json`` the other 140. ``facts.tsv`` has the facts of train
that are not facts of dev, a line ``HEAD<TAB>RELATION<TAB>TAIL`` each, for ``bert-jax transe``.
"""

import json
import lzma
import random
import sys
from pathlib import Path

TRAIN = 560  # sentences of each relation to train on


def main(source: Path, output: Path) -> None:
    with lzma.open(source, "rt") if source.suffix == ".xz" else source.open() as file:
        relations = json.load(file)
    splits: dict[str, dict[str, list[dict[str, list]]]] = {"train": {}, "dev": {}}
    for relation, sentences in relations.items():
        random.Random(relation).shuffle(sentences)
        splits["train"][relation], splits["dev"][relation] = sentences[:TRAIN], sentences[TRAIN:]
    output.mkdir(exist_ok=True)
    facts = {}
    for name, of in splits.items():
        (output / f"{name}.json").write_text(json.dumps(of))
        facts[name] = {(one["h"][1], relation, one["t"][1]) for relation, every in of.items() for one in every}
    lines = ["\t".join(fact) + "\n" for fact in sorted(facts["train"] - facts["dev"])]
    (output / "facts.tsv").write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
