"""Sentence embeddings: the loss by hand, one loss on every layout, a toy that is learned, and bad input."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.features.sentence_vectors import SentenceVectors, Step
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.dropout import RowRng
from bert_jax.models.encoders import bert
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.runs.model_choice import pooling_notes, with_pooling
from bert_jax.task import Variables
from bert_jax.tasks.base import KIND, Setting
from bert_jax.tasks.sentence_embeddings import Config, Task, candidates, retrieval_scores
from bert_jax.text.tokenizer import Tokenizer, wordpiece
from bert_jax.training import mesh as meshes
from bert_jax.training.mesh import MeshConfig
from tests.interchange import sentence_folders
from tests.tasks import toy_tasks
from tests.tasks.test_layouts import update

ROWS = 16
LETTERS = "abcdefghijklmnopqrst"
GIVEN = Config()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return wordpiece([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])


def pairs(count: int = ROWS, negatives: tuple[int, ...] = (0, 2, 1)) -> tuple[dict[str, Any], ...]:
    """Texts of distinct letters, and how many negatives each has, in turn."""
    made = []
    for i in range(count):
        words = [f"{LETTERS[i % 20]} {LETTERS[(7 * i + k) % 20]} {LETTERS[i // 20]}" for k in range(4)]
        others = [f"c {i % 10} {word}" for word in words[2 : 2 + negatives[i % len(negatives)]]]
        made.append({"id": str(i), "text": f"{words[0]} a", "positive": f"b {words[1]}", "negatives": others})
    return tuple(made)


def make(tokenizer: Tokenizer, splits: dict[str, Any], config: Config = GIVEN, **model: Any) -> Task:
    model = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, **model}
    encoder = bert.Config(tokenizer.size, 32, 1, 2, 64, max_length=32, **model)
    return Task(config, Setting(splits, tokenizer, encoder, (), 16, ROWS, packing="none"))


def batch_of(task: Task, part: str) -> dict[str, np.ndarray]:
    return task.rows[part].take(np.arange(len(task.rows[part])), task.lengths[KIND])


def test_the_negatives_of_a_row_come_from_the_global_batch(tokenizer: Tokenizer) -> None:
    """A step whose rows have 0 to 2 negatives, with dropout."""
    task = make(tokenizer, {"train": pairs(), "dev": pairs()})
    batch = batch_of(task, "train")
    expected = update(task, batch, 1, MeshConfig())
    found = update(task, batch, 8, MeshConfig(data=2, fsdp=2, tensor=2))
    for name, value in expected[0].items():
        assert found[0][name] == pytest.approx(value, rel=2e-6), name
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected[1]))
    for got, wanted in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5 * largest)


def by_hand(embeddings: np.ndarray, examples: Any, temperature: float) -> float:
    """Mean over rows of -log softmax of the own positive, in plain loops."""
    unit = embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)
    losses = []
    for row, example in enumerate(examples):
        shares = [np.exp(unit[row, 0] @ unit[row, 1] / temperature)]
        for other, theirs in enumerate(examples):
            texts = [theirs["positive"], *theirs["negatives"]]
            for place, text in enumerate(texts):
                if (other, place) != (row, 0) and text not in (example["positive"], example["text"]):
                    shares.append(np.exp(unit[row, 0] @ unit[other, 1 + place] / temperature))
        losses.append(-np.log(shares[0] / sum(shares)))
    return float(np.mean(losses))


@pytest.mark.parametrize("repeats", [False, True], ids=["distinct", "with repeats"])
def test_the_loss_by_hand(repeats: bool, tokenizer: Tokenizer) -> None:
    examples = [dict(example) for example in pairs()]
    if repeats:  # two texts with one positive, a text that is another's positive, a negative that is one
        examples[1]["positive"] = examples[0]["positive"]
        examples[2]["positive"] = examples[3]["text"]
        examples[4]["negatives"] = [examples[5]["positive"]]
    task = make(tokenizer, {"train": tuple(examples), "dev": tuple(examples)}, Config(temperature=0.2))
    embeddings = np.random.default_rng(0).normal(size=(ROWS, 4, 8)).astype(np.float32)
    batch = {name: jnp.asarray(value) for name, value in batch_of(task, "train").items()}
    score = jax.jit(task.score)
    sums = score({"embeddings": jnp.asarray(embeddings)}, batch)
    assert float(sums["loss"].count) == ROWS
    assert float(sums["loss"].value) / ROWS == pytest.approx(by_hand(embeddings, examples, 0.2), rel=1e-5)
    # Texts that are not there have no part in it.
    moved = embeddings.copy()
    moved[batch["choice_weights"] == 0] += 100
    assert float(score({"embeddings": jnp.asarray(moved)}, batch)["loss"].value) == float(sums["loss"].value)


def test_rows_that_pad_an_evaluation_are_no_negatives(tokenizer: Tokenizer) -> None:
    task = make(tokenizer, {"train": pairs(), "dev": pairs()})
    embeddings = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, 4, 8)))
    batch = {name: jnp.asarray(value) for name, value in batch_of(task, "dev").items()}
    half = {name: value[:8] for name, value in batch.items()}
    padded = batch | {"choice_weights": batch["choice_weights"].at[8:].set(0)}
    score = jax.jit(task.score)
    expected, found = score({"embeddings": embeddings[:8]}, half), score({"embeddings": embeddings}, padded)
    assert float(found["loss"].count) == 8
    assert float(found["loss"].value) == pytest.approx(float(expected["loss"].value), rel=1e-6)
    assert candidates(embeddings, padded["text_ids"], padded["choice_weights"])[1][:8, :, 8:].sum() == 0


def test_dropout_alone_parts_a_text_from_itself(tokenizer: Tokenizer) -> None:
    task = make(tokenizer, {"train": pairs(), "dev": pairs()}, Config(positives="dropout"))
    assert task.num_choices == 4
    assert len(task.rows["train"]) == 2 * ROWS, "texts and positives, each a text of its own"
    assert {e["positive"] == e["text"] for e in task.setting.splits["train"]} == {True}
    variables = Variables(meshes.unbox(jax.jit(task.init)(jax.random.key(0)).params), {})
    batch = {name: jnp.asarray(value[:4]) for name, value in batch_of(task, "train").items()}
    rng = RowRng.create(0, 0, jnp.arange(4))
    outputs = jax.jit(task.forward)
    text, positive = jnp.moveaxis(outputs(variables, batch, rng)["embeddings"][:, :2], 1, 0)
    assert float(jnp.abs(text - positive).min(axis=-1).max()) > 0
    text, positive = jnp.moveaxis(outputs(variables, batch, None)["embeddings"][:, :2], 1, 0)
    np.testing.assert_allclose(text, positive, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_padding_changes_no_vector(pooling: Any, tokenizer: Tokenizer) -> None:
    task = make(tokenizer, {"train": pairs(), "dev": pairs()}, Config(pooling=pooling))
    variables = Variables(meshes.unbox(jax.jit(task.init)(jax.random.key(0)).params), {})
    rows = task.rows["dev"]
    outputs = jax.jit(task.outputs)
    short, long = (outputs(variables, rows.take(np.arange(4), n))["embeddings"] for n in (task.lengths[KIND], 32))
    there = rows.arrays["choice_weights"][:4] > 0
    np.testing.assert_allclose(np.asarray(short)[there], np.asarray(long)[there], atol=1e-5)


def test_ranked() -> None:
    """Three texts on a circle; the first two have one positive, which is a text too."""
    angles = np.array([[0.0, 0.3], [0.5, 0.3], [3.0, 0.5]])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    ids = np.array([[0, 1], [2, 1], [3, 2]])
    found = retrieval_scores(embeddings, ids, np.ones((3, 2)))
    # Text 2 does not find itself among the candidates; text 3 finds its positive, 2, first: 2.5 away, 1 is 2.7.
    assert found == {"ndcg@10": 1.0, "recall@10": 1.0, "mrr@10": 1.0}
    worse = retrieval_scores(embeddings, np.array([[0, 1], [2, 4], [3, 1]]), np.ones((3, 2)))
    assert worse["mrr@10"] < 1
    assert retrieval_scores(embeddings, ids, np.array([[1, 0], [1, 0], [1, 0]])) == {}


def write(folder: Path, train: int, dev: int, num_epochs: int, **changes: Any) -> None:
    """Topics and a recipe."""
    toy_tasks.write_examples(folder / "train.jsonl", topics(train, 0))
    toy_tasks.write_examples(folder / "dev.jsonl", topics(dev, 1))
    changes |= {"phases": {"train": {"num_epochs": num_epochs, "max_length": 16}}, "packing": "none"}
    (folder / "recipe.json").write_text(json.dumps(toy_tasks.recipe("sentence_embeddings", **changes)))


def topics(count: int, seed: int) -> list[dict[str, Any]]:
    """A text and its positive share a topic, each topic having words of its own and none in common with the other side:
    what belongs together can only be learned."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        topic = int(rng.integers(8))
        left, right = (
            ["".join(chr(97 + (topic * 3 + k + 9 * side) % 26) * 2 for k in rng.integers(3, size=2)) for _ in range(3)]
            for side in (0, 1)
        )
        made.append({"id": f"{seed}-{number}", "text": " ".join(left), "positive": f"{' '.join(right)} {number}"})
    return made


