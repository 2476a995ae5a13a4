"""Tasks about entities that a text mentions: marks, ids and vectors of entities, what is refused, and a whole run."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.models.encoders import bert, ernie_thu
from bert_jax.parts import catalogue
from bert_jax.tasks import entity_typing, relation_classification
from bert_jax.tasks.base import KIND, PACKED, Setting
from bert_jax.tasks.mentions import _mark
from tests.tasks import toy_tasks

WIDTH = 6
OF_ENTITIES = {"num_layers": 2, "num_token_layers": 0, "entity_size": WIDTH, "num_entity_heads": 2}
NAMES = [f"{name} {surname}" for name in toy_tasks.PEOPLE for surname in toy_tasks.SURNAMES]
LEXICON = {name: 3 + i for i, name in enumerate(NAMES)} | {"oslo": 1, "Q7": 2}


def graph(folder: Path, lexicon: Mapping[str, int] = LEXICON, rows: int = 12, width: int = WIDTH) -> dict[str, str]:
    """Write a table of vectors and a lexicon; return the keys of the task that name them."""
    vectors = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    vectors[0] = 0
    np.save(folder / "vectors.npy", vectors)
    (folder / "entities.tsv").write_text("".join(f"{name}\t{row}\n" for name, row in lexicon.items()))
    return {"entities": str(folder / "vectors.npy"), "lexicon": str(folder / "entities.tsv")}


def make(
    examples: list[dict[str, Any]],
    keys: Mapping[str, Any],
    packing: Any = "none",
    width: int = WIDTH,
    num_token_layers: int | None = 1,
) -> Any:
    """Return the task ``relation_classification`` of an ERNIE with entities, or of a BERT if ``width`` is 0."""
    module = catalogue.find("tasks", "relation_classification", having="Task")
    config, tokenizer = module.Config(marks=toy_tasks.MARKS, **keys), toy_tasks.make_tokenizer()
    sizes: dict[str, Any] = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "mlp_dim": 64, "max_length": 32}
    of_entities: dict[str, Any] = {"entity_size": width, "num_entity_heads": 2, "num_token_layers": num_token_layers}
    encoder = (
        ernie_thu.Config(tokenizer.size, **sizes, **of_entities) if width else bert.Config(tokenizer.size, **sizes)
    )
    setting = Setting({"train": tuple(examples)}, tokenizer, encoder, ("a", "b"), 16, 4, packing=packing)
    return module.Task(config, setting)


def example(text: str, head: str, tail: str, **others: Any) -> dict[str, Any]:
    spans = {role: [text.index(part), text.index(part) + len(part)] for role, part in (("head", head), ("tail", tail))}
    return {"id": text, "text": text, "label": "a", **spans, **others}


# ---- Marks -----------------------------------------------------------------------------------------------------------


def published(text: str, head: list[int], tail: list[int]) -> str:
    """The marks of ``run_fewrel.py``: a sign and a space on either side; head and tail do not overlap."""
    first, second = sorted([(head, "#"), (tail, "$")])
    (a, b), (c, d) = first[0], second[0]
    left, right = first[1], second[1]
    return f"{text[:a]}{left} {text[a:b]} {left}{text[b:c]}{right} {text[c:d]} {right}{text[d:]}"


@pytest.mark.parametrize("seed", range(10))
def test_marks_stand_as_published(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices("abcdefgh ", k=30))
    places = sorted(rng.sample(range(31), 4))
    if seed % 3 == 0:
        places[2] = places[1]  # side by side
    spans = [places[:2], places[2:]]
    rng.shuffle(spans)
    marked = _mark({"text": text, "head": spans[0], "tail": spans[1]}, {"head": "#", "tail": "$"})
    assert marked.text == published(text, *spans)
    for role, (start, end) in zip(("head", "tail"), spans, strict=True):
        assert marked.text[marked.starts[role] :].startswith(text[start:end])


def test_a_mention_within_a_mention_has_marks_of_its_own() -> None:
    marked = _mark({"text": "the king of spain", "head": [4, 17], "tail": [12, 17]}, {"head": "#", "tail": "$"})
    assert marked.text in ("the # king of $ spain $ #", "the # king of $ spain # $")
    assert [marked.text[start:][:5] for start in marked.starts.values()] == ["king ", "spain"]


# ---- Ids and vectors -------------------------------------------------------------------------------------------------

TEXTS = [
    example("anna jones was in oslo today", "anna jones", "oslo"),
    example("people in rome by boris smith", "boris smith", "rome", tail_entity="Q7"),
    example("oslo was seen by clara by paris", "clara", "paris", head_entity="unknown"),
]


@pytest.mark.parametrize("packing", ["none", "packed"])
def test_ids_stand_on_first_pieces_with_their_vectors(tmp_path: Path, packing: str) -> None:
    keys = graph(tmp_path)
    task = make(TEXTS, keys, packing)
    source, kind = task.source("train", KIND, 0), PACKED if packing == "packed" else KIND
    indices = np.arange(source.rows_per_epoch)
    batch = source.rows(np.zeros_like(indices), indices)
    assert {name: x.shape[1:] for name, x in batch.items()} == {
        name: one.shape for name, one in task.batch_specs[kind].items()
    }
    vocab, found = task.setting.tokenizer.vocab, {}
    for ids, entities in zip(batch["input_ids"], batch["entity_ids"], strict=True):
        found |= {(vocab[ids[i - 1]], vocab[ids[i]]): int(entities[i]) for i in np.flatnonzero(entities)}
    film, town = toy_tasks.MARKS
    assert found == {
        (film, "anna"): LEXICON["anna jones"],
        (town, "oslo"): 1,
        (film, "boris"): LEXICON["boris smith"],
        (town, "rome"): 2,
        ("[CLS]", "oslo"): 1,  # of no mention, but a phrase of the lexicon
    }
    vectors = np.load(keys["entities"])
    np.testing.assert_array_equal(batch["entity_vectors"], vectors[batch["entity_ids"]])
    assert batch["entity_vectors"].dtype == np.float32


@pytest.mark.parametrize(("num_token_layers", "noted"), [(1, True), (0, False), (None, False)])
def test_an_encoder_with_one_layer_of_entities_is_noted(
    num_token_layers: int | None, noted: bool, tmp_path: Path
) -> None:
    notes = make(TEXTS, graph(tmp_path), num_token_layers=num_token_layers).notes
    assert any(note.startswith("one layer of the model reads entities") for note in notes) == noted


def test_the_phrase_counts_where_the_lexicon_lacks_the_name_of_an_entity(tmp_path: Path) -> None:
    one = example("anna jones was in oslo today", "anna jones", "oslo", head_entity="Q1", tail_entity="Q2")
    task = make([one], graph(tmp_path))
    assert "train: 0 of 2 mentions (0.0%) are of entities without a vector" in task.notes
    [row] = task.source("train", KIND, 0).rows(np.zeros(1, np.int64), np.zeros(1, np.int64))["entity_ids"]
    assert set(row) == {0, 1, LEXICON["anna jones"]}


def test_no_mention_with_a_vector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^none of the 6 mentions of train has a vector: the lexicon .*tsv has"):
        make(TEXTS, graph(tmp_path, {"nobody": 1}))


def test_mentions_without_a_vector_are_counted(tmp_path: Path) -> None:
    notes = make(TEXTS, graph(tmp_path)).notes
    assert "train: 2 of 6 mentions (33.3%) are of entities without a vector" in notes


def test_a_mention_that_is_cut_off_is_noted() -> None:
    """A row has 16 positions: [CLS], 14 pieces and [SEP]. The last mark may be cut off, the mention may not."""
    words = ["the", "people"] * 6
    fits, cut = (example(" ".join(["anna", *words[:number], "oslo"]), "anna", "oslo") for number in (9, 10))
    assert not any("mention beyond" in note for note in make([fits], {}, width=0).notes)
    notes = make([fits, cut], {}, width=0).notes
    assert "train: 1 of 2 texts have a mention beyond 16 tokens, which is not read" in notes


def test_an_encoder_without_vectors_gets_none() -> None:
    task = make(TEXTS, {})
    assert not {"entity_ids", "entity_vectors"} & task.batch_specs[KIND].keys()
    assert "config.task.entities is not given: the encoder gets no entities" in task.notes
    assert make(TEXTS, {}, width=0).notes == []


def test_one_layer_of_entities_is_too_few(tmp_path: Path) -> None:
    """The first such layer changes the tokens of mentions, and ``[CLS]`` sees these in the next."""
    assert any(
        "so [CLS] does not see them; two layers are needed" in note for note in make(TEXTS, graph(tmp_path)).notes
    )


REFUSED = {
    "encoder": ({}, 0, {}, "the encoder 'bert' reads no entities; leave it out, or take a model of the encoder ernie"),
    "width": ({}, WIDTH + 2, {}, f"have {WIDTH} numbers, and config.model.entity_size is {WIDTH + 2}"),
    "rows": ({"rows": 8}, WIDTH, {}, "1 of 8 entities (12.50%) of the lexicon"),
    "no ids": ({"lexicon": {"oslo": ""}}, WIDTH, {}, "has no id; each line is a phrase, a tab and an id"),
    "marks": ({}, WIDTH, {"marks": ("#", "$")}, "config.task.marks has '#', for which the vocabulary has no piece"),
    "one mark": ({}, WIDTH, {"marks": ("by",)}, "is ('by',); a mark for each of head, tail is needed"),
    "same mark": ({}, WIDTH, {"marks": ("by", "by")}, "and no mark twice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_graph, width, changes, said = REFUSED[name]
    keys = graph(tmp_path, **of_graph)  # type: ignore[arg-type]
    monkeypatch.setattr(toy_tasks, "MARKS", changes.get("marks", toy_tasks.MARKS))
    with pytest.raises(UserError) as error:
        make(TEXTS, keys, width=width)
    assert said in str(error.value)


def test_a_table_without_a_lexicon() -> None:
    with pytest.raises(UserError, match="config.task.entities is 'x.npy', and config.task.lexicon is not given; name"):
        relation_classification.Config(entities="x.npy")
    with pytest.raises(UserError, match="config.task.lexicon is 'x.tsv', and config.task.entities is not given"):
        entity_typing.Config(lexicon="x.tsv")


# ---- A whole run -----------------------------------------------------------------------------------------------------


def write_run(folder: Path) -> dict[str, str]:
    """The relation of two entities is in their vectors alone: names are random, and held-out names are new."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(241, WIDTH)).astype(np.float32)
    vectors[:, 0] = rng.choice([-2, 2], 241)
    vectors[0] = 0
    np.save(folder / "vectors.npy", vectors)
    names = [f"x{number}" for number in range(1, 241)]
    (folder / "entities.tsv").write_text("".join(f"{name}\t{row}\n" for row, name in enumerate(names, 1)))
    for split, rows in (("train", range(1, 200)), ("dev", range(200, 241))):
        lines = []
        for _ in range(192 if split == "train" else 64):
            head, tail = rng.choice(rows, 2, replace=False)
            label = "up" if vectors[head, 0] > 0 else "down"
            lines.append(example(f"film x{head} was seen by x{tail} in town", f"x{head}", f"x{tail}", label=label))
            del lines[-1]["id"]
        toy_tasks.write_examples(folder / f"{split}.jsonl", lines)
    return {"entities": str(folder / "vectors.npy"), "lexicon": str(folder / "entities.tsv")}


