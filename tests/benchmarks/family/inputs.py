"""Makes the text that all systems read: a sample of books, their phrases and names, one vocabulary, a corpus."""

from __future__ import annotations

import json
import lzma
import math
import re
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.configuration import complete
from bert_jax.features import transe
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.inputs import CORPUS, Inputs
from bert_jax.text import tokenizer as tokenizers
from tests.benchmarks.family.rows import ENTITY_SIZE

BOOKS, FACTS = "en_books/en_books.tar.xz", ("entity_fewrel/val_wiki.json.xz", "entity_fewrel/val_nyt.json.xz")
EVERY = 3  # each third book of the collection
MOST = 5_000  # phrases, and names
NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+(?: [A-Z][a-z]+)*")  # not where a sentence begins


class Text:
    """The text in a folder, made from the data where it is missing."""

    def __init__(self, folder: Path, data: Path, common: Mapping[str, Any]):
        """Take the folder with the data, and the recipe of a row without columns of its own."""
        self._folder, self._data, self._common = folder, data, common

    def config(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recipe of the row ``name`` with the paths of vocabulary and corpus, both made if missing.

        A row with columns, or with another use of the vocabulary, has a corpus of its own, of the same text and pieces.
        """
        self._write_books()
        self._make("all", self._common)
        vocab = {"vocab": {"path": str(tokenizers.find(str(self._folder / "all")))}}
        own = complete(vocab, config)
        if vectors := own["objective"].get("entities"):
            self._write_knowledge()
            own["objective"] = {**own["objective"], "entities": str(self._folder / vectors)}
        alike = not config["corpus"].get("columns") and config["vocab"] == self._common["vocab"]
        place = "all" if alike else name
        if place != "all":
            self._make(place, own)
        return complete({"corpus": {"path": str(self._folder / place / CORPUS), "columns": {}}}, own)

    def _make(self, name: str, config: Mapping[str, Any]) -> None:
        """Make the vocabulary and the corpus of a recipe in the folder ``name``, unless they are there."""
        place = self._folder / name
        if (place / "done").exists():
            return
        place.mkdir(parents=True, exist_ok=True)
        columns = {
            column: {**options, "path": str(self._folder / options["path"])}
            for column, options in config["corpus"].get("columns", {}).items()
        }
        paths = {"options": {"paths": (str(self._folder / "books" / "*.txt"),)}, "columns": columns}
        settings = PretrainingSettings.of(complete({"corpus": paths}, config))
        Inputs(str(place), settings.vocab, settings.corpus, None, False, masks_words=True).open(print)
        (place / "done").touch()

    def _write_books(self) -> None:
        if (self._folder / "entities.txt").exists():
            return
        books = self._folder / "books"
        books.mkdir(parents=True, exist_ok=True)
        with tarfile.open(self._data / BOOKS) as tar:
            members = sorted((one for one in tar if one.name.endswith(".md")), key=lambda one: one.name)
            for number, member in enumerate(members[::EVERY]):
                file = tar.extractfile(member)
                assert file
                (books / f"{number:03d}.txt").write_bytes(file.read())
        texts = [path.read_text(encoding="utf-8") for path in sorted(books.iterdir())]
        for name, found in {"phrases": phrases(texts), "entities": names(texts)}.items():
            (self._folder / f"{name}.txt").write_text("\n".join(found), encoding="utf-8")

    def _write_knowledge(self) -> None:
        """Write the vectors of FewRel's entities, by TransE on its facts, and the lexicon of their names in the text.

        A phrase is a name if it is among ``names`` of the text too: "Once" and "People" are titles of works.
        """
        if (self._folder / "entities.tsv").exists():
            return
        facts, ids = set[str](), dict[str, str]()  # a fact is "HEAD<TAB>RELATION<TAB>TAIL"; ids: a name -> its entity
        for path in FACTS:
            with lzma.open(self._data / path, "rt", encoding="utf-8") as file:
                relations = json.load(file)
            for relation, sentence in ((name, one) for name, of_name in relations.items() for one in of_name):
                facts.add("\t".join((sentence["h"][1], relation, sentence["t"][1])))
                for _, entity, ((*places,), *_) in (sentence["h"], sentence["t"]):
                    ids.setdefault(" ".join(sentence["tokens"][place] for place in places), entity)
        (self._folder / "facts.tsv").write_text("\n".join(sorted(facts)), encoding="utf-8")
        graph = transe.read_graph(str(self._folder / "facts.tsv"))
        transe.write(graph, transe.learn(graph, transe.Settings(size=ENTITY_SIZE)), self._folder / "graph")
        (self._folder / "graph" / transe.VECTORS).rename(self._folder / "vectors.npy")
        known = (self._folder / "entities.txt").read_text(encoding="utf-8").split("\n")
        row = {entity: number for number, entity in enumerate(graph.entities, start=1)}
        lines = [f"{name}\t{row[ids[name]]}\n" for name in known if name in ids]
        (self._folder / "entities.tsv").write_text("".join(lines), encoding="utf-8")


def phrases(texts: list[str]) -> list[str]:
    """Return the pairs of words that stand together more often than by chance (a term of Dunning 1993)."""
    words, pairs = Counter[str](), Counter[tuple[str, str]]()
    for text in texts:
        for run in re.findall(r"[a-z]+(?: [a-z]+)*", text):
            of_run = run.split()
            words.update(of_run)
            pairs.update(zip(of_run, of_run[1:], strict=False))
    total = sum(words.values())
    scores = {(a, b): n * math.log(n * total / (words[a] * words[b])) for (a, b), n in pairs.items()}
    return [" ".join(pair) for pair in sorted(scores, key=lambda pair: (-scores[pair], pair))[:MOST]]


def names(texts: list[str]) -> list[str]:
    """Return the most frequent runs of capitalised words, without those that begin a sentence."""
    found = Counter(name for text in texts for name in NAME.findall(text))
    return [name for name, _ in found.most_common(MOST)]