@pytest.mark.usefixtures("one_device")
def test_a_toy_is_learned_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 160, 40, 3)
    workdir = tmp_path / "run"
    assert toy_tasks.finetune(tmp_path) == 0
    evaluations = toy_tasks.evaluations(tmp_path)
    assert evaluations[-1]["mrr@10"] > evaluations[0]["mrr@10"] + 0.1
    assert evaluations[-1]["accuracy"] > evaluations[0]["accuracy"]
    assert all(-1.0001 <= record["prediction"] <= 1.0001 for record in toy_tasks.predictions(tmp_path))
    assert f'retrieve --workdir={workdir} --corpus=FILE --query="TEXT"' in capsys.readouterr().err
    assert run(["predict", f"--workdir={workdir}", "aa bb"]) == 0
    assert len(json.loads(capsys.readouterr().out)["prediction"]) == 32


@pytest.mark.usefixtures("one_device")
def test_a_run_begins_with_the_pooling_of_its_model_and_its_export_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init = sentence_folders.write(
        tmp_path / "bge", sentence_folders.FORMS["bge"], sentence_folders.write_encoder(tmp_path / "encoder")
    )
    write(tmp_path, 32, 16, 1, export=True)
    workdir = tmp_path / "run"
    assert toy_tasks.finetune(tmp_path, f"--init={init}") == 0
    said = f"config.task.pooling is cls, as --init={init} says; it does without length 1"
    assert said in capsys.readouterr().err
    models = [bert_jax.load(workdir), bert_jax.load(workdir / "hugging_face")]
    assert [model.said_vectors for model in models] == [SentenceVectors(("cls",), max_length=16)] * 2
    texts = ["aa bb", "c", "d e f g " * 9]
    vectors = models[0].encode(texts)
    np.testing.assert_array_equal(models[1].encode(texts), vectors)
    np.testing.assert_allclose(vectors[1], models[0].hidden_states(["c"])[0][-1, 0], atol=1e-5)
    shutil.rmtree(init)
    assert toy_tasks.task_config(tmp_path, init, resumes=True).pooling == "cls", "a run that goes on needs no --init"
    assert toy_tasks.finetune(tmp_path, f"--init={init}", "--config.task.pooling=mean") == 2
    assert "config.task.pooling" in capsys.readouterr().err


