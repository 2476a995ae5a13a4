"""A toy of every task that a 1 x 32 model learns in seconds, and the real command on it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.models.encoders import bert
from bert_jax.parts import catalogue
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.rows.rows_config import Packing
from bert_jax.runs.finetuning import Finetuning
from bert_jax.runs.inputs import initial_of_run
from bert_jax.tasks.base import ExampleTask, Setting
from bert_jax.text.learn import learn_wordpiece
from bert_jax.text.tokenizer import Tokenizer, wordpiece

FILLERS = ["the", "film", "was", "seen", "by", "many", "people", "in", "a", "small", "town", "today"]
GOOD, BAD = ["great", "lovely", "bright"], ["awful", "dull", "boring"]
MARKS = ("film", "town")  # around mentions: words of the vocabulary, which its learning need not be told
PEOPLE, SURNAMES, PLACES = ["anna", "boris", "clara"], ["smith", "jones"], ["paris", "oslo", "rome"]


def classification(rng: random.Random) -> dict[str, Any]:
    label, words = rng.choice([("pos", GOOD), ("neg", BAD)])
    text = rng.choices(FILLERS, k=rng.randint(3, 9))
    text.insert(rng.randrange(len(text)), rng.choice(words))
    return {"text": " ".join(text), "label": label}


def san_classification(rng: random.Random) -> dict[str, Any]:
    """The label is the mood of the second text; the first has one of its own."""
    words = [rng.choice([GOOD, BAD]) for _ in range(2)]
    text, pair = (" ".join([*rng.choices(FILLERS, k=rng.randint(1, 4)), rng.choice(mood)]) for mood in words)
    return {"text": text, "pair": pair, "label": "pos" if words[1] is GOOD else "neg"}


def regression(rng: random.Random) -> dict[str, Any]:
    good = rng.randint(0, 4)
    text = rng.choices(GOOD, k=good) + rng.choices(BAD, k=4 - good)
    rng.shuffle(text)
    return {"text": " ".join(text), "pair": " ".join(rng.choices(FILLERS, k=3)), "label": good / 4}


def tagging(rng: random.Random) -> dict[str, Any]:
    words: list[tuple[str, str]] = []
    for _ in range(rng.randint(2, 5)):
        words += [(word, "O") for word in rng.choices(FILLERS, k=rng.randint(1, 3))]
        kind = rng.randrange(3)
        words += [[(rng.choice(PEOPLE), "B-PER")], [(rng.choice(PLACES), "B-LOC")], []][kind]
        if kind == 0 and rng.random() < 0.7:
            words.append((rng.choice(SURNAMES), "I-PER"))
    return {"words": [word for word, _ in words], "tags": [tag for _, tag in words]}


def multiple_choice(rng: random.Random) -> dict[str, Any]:
    choices = [" ".join([*rng.choices(FILLERS, k=2), rng.choice(BAD)]) for _ in range(rng.randint(2, 4))]
    label = rng.randrange(len(choices))
    choices[label] = " ".join([*rng.choices(FILLERS, k=2), rng.choice(GOOD)])
    return {"context": " ".join(rng.choices(FILLERS, k=3)), "choices": choices, "label": label}


def ranking(rng: random.Random) -> dict[str, Any]:
    """A group, which ``examples`` makes a candidate each of."""
    group = multiple_choice(rng)
    return {"text": group["context"], "candidates": group["choices"], "right": group["label"]}


def relation_classification(rng: random.Random) -> dict[str, Any]:
    """The text has two names beside the mood that is the label; they are the head and the tail."""
    example = classification(rng)
    words = [word for word in example["text"].split() if word not in MARKS]
    head, tail = rng.choice(PEOPLE), rng.choice(PLACES)
    text = " ".join([head, *words, tail, "today"])
    start = len(head) + 1 + sum(len(word) + 1 for word in words)
    return {**example, "text": text, "head": [0, len(head)], "tail": [start, start + len(tail)]}


def entity_typing(rng: random.Random) -> dict[str, Any]:
    """The types say what the mention is, and the mood of the text."""
    example = relation_classification(rng)
    role, kind = rng.choice([("head", "person"), ("tail", "place")])
    types = [kind, example["label"]][: rng.randint(1, 2)]
    return {"text": example["text"], "mention": example[role], "types": types}


def text_generation(rng: random.Random) -> dict[str, Any]:
    """The target is the source in reverse."""
    words = rng.choices(FILLERS, k=rng.randint(2, 4))
    return {"text": " ".join(words), "target": " ".join(reversed(words))}


MAKERS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "classification": classification,
    "san_classification": san_classification,
    "regression": regression,
    "tagging": tagging,
    "multiple_choice": multiple_choice,
    "ranking": ranking,
    "relation_classification": relation_classification,
    "entity_typing": entity_typing,
    "text_generation": text_generation,
}


KEYS: dict[str, dict[str, Any]] = {  # that a toy of a task needs
    "text_generation": {"max_target_length": 8},
    "relation_classification": {"marks": MARKS},
    "entity_typing": {"marks": MARKS[:1]},
}


def examples(task: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """With the roles of ``task``, and ids."""
    rng = random.Random(seed)
    found = [{"id": f"{seed}-{i}", **MAKERS[task](rng)} for i in range(count)]
    return [one for group in found for one in candidates(group)] if task == "ranking" else found


def candidates(group: dict[str, Any]) -> list[dict[str, Any]]:
    """The examples of a group of ``ranking``."""
    each = {"text": group["text"], "group": group["id"]}
    labels = ["yes" if i == group["right"] else "no" for i in range(len(group["candidates"]))]
    return [
        {"id": f"{group['id']}-{i}", **each, "pair": pair, "label": label}
        for i, (pair, label) in enumerate(zip(group["candidates"], labels, strict=True))
    ]


def make_tokenizer() -> Tokenizer:
    """Return a tokenizer that has a piece for every word but the surnames, which are several pieces."""
    texts = [text for group in (FILLERS, GOOD, BAD, PEOPLE, PLACES) for text in group]
    return wordpiece(learn_wordpiece(texts, 120, min_frequency=1))


def make_task(
    name: str,
    splits: dict[str, list[dict[str, Any]]],
    max_length: int = 32,
    config: Any = None,
    frozen: tuple[str, ...] = (),
    packing: Packing = "bucketed",
    **model: Any,
) -> ExampleTask:
    """The task on examples, without a run. ``config``: keys of config.task."""
    module = catalogue.find("tasks", name, having="Task")
    own = module.Config(**{**KEYS.get(name, {}), **(config or {})})
    tokenizer = make_tokenizer()
    shape = bert.Config(tokenizer.size, 32, 1, 2, 64, max_length=32, **model)
    found = {split: tuple(examples) for split, examples in splits.items()}
    labels = module.Task.labels(own, found["train"])
    setting = Setting(found, tokenizer, shape, labels, max_length, 16, packing=packing, frozen=frozen)
    task: ExampleTask = module.Task(own, setting)
    return task


def write_examples(path: Path, found: list[dict[str, Any]]) -> Path:
    """As JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(example) + "\n" for example in found))
    return path