@pytest.mark.usefixtures("one_device")
def test_a_run_learns_from_vectors_and_knows_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = write_run(tmp_path)
    recipe = toy_tasks.recipe(
        "relation_classification",
        packing="none",
        model={"encoder": "ernie_thu", **OF_ENTITIES},
        phases={"train": {"num_epochs": 8}},
        schedule={"peak_learning_rate": 1e-2},
    )
    recipe["task"] |= keys
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    assert toy_tasks.finetune(tmp_path) == 0
    assert "dev: 0 of 128 mentions (0.0%) are of entities without a vector" in capsys.readouterr().err
    assert toy_tasks.results(tmp_path)["metrics"]["dev"]["accuracy"] > 0.85
    predict = ["predict", f"--workdir={tmp_path / 'run'}", f"--input={tmp_path / 'dev.jsonl'}"]
    assert run([*predict, f"--output={tmp_path / 'found'}"]) == 0
    found = [json.loads(line)["prediction"] for line in (tmp_path / "found").read_text().splitlines()]
    assert found == [record["prediction"] for record in toy_tasks.predictions(tmp_path)]
    assert run(["predict", f"--workdir={tmp_path / 'run'}", "a text"]) == 2
    assert "this model reads text, head, tail; give them in a file: --input=FILE" in capsys.readouterr().err

    vectors = np.load(keys["entities"])
    np.save(keys["entities"], 2 * vectors)
    assert run(predict) == 2
    assert "the model was trained with vectors.npy@" in capsys.readouterr().err
    np.save(tmp_path / "moved.npy", vectors)
    assert run([*predict, f"--config.task.entities={tmp_path / 'moved.npy'}"]) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head": [5, 99]}, "dev.jsonl:1 has a head at 5 to 99, and a text of 32 characters"),
        ({"head": [7, 7]}, "has a head at 7 to 7, and a text of 32 characters"),
        ({"tail": None}, "dev.jsonl:1 has an empty tail (column 'tail')"),
        ({"tail": [1]}, "has as tail (column 'tail') '[1]' where two places in the text, start and end, are needed"),
        ({"tail": "there"}, "'there' where two places in the text"),
    ],
)
def test_mentions_that_are_not_in_the_text(
    tmp_path: Path, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{key: value for key, value in one.items() if key != "id"} for one in TEXTS[:1]]
    lines[0]["text"] += " now"
    toy_tasks.write_examples(tmp_path / "train.jsonl", lines)
    toy_tasks.write_examples(tmp_path / "dev.jsonl", [{**lines[0], **change}])
    (tmp_path / "recipe.json").write_text(json.dumps(toy_tasks.recipe("relation_classification")))
    assert toy_tasks.finetune(tmp_path) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