def test_a_note_says_that_the_pooling_differs_from_the_model(tokenizer: Tokenizer) -> None:
    model = bert.Config(tokenizer.size, 32, 1, 2, 64)

    def initial(**facts: Any) -> TrainedModel:
        return TrainedModel("e5", {}, model, tokenizer, facts=facts)

    said = dataclasses.asdict(
        SentenceVectors(("mean", "max"), (Step("2_Dense", "tanh"), Step()), prompts=(("query", "q: "),))
    )
    both, own = initial(sentence_vectors=said), initial(tasks={"a": {"task": {"pooling": "max"}}, "b": {"task": None}})
    assert with_pooling(Config(), "", None).pooling is None
    assert with_pooling(Config(), "", both).pooling == with_pooling(Config(), "c", initial()).pooling == "mean"
    assert [with_pooling(Config(), name, own).pooling for name in ("a", "c")] == ["max", "max"]
    assert with_pooling(Config(pooling="cls"), "a", own).pooling == "cls"
    left = "it does without 2_Dense (tanh), length 1, the prompt query"
    assert pooling_notes({"": Config(pooling="cls")}, both) == [
        f"config.task.pooling is cls, not mean + max as --init=e5 says; {left}"
    ]
    assert pooling_notes({"a": Config(pooling="max"), "b": object()}, own) == [
        "config.tasks.a.task.pooling is max, as --init=e5 says"
    ]
    assert pooling_notes({"": Config()}, initial()) == []


def test_similarities_follow_cosines(tokenizer: Tokenizer) -> None:
    examples = tuple(dict(e, similarity=f"{i % 6}.0") for i, e in enumerate(pairs(negatives=(0,))))
    task = make(tokenizer, {"train": examples, "dev": examples}, Config(min_similarity=4.0))
    assert len(task.rows["train"]) == sum(i % 6 >= 4 for i in range(ROWS))
    assert len(task.rows["dev"]) == ROWS
    angles = np.array([[0.0, 0.5 * (5 - i % 6)] for i in range(ROWS)])
    found = task.finish("dev", {"embeddings": np.stack([np.cos(angles), np.sin(angles)], axis=-1)})
    assert found["spearmanr"] == pytest.approx(1)
    assert found["recall@10"] < 1 or found["ndcg@10"] <= 1


def test_bad_input(tokenizer: Tokenizer) -> None:
    alone = tuple({"id": e["id"], "text": e["text"]} for e in pairs())
    with pytest.raises(UserError, match="16 of 16 examples of train have no positive, such as 0; name its column"):
        make(tokenizer, {"train": alone, "dev": pairs()})
    with pytest.raises(UserError, match="dev has no example with a positive"):
        make(tokenizer, {"train": pairs(), "dev": alone})
    with pytest.raises(UserError, match="similarity 'high'; a number is needed"):
        make(tokenizer, {"train": (dict(pairs()[0], similarity="high"),), "dev": pairs()})
    with pytest.raises(UserError, match="no example of train has a similarity of"):
        make(tokenizer, {"train": (dict(pairs()[0], similarity=1),), "dev": pairs()}, Config(min_similarity=2.0))
    with pytest.raises(UserError, match="temperature"):
        Config(temperature=0.0)
    with pytest.raises(UserError, match=r"config.training.micro_batches is 2; only 1 is allowed"):
        toy_tasks.prepared(Path(), toy_tasks.recipe("sentence_embeddings", training={"micro_batches": 2}))


def test_negatives_can_be_limited(tokenizer: Tokenizer) -> None:
    task = make(tokenizer, {"train": pairs(), "dev": pairs()}, Config(max_negatives=1))
    assert task.num_choices == 3
