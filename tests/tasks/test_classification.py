"""Classification: rows of texts and pairs, labels, and runs from end to end, also from a pretrained model."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.saving import save_params
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.initial import frozen_parts
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import albert, bert
from bert_jax.models.model import config_facts, fresh_params
from bert_jax.rows.example_rows import pair_sequences
from bert_jax.runs import run as runs
from bert_jax.tasks.classification import Config, Task
from bert_jax.training.loop import Run
from bert_jax.workdir import run_record
from tests.tasks import toy_tasks

EXAMPLES = [
    {"id": "a", "text": "the film was great", "pair": "in a town", "label": "yes"},
    {"id": "b", "text": "the film was dull", "pair": "in town", "label": "no"},
]


def popped(first: list[int], second: list[int], capacity: int) -> tuple[list[int], list[int]]:
    """``truncate_seq_pair`` of google-research/bert, as it is written there."""
    first, second = list(first), list(second)
    while len(first) + len(second) > capacity:
        (first if len(first) > len(second) else second).pop()
    return first, second


@pytest.mark.parametrize("seed", range(20))
def test_pairs_are_cut_as_published(seed):
    rng = np.random.default_rng(seed)
    tokenizer = toy_tasks.make_tokenizer()
    texts, pairs = ([" ".join(rng.choice(toy_tasks.FILLERS, rng.integers(0, 14))) for _ in range(8)] for _ in range(2))
    max_length = int(rng.integers(5, 20))
    notes: list[str] = []
    found = pair_sequences(tokenizer, texts, pairs, max_length, notes.append)
    cut = 0
    for ids, types, text, pair in zip(*found.values(), texts, pairs, strict=True):
        a, b = (part.tolist() for part in tokenizer.encode_batch([text, pair]))
        kept_a, kept_b = popped(a, b, max_length - 3)
        cut += len(kept_a) + len(kept_b) < len(a) + len(b)
        assert ids.tolist() == [tokenizer.cls_id, *kept_a, tokenizer.sep_id, *kept_b, tokenizer.sep_id]
        assert types.tolist() == [0] * (len(kept_a) + 2) + [1] * (len(kept_b) + 1)
    assert [note.split()[0] for note in notes] == ([str(cut)] if cut else [])


def test_what_is_cut_is_reported():
    task = toy_tasks.make_task("classification", {"train": EXAMPLES}, 8)
    assert task.notes == ["train: 2 of 2 sequences are longer than 8 tokens; 3 tokens were cut off"]


def test_labels_of_any_split_that_training_has_not():
    task = toy_tasks.make_task("classification", {"train": EXAMPLES})
    with pytest.raises(UserError) as error:
        task.check({"dev": [{**EXAMPLES[0], "label": "Yes"}], "test": [{"id": "t", "text": "x", "label": 3}]})
    assert str(error.value) == (
        "dev has label that training lacks: 'Yes' (1 times, as in a); test has label that training lacks: "
        "'3' (1 times, as in t); training has no, yes. Correct the examples, or leave them out"
    )


def test_one_label_is_nothing_to_learn():
    with pytest.raises(
        UserError, match="all 3 examples to train on have the label 'a'; at least two labels are needed"
    ):
        Task.labels(Config(), [{"id": str(i), "text": "x", "label": "a"} for i in range(3)])


def test_metrics_are_checked_before_anything_is_trained():
    with pytest.raises(UserError, match="did you mean 'f1_macro'"):
        toy_tasks.make_task("classification", {"train": EXAMPLES}, config={"metrics": ("f1_makro",)})
    with pytest.raises(UserError, match="positive label 'si' is unknown"):
        toy_tasks.make_task("classification", {"train": EXAMPLES}, config={"metrics": ("f1",), "positive": "si"})


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with one checkpoint of a fresh model."""
    workdir = tmp_path_factory.mktemp("pretrained")
    tokenizer = toy_tasks.make_tokenizer()
    model = bert.Config(tokenizer.size, 32, 1, 2, 64, max_length=32, initializer_range=0.1)
    facts = {"model": config_facts(model), "lowercase": True, "vocabulary_sha256": tokenizer.sha256}
    tokenizer.save(workdir / tokenizer.file_name)
    save_params(str(workdir), jax.tree.map(np.asarray, fresh_params(model)), facts)
    return workdir


def other_vocabulary(folder: Path, pretrained: Path) -> Path:
    """A file with the vocabulary of ``pretrained`` and one more piece."""
    path = folder / "vocab.txt"
    path.write_text(f"{(pretrained / 'vocab.txt').read_text().rstrip()}\nmore\n")
    return path