def recipe(task: str, **changes: Any) -> dict[str, Any]:
    """A config tree on train.jsonl and dev.jsonl. ``changes`` replace keys of its groups."""
    config: dict[str, Any] = {
        "task": {"name": task, **KEYS.get(task, {})},
        "data": {"format": "jsonl", "splits": {"train": "train.jsonl", "dev": "dev.jsonl"}, "overlap": "warn"},
        "vocab": {"size": 160, "min_frequency": 1},
        "model": {
            "hidden_size": 32,
            "num_layers": 1,
            "num_heads": 2,
            "mlp_dim": 64,
            "max_length": 32,
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
            "initializer_range": 0.1,
        },
        "phases": {"train": {"num_epochs": 3, "batch_size": 16, "max_length": 32}},
        "schedule": {"name": "linear", "peak_learning_rate": 3e-3},
        "optimizer": {"bias_correction": "standard"},
        "training": {"loggers": ()},
        "export": False,
    }
    return configuration.complete(changes, config)


def write_toy(folder: Path, task: str, train: int = 192, dev: int = 48, phase: Any = None, **changes: Any) -> Path:
    """Data and recipe of ``task`` in ``folder``; the recipe. ``phase`` replaces keys of its phase."""
    write_examples(folder / "train.jsonl", examples(task, train, 1))
    write_examples(folder / "dev.jsonl", examples(task, dev, 2))
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe(task, **changes, phases={"train": phase or {}})))
    return path


def finetune(folder: Path, *flags: str, workdir: str = "run") -> int:
    """``bert-jax finetune`` on a folder of ``write_toy``."""
    return run(
        ["finetune", f"--config={folder / 'recipe.json'}", f"--data={folder}", f"--workdir={folder / workdir}", *flags]
    )


def prepared(folder: Path, config: dict[str, Any]) -> Any:
    """The task and the experiment of a recipe on the examples in ``folder``: a run as far as before its first step."""
    checked = Finetuning(FinetuningSettings.of(config))
    return checked.with_examples(checked.load(str(folder), lambda line: None))


def task_config(folder: Path, init: Path, resumes: bool) -> Any:
    """The config of the task of the recipe in ``folder``, of a new run from ``init`` or of ``run``, which goes on."""
    settings = FinetuningSettings.of(json.loads((folder / "recipe.json").read_text()))
    initial = initial_of_run(settings.vocab, (), str(init), str(folder / "run"), resumes)
    return Finetuning(settings, initial).tasks[""].config


def results(folder: Path, workdir: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / workdir / "results.json").read_text())
    return found


def predictions(folder: Path, split: str = "dev", workdir: str = "run") -> list[dict[str, Any]]:
    lines = (folder / workdir / f"predictions_{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def evaluations(folder: Path, workdir: str = "run") -> list[dict[str, Any]]:
    """Records of the run's evaluations."""
    records = map(json.loads, (folder / workdir / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["split"] == "eval"]
