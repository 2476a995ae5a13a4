"""What ERNIE (THU) is for: relations that a knowledge graph knows and no text tells, of entities that are new.

An entity belongs to a group, and the relation of two entities follows from their groups. The text mentions entities at
random, so that a name says nothing of its group. The graph has facts about all entities, but not the facts that are to
be found; TransE makes vectors of it. Labelled sentences are about three quarters of the entities, held-out sentences
about the others, and the model that reads words alone can but guess.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.features import transe
from tests import toy
from tests.tasks import toy_tasks

GROUPS, ENTITIES, LABELLED, SIZE = 5, 400, 300, 16
LINKS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)]  # relation -> the groups of its heads and of its tails
SENTENCES = ["{} met {} in town .", "people saw {} and {} .", "{} wrote to {} today .", "near {} lives {} ."]
MARKS = ("in", "near")


def name(entity: int) -> str:
    """Return a name that says nothing but which entity it is."""
    syllables = ["ba", "ke", "di", "fo", "gu", "la", "me", "ni", "po", "ru"]
    return "".join(syllables[int(digit)] for digit in f"{entity:03d}")


def write(folder: Path, seed: int) -> None:
    """Write a text, a graph of vectors and labelled sentences."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.arange(ENTITIES) % GROUPS)
    labelled = rng.permutation(np.arange(ENTITIES) < LABELLED)

    def pair(relation: int, among: np.ndarray) -> tuple[int, int, int]:
        head, tail = (int(rng.choice(np.flatnonzero((group == one) & among))) for one in LINKS[relation])
        return head, relation, tail

    every = np.ones(ENTITIES, bool)
    sets = {
        split: [pair(i % len(LINKS), among) for i in range(count)]
        for split, among, count in (("train", labelled, 720), ("dev", ~labelled, 240))
    }
    facts = {pair(i % len(LINKS), every) for i in range(6000)} - {*sets["train"], *sets["dev"]}
    graph = transe.Graph(tuple(map(name, range(ENTITIES))), tuple("abcdef"), np.array(sorted(facts), np.int32))
    transe.write(graph, transe.learn(graph, transe.Settings(SIZE, 60, seed)), folder / "graph")
    for split, triples in sets.items():
        lines = []
        for head, relation, tail in triples:
            a, b = name(head), name(tail)
            text = f"people saw {a} and {b} ."
            spans = [[text.index(a), text.index(a) + len(a)], [text.rindex(b), text.rindex(b) + len(b)]]
            lines.append({"text": text, "head": spans[0], "tail": spans[1], "label": "abcdef"[relation]})
        toy_tasks.write_examples(folder / f"{split}.jsonl", lines)
    said = [rng.choice(SENTENCES).format(*map(name, rng.choice(ENTITIES, 2, replace=False))) for _ in range(6000)]
    (folder / "text.txt").write_text("\n\n".join("\n".join(said[i : i + 8]) for i in range(0, len(said), 8)) + "\n")


SIZES = {"hidden_size": 64, "num_layers": 3, "num_heads": 4, "mlp_dim": 128, "max_length": 48, "dropout_rate": 0.0}
MODELS: dict[str, Any] = {
    "bert": SIZES,
    "ernie_thu": {**SIZES, "encoder": "ernie_thu", "num_token_layers": 1, "entity_size": SIZE, "num_entity_heads": 2},
}


@functools.cache
def accuracy(encoder: str, seed: int) -> float:
    """Pretrain, fine-tune, and return the accuracy on relations of new entities."""
    with tempfile.TemporaryDirectory() as temporary, toy.one_device():
        folder = Path(temporary)
        write(folder, seed)
        recipe = toy.recipe(
            folder / "text.txt",
            seed=seed,
            vocab={"size": 400},
            model=MODELS[encoder],
            phases={"phase1": {"num_steps": 400, "batch_size": 32, "max_length": 48}},
            schedule={"peak_learning_rate": 2e-3, "warmup_steps": 40},
            training={"log_every_steps": 100, "eval_every_steps": 400},
            checkpoints={"every_steps": 400},
            examples=(),
        )
        if encoder == "ernie_thu":
            lexicon = {"annotator": "entities", "path": str(folder / "graph" / "entities.tsv")}
            recipe["corpus"]["columns"] = {"entity_ids": lexicon}
            recipe["objective"] = {"name": "entity_alignment", "entities": str(folder / "graph" / "vectors.npy")}
        path = toy.write_recipe(folder / "pretrain.json", recipe)
        assert run(["pretrain", f"--config={path}", f"--workdir={folder / 'pretrained'}"]) == 0
        tuning = toy_tasks.recipe(
            "relation_classification",
            seed=seed,
            packing="none",
            model={"dropout_rate": 0.0, "attention_dropout_rate": 0.0},
            phases={"train": {"num_epochs": 6}},
            schedule={"peak_learning_rate": 1e-3},
        )
        tuning["task"]["marks"] = MARKS  # the entities are those of the pretraining
        del tuning["vocab"]
        (folder / "recipe.json").write_text(json.dumps(tuning))
        assert toy_tasks.finetune(folder, f"--init={folder / 'pretrained'}") == 0
        return float(toy_tasks.results(folder)["metrics"]["dev"]["accuracy"])


@pytest.mark.heavy
def test_the_graph_tells_what_no_text_does() -> None:
    """Three seeds. A guess is right 1 time in 6; the words alone found 0.17 to 0.19, the graph 0.87 to 0.98."""
    words, knowledge = ([accuracy(encoder, seed) for seed in range(3)] for encoder in MODELS)
    print(f"\nrelations found: bert {np.round(words, 3)}, ernie_thu {np.round(knowledge, 3)}")
    assert max(words) < 0.3
    assert min(knowledge) > 0.7
