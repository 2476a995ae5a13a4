"""What continual learning is for: the first task is still known after the last stage (Sun et al. 2020).

Toy text: documents of six sentences such as ``first Anna reads books in Paris``. Who and where are the same in all
sentences of a document, the verb says what follows it, and the first words are in order. So every task can be learned.

Measured on 2 shared CPU cores (AMD EPYC), 2026-11-28, with 800 steps of 32 x 32 positions. The loss of masked words
after the last stage, in nats (a trigram cloze has 0.91, a unigram 3.90):

    seed          0      1      2
    continual     1.451  1.661  1.409
    joint         3.160  3.686  3.913
    sequential    6.093  5.186  5.733

``joint`` also has one warm-up and one decay of the rate, where the others have four.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.recipes import stages
from tests import toy
from tests.training import gang

TASKS = {
    "masking": {"name": "mlm", "arrangement": "sentences"},
    "capitals": {"name": "capitals", "arrangement": "sentences"},
    "token_document": {"name": "token_document"},
    "reordering": {"name": "sentence_reordering"},
}
# Of the paper, in thousands; here in fours.
ALLOCATION = {
    "masking": (20, 10, 10, 10),
    "capitals": (0, 30, 10, 10),
    "token_document": (0, 0, 40, 10),
    "reordering": (0, 0, 0, 50),
}
ORDER = ("first", "second", "third", "then", "later", "finally")
WHO = ("Anna", "Boris", "Clara", "David", "Emma", "Fred")
WHERE = ("in Paris", "at home", "in London", "at sea", "in Rome", "on Mars")
WHAT = {
    "reads": "books",
    "bakes": "bread",
    "paints": "pictures",
    "plays": "chess",
    "rides": "horses",
    "sings": "songs",
    "builds": "boats",
    "plants": "trees",
}
MODEL = {"encoder": "ernie", "task_type_vocab_size": 4, "hidden_size": 64, "num_layers": 2, "num_heads": 4}
MODEL |= {"mlp_dim": 128, "dropout_rate": 0.0, "attention_dropout_rate": 0.0, "initializer_range": 0.08}


def write_text(path: Path) -> Path:
    draw, documents = random.Random(0), []
    for _ in range(600):
        who, where = draw.choice(WHO), draw.choice(WHERE)
        verbs = [draw.choice(list(WHAT)) for _ in ORDER]
        documents.append([f"{word} {who} {verb} {WHAT[verb]} {where}" for word, verb in zip(ORDER, verbs, strict=True)])
    path.write_text("\n\n".join(map("\n".join, documents)) + "\n")
    return path


def after_the_last_stage(folder: Path, schedule: str, seed: int) -> dict[str, float]:
    """Return the held-out metrics of a run by ``bert-jax pretrain``."""
    steps = {task: tuple(4 * count for count in row) for task, row in ALLOCATION.items()}
    rate = {"name": "inverse_sqrt", "peak_learning_rate": 3e-3, "warmup_steps": 30}
    phases = stages.phases(schedule, steps, TASKS, {"batch_size": 32, "max_length": 32, "schedule": rate}).to_dict()
    read = "stage1" if schedule == "sequential" else None  # the rows of the first task; else of all tasks
    config: dict[str, Any] = toy.recipe(
        write_text(folder / "text.txt"),
        seed=seed,
        model=MODEL,
        training={"log_every_steps": 800, "eval_every_steps": 800, "eval_rows": 400, "loggers": (), "eval_phase": read},
        checkpoints={"every_steps": 800},
        examples=(),
        export=False,
    )
    config |= {"phases": phases, "objective": {"name": "mlm", "packing": "packed"}}
    config["corpus"]["columns"] = toy.COLUMNS["capitals"]
    recipe, workdir = toy.write_recipe(folder / "recipe.json", config), folder / f"{schedule}{seed}"
    assert run(["pretrain", f"--config={recipe}", f"--workdir={workdir}"]) == 0
    found = [one for one in gang.records(workdir) if one["split"] == "eval" and one["step"] == 800]
    print(
        schedule,
        seed,
        {name: round(value, 3) for name, value in found[-1].items() if "accuracy" in name or "loss" in name},
    )
    return found[-1]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_masked_words_are_known_after_the_last_stage(tmp_path: Path, seed: int, one_device: None) -> None:
    """They are forgotten if the later tasks are learned alone; and the later tasks are learned beside masked words."""
    continual, sequential = (after_the_last_stage(tmp_path, name, seed) for name in ("continual", "sequential"))
    assert continual["mlm_loss"] < 2.0 < 4.0 < sequential["mlm_loss"]
    assert continual["capitals_accuracy"] > 0.95
    assert continual["sentence_reordering_accuracy"] > 0.4
    assert continual["token_document_accuracy"] > 0.7