@pytest.mark.usefixtures("one_device")
def test_a_frozen_encoder_keeps_its_bits_and_a_run_without_gain_ends(
    tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_tasks.write_toy(
        tmp_path,
        "classification",
        phase={"num_epochs": 9},
        schedule={"peak_learning_rate": 1e-7},
        model={"dropout_rate": 0.1},
        frozen=("encoder",),
        selection={"patience": 1},
        packing="none",
        vocab={"path": str(other_vocabulary(tmp_path, pretrained))},
    )
    assert toy_tasks.finetune(tmp_path, f"--init={pretrained}") == 0
    assert "the vocabulary of --init is taken, not the recipe's: " in capsys.readouterr().err
    assert [record["step"] for record in toy_tasks.evaluations(tmp_path)] == [0, 12, 24]
    assert toy_tasks.results(tmp_path)["best_step"] == 24, "the last of equal scores"
    params, given = load(str(tmp_path / "run")).params, load(str(pretrained)).params
    for found, wanted in zip(*(jax.tree.leaves(tree["encoder"]) for tree in (params, given)), strict=True):
        np.testing.assert_array_equal(found, wanted)
    moved = np.abs(params["pooler"]["dense"]["kernel"] - given["pooler"]["dense"]["kernel"]).max()
    assert 0 < moved < 1e-4

    others = jax.tree.map(jax.numpy.zeros_like, {"encoder": params["encoder"]})
    place = frozen_parts(("encoder",), None, str(tmp_path / "run"), {}, resumes=True)  # without --init
    jax.tree.map(np.testing.assert_array_equal, place(others), {"encoder": given["encoder"]})  # type: ignore[misc]


def test_the_dropout_of_an_imported_classifier_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ALBERT's config.json names 0.1, although its encoder has no dropout; a rate of the recipe's own is kept."""
    trained: list[Run] = []
    monkeypatch.setattr(runs, "train_and_evaluate", lambda run: (trained.append(run), 1 / 0))
    tokenizer = toy_tasks.make_tokenizer()
    model = albert.Config(tokenizer.size, 32, 1, 2, 64, max_length=32, embedding_size=16)
    head = HeadClass("AlbertForMaskedLM", classifier_dropout=0.1)
    params = jax.tree.map(np.asarray, fresh_params(model))
    export_model(TrainedModel("", params, model, tokenizer, head), tmp_path / "albert", "card")
    assert import_model(tmp_path / "albert").head == head
    recipe = toy_tasks.write_toy(tmp_path, "classification", train=16, dev=8, phase={"num_epochs": 1}, packing="none")
    config = json.loads(recipe.read_text())
    recipe.write_text(json.dumps(config | {"model": {"dropout_rate": 0.0}}))
    assert toy_tasks.task_config(tmp_path, tmp_path / "albert", resumes=False).dropout_rate is None
    recipe.write_text(json.dumps(config | {"model": {}}))
    with pytest.raises(ZeroDivisionError):
        toy_tasks.finetune(tmp_path, f"--init={tmp_path / 'albert'}")
    assert trained[0].task.config.dropout_rate == 0.1  # type: ignore[attr-defined]
    assert run_record.read_run(str(tmp_path / "run"))["facts"]["task"]["dropout_rate"] == 0.1
    assert toy_tasks.task_config(tmp_path, tmp_path / "albert", resumes=True).dropout_rate == 0.1


@pytest.mark.usefixtures("one_device")
def test_a_run_learns_and_keeps_its_best_evaluation(tmp_path: Path) -> None:
    test = {"test": "dev.jsonl"}
    splits = {"train": "train.jsonl", "dev": "dev.jsonl", **test}
    toy_tasks.write_toy(tmp_path, "classification", data={"splits": splits}, phase={"num_epochs": 6})
    assert toy_tasks.finetune(tmp_path) == 0
    scores = {record["step"]: record["accuracy"] for record in toy_tasks.evaluations(tmp_path) if record["step"]}
    results, records = toy_tasks.results(tmp_path), toy_tasks.predictions(tmp_path)
    assert results["metrics"]["dev"]["accuracy"] == max(scores.values()) > 0.9
    assert scores[results["best_step"]] == max(scores.values())
    assert results["metrics"]["test"] == results["metrics"]["dev"]
    assert [record["id"] for record in records] == [e["id"] for e in toy_tasks.examples("classification", 48, 2)]
    hits = [record["prediction"] == record["label"] for record in records]
    assert np.mean(hits) == results["metrics"]["dev"]["accuracy"]
    assert all(sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5) for record in records)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"frozen": ("encoder", "poler")}, "config.frozen names poler; parts are encoder, pooler, classifier"),
        ({"bilstm_layers": -1}, "config.bilstm_layers is -1; 0 or more is needed"),
        ({"phase": {"max_length": 2}}, "config.phases.train.max_length is 2; at least 8 is needed"),
        ({"mesh": {"data": 3}}, "mesh"),
        ({"selection": {"metric": "acuracy"}}, "config.selection.metric is 'acuracy'; did you mean 'accuracy'?"),
    ],
)
def test_a_refused_run_leaves_nothing(
    tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], said: str
) -> None:
    toy_tasks.write_toy(tmp_path, "classification", **changed)
    assert toy_tasks.finetune(tmp_path, f"--init={pretrained}") == 2
    assert said in capsys.readouterr().err
    assert not [path for path in tmp_path.glob("run/*") if path.name != ".lock"]


def test_a_typed_vocabulary_beside_the_vocabulary_of_init_is_refused(
    tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the examples are read (there are none here), unless the model has the same vocabulary."""
    (tmp_path / "recipe.json").write_text(json.dumps(toy_tasks.recipe("classification")))
    other = other_vocabulary(tmp_path, pretrained)
    for vocabulary, said in (
        (other, f"--config.vocab.path={other} contradicts --init={pretrained}, which has another vocabulary"),
        (pretrained / "vocab.txt", "train.jsonl"),
    ):
        assert toy_tasks.finetune(tmp_path, f"--init={pretrained}", f"--config.vocab.path={vocabulary}") == 2
        assert said in capsys.readouterr().err


def test_recipes_and_runs_of_pretraining_are_told_apart(
    tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["finetune", "--config=quickstart", f"--workdir={tmp_path}"]) == 2
    assert "this recipe is one for pretraining" in capsys.readouterr().err
    assert run(["pretrain", "--config=bbc_news", f"--workdir={tmp_path}"]) == 2
    assert "this recipe is one for fine-tuning" in capsys.readouterr().err
    run_record.write_run(str(tmp_path), {"run_id": "a", "identity": {"objective": {}}})
    with pytest.raises(UserError, match="holds a run of pretraining, this is one of fine-tuning"):
        run_record.content(str(tmp_path), {}, {"task": {}}, "")