# ---- Types -----------------------------------------------------------------------------------------------------------


def test_the_scores_of_types_are_by_hand() -> None:
    """Against sets, example by example."""
    rng = np.random.default_rng(1)
    truth, logits = rng.random((30, 5)) < 0.4, rng.normal(size=(30, 5)) - 0.4
    examples = [
        {"id": str(i), "text": "the film was seen", "mention": [4, 8], "types": [f"t{k}" for k in np.flatnonzero(row)]}
        for i, row in enumerate(truth)
    ]
    examples[0].pop("types")  # is not scored
    task = toy_tasks.make_task("entity_typing", {"train": examples}, config={"marks": ("by",)})
    assert task.setting.labels == tuple(f"t{k}" for k in range(5))
    pairs = [({*np.flatnonzero(a)}, {*np.flatnonzero(b)}) for a, b in zip(truth[1:], logits[1:] > 0, strict=True)]
    right, said, there = (sum(map(len, sets)) for sets in zip(*((a & b, b, a) for a, b in pairs), strict=True))
    precision, recall = right / said, right / there
    mean_precision = np.mean([len(a & b) / len(b) for a, b in pairs if b])
    mean_recall = np.mean([len(a & b) / len(a) for a, b in pairs if a])
    expected = {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall),
        "f1_of_examples": 2 * mean_precision * mean_recall / (mean_precision + mean_recall),
        "accuracy": np.mean([a == b for a, b in pairs]),
    }
    assert task.finish("train", {"logits": logits.astype(np.float32)}) == pytest.approx(expected)
    errors = task.errors("train", {"logits": logits.astype(np.float32)})
    assert errors.keys() == expected.keys()
    assert all(0 < error < 0.2 for error in errors.values())
    records = task.predictions("train", {"logits": logits})
    assert [{*record["prediction"]} for record in records[1:]] == [{f"t{k}" for k in found} for _, found in pairs]
    assert "label" not in records[0]


def test_the_loss_of_types_is_the_mean_of_binary_cross_entropies() -> None:
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(4, 3)), (rng.random((4, 3)) < 0.5).astype(np.float32)
    weights = np.array([1, 0, 1, 1], np.float32)
    shares = 1 / (1 + np.exp(-logits))
    expected = -np.where(labels > 0, np.log(shares), np.log(1 - shares)).mean(axis=1) @ weights
    [term] = entity_typing.Task.terms(None, None).values()  # type: ignore[arg-type]
    found = term.loss({"logits": logits.astype(np.float32)}, {"labels": labels, "label_weights": weights})
    assert (float(found.value), float(found.count)) == (pytest.approx(expected, rel=1e-5), 3.0)


def test_a_type_that_training_lacks() -> None:
    examples = toy_tasks.examples("entity_typing", 8)
    task = toy_tasks.make_task("entity_typing", {"train": examples})
    with pytest.raises(UserError, match=r"dev has types that training lacks: 'river' \(1 times, as in a\)"):
        task.check({"dev": [{**examples[0], "id": "a", "types": ["river"]}]})
