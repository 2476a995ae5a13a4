"""A run of several tasks by flags alone, and the commands that read it."""

import contextlib
import csv
import io
import json
import random
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.cli.main import run
from bert_jax.cluster.exit_codes import BAD_INPUT
from bert_jax.interchange.loading import load, one_task
from bert_jax.training.loop import Run
from tests import toy
from tests.reporting.test_report import Reader
from tests.runs.commands import first_state
from tests.tasks import toy_tasks

TINY = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 64, "max_length": 32, "initializer_range": 0.1}
QUICK = [
    *(f"--config.model.{key}={value}" for key, value in TINY.items()),
    *("--config.vocab.size=160", "--config.vocab.min_frequency=1", "--config.training.loggers=()"),
    *("--batch_size=16", "--max_length=32", "--epochs=3", "--learning_rate=3e-3"),
]
TASKS = [
    "--config.tasks.reviews.data.splits.train=reviews.csv",
    "--config.tasks.topics.data.splits.train=topics.csv",
    "--config.tasks.topics.data.columns.label=topic",
]


def write_tables(folder: Path) -> None:
    """reviews.csv with a mood and topics.csv with the kind of the last word, a person or a place."""
    rng = random.Random(0)
    for name, label, kinds in (
        ("reviews", "label", {"pos": toy_tasks.GOOD, "neg": toy_tasks.BAD}),
        ("topics", "topic", {"who": toy_tasks.PEOPLE, "where": toy_tasks.PLACES, "mood": toy_tasks.GOOD}),
    ):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["text", label])
            for _ in range(160):
                value = rng.choice(sorted(kinds))
                table.writerow([" ".join([*rng.choices(toy_tasks.FILLERS, k=4), rng.choice(kinds[value])]), value])


pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables and a finished run, ``both``."""
    place, said = tmp_path_factory.mktemp("several"), io.StringIO()
    write_tables(place)
    arguments = ["--config=several", f"--data={place}", f"--workdir={place / 'both'}", *QUICK, *TASKS]
    with toy.one_device(), contextlib.redirect_stderr(said):
        assert run(["finetune", *arguments]) == 0
    (place / "said.txt").write_text(said.getvalue())
    return place


def test_what_a_run_writes(folder: Path) -> None:
    """A tenth of each table is dev; the tasks are classifications."""
    results = json.loads((folder / "both" / "results.json").read_text())
    assert results["metric"] == "mean"
    assert results["metrics"].keys() == {"reviews/dev", "topics/dev"}
    assert min(found["accuracy"] for found in results["metrics"].values()) > 0.8
    for name, labels in (("reviews", {"pos", "neg"}), ("topics", {"who", "where", "mood"})):
        lines = (folder / "both" / f"predictions_{name}_dev.jsonl").read_text().splitlines()
        assert len(lines) == 16
        assert {json.loads(line)["label"] for line in lines} <= labels


def test_the_last_line_names_a_command_that_works(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [said] = re.findall("next: (.*)", (folder / "said.txt").read_text())
    assert run(shlex.split(said)[1:]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] in ("pos", "neg")


def test_predict_and_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = f"--workdir={folder / 'both'}"
    assert run(["predict", workdir, "--task=topics", "the film was in rome"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["probabilities"].keys() == {"mood", "where", "who"}
    assert bert_jax.predict(folder / "both", ["the film was in rome"], task="topics") == [found]
    assert run(["evaluate", workdir, "--task=topics", f"--input={folder / 'topics.csv'}", "--json"]) == 0
    share = json.loads(capsys.readouterr().out)["accuracy"]
    assert share > 0.8
    assert run(["evaluate", workdir, "--task=topics", f"--input={folder / 'topics.csv'}"]) == 0
    number = len((folder / "topics.csv").read_text().splitlines()) - 1
    error = (
        np.sqrt(share * (1 - share) / number) if share < 1 else np.sqrt((0.5 / number) * (1 - 0.5 / number) / number)
    )
    assert f"accuracy                {share:.4f} ± {error:.4f}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "a text"], r"several tasks: reviews, topics; say which one: --task=reviews"),
        (["evaluate", "--input=FOLDER/topics.csv"], r"several tasks: reviews, topics; say which one: --task=reviews"),
        (["export", "--output=FOLDER/no"], r"several tasks: reviews, topics; say whose head to write, --task=reviews"),
        (["predict", "--task=topic", "a text"], r"unknown task 'topic'; did you mean 'topics'"),
    ],
)
def test_a_task_is_needed(folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, *others = [word.replace("FOLDER", str(folder)) for word in words]
    assert run([verb, f"--workdir={folder / 'both'}", *others]) == BAD_INPUT
    assert re.search(said, capsys.readouterr().err)


def test_an_export_has_the_head_of_its_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And predicts the same; the encoder can be exported alone."""
    workdir, texts = f"--workdir={folder / 'both'}", ["the film was in rome", "a town by anna", "lovely"]
    assert run(["export", workdir, "--task=topics", f"--output={folder / 'topics'}"]) == 0
    assert "BertForSequenceClassification" in capsys.readouterr().out
    ours, theirs = (
        bert_jax.predict(source, texts, **options)
        for source, options in ((folder / "both", {"task": "topics"}), (folder / "topics", {}))
    )
    assert [record["prediction"] for record in ours] == [record["prediction"] for record in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    assert run(["export", workdir, "--as=BertModel", f"--output={folder / 'encoder'}"]) == 0
    assert "BertModel" in capsys.readouterr().out
    with pytest.raises(bert_jax.UserError, match="leave the task 'topics' out"):
        bert_jax.predict(folder / "topics", texts, task="topics")


def test_features_are_those_of_the_shared_encoder(folder: Path) -> None:
    whole = bert_jax.load(folder / "both")
    alone = one_task(load(str(folder / "both")), "topics")
    np.testing.assert_array_equal(whole.encode(["the film"]), alone.encode(["the film"]))
    assert alone.params.keys() == {"encoder", "pooler", "classifier"}


@pytest.mark.parametrize("with_head", [False, True])
def test_the_second_stage(folder: Path, with_head: bool, reached: list[Run]) -> None:
    """MT-DNN's: one task goes on with encoder and pooler; from its export, with its head too."""
    flags = [*QUICK, "--config.data.splits.train=topics.csv", "--config.data.columns.label=topic", "--epochs=1"]
    start, init = load(str(folder / "both")), folder / "both"
    if with_head:
        init = folder / "head"
        assert run(["export", f"--workdir={folder / 'both'}", "--task=topics", f"--output={init}"]) == 0
    workdir = folder / f"from_{init.name}"
    arguments = [f"--init={init}", f"--data={folder}", f"--workdir={workdir}"]
    assert run(["finetune", "--config=classification", *arguments, *flags]) == 130
    _, first = first_state(reached[0])
    assert first.params.keys() == {"encoder", "pooler", "classifier"}
    for part, source in (("encoder", "encoder"), ("pooler", "pooler"), ("classifier", "topics_classifier")):
        pairs = zip(jax.tree.leaves(start.params[source]), jax.tree.leaves(first.params[part]), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs) == (with_head or part != "classifier"), part


def test_the_report_has_every_task(folder: Path) -> None:
    """With what each has to beat, and the labels that it mixes up."""
    text = " ".join(Reader((folder / "both" / "report.html").read_text()).text)
    shares = json.loads((folder / "both" / "baselines.json").read_text())
    for name in ("reviews", "topics"):
        assert f"Which labels are mixed up, {name}/dev" in text
        assert f"majority rate {shares[f'{name}/majority_rate']:.3f}" in text
    assert "Mean of the tasks, held-out" in text


@pytest.mark.heavy
def test_a_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config=several", f"--data={folder}", f"--workdir={folder / 'grid'}", *QUICK, *TASKS, "--epochs=1"]
    arguments += ["--seeds=0", "--vary=mixing.alpha=0,1", "--config.export=False"]
    assert run(["sweep", *arguments]) == 0
    table = json.loads((folder / "grid" / "table.json").read_text())
    assert table
    assert "median mean" in capsys.readouterr().out


def test_smaller_models_are_of_one_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    topics, workdir = folder / "topics.csv", f"--workdir={folder / 'both'}"
    trim, prune = ["trim", workdir, f"--input={topics}"], ["prune", workdir, f"--input={topics}", "--mlp=0.5"]
    for command in (trim, prune):
        assert run([*command, "--output=none"]) == BAD_INPUT
        assert "was trained on several tasks: reviews, topics; say" in capsys.readouterr().err
    for command in ([*trim, f"--dev={topics}"], prune):
        assert run([*command, "--task=topics", f"--output={command[0]}"]) == 0
        *_, original, _ = capsys.readouterr().out.splitlines()
        assert float(original.split()[-1]) > 0.8
        assert load(command[0]).head.labels == ("mood", "where", "who")
