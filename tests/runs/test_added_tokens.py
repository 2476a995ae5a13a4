"""Tokens that a recipe adds: kept whole in pretraining, in a run that goes on, in fine-tuning and in exports."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.corpora.prepare import VocabularyConfig
from bert_jax.errors import UserError
from bert_jax.interchange.loading import load
from tests import toy
from tests.runs.commands import first_state
from tests.tasks import toy_tasks

MARKS = ("<e1>", "</e1>", "<e2>", "</e2>")
FLAG = f"--config.vocab.added={MARKS}"

pytestmark = pytest.mark.usefixtures("one_device")


def rows_of(trained: Any) -> np.ndarray:
    return np.asarray(trained.params["encoder"]["embeddings"]["word_embeddings"])


def relation(rng: random.Random) -> dict[str, Any]:
    """Return a sentence with two marked people; the label says who is marked first, which only the marks tell."""
    people = rng.sample(toy_tasks.PEOPLE, 2)
    first, second = rng.sample((1, 2), 2)
    words = [f"<e{first}>{people[0]}</e{first}>", rng.choice(toy_tasks.FILLERS), f"<e{second}>{people[1]}</e{second}>"]
    return {"text": " ".join(words), "label": "forth" if first == 1 else "back"}


def test_pretraining_then_a_run_that_goes_on_with_more(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    recipe = toy.recipe(
        toy.write_text(tmp_path / "text.txt"),
        vocab={"size": 60, "min_frequency": 1, "added": MARKS[:2]},
        phases={"phase1": {"num_steps": 2, "batch_size": 8, "max_length": 32}},
        schedule={"warmup_steps": 1},
    )
    config, first = toy.write_recipe(tmp_path / "r.json", recipe), tmp_path / "first"
    assert run(["pretrain", f"--config={config}", f"--workdir={first}"]) == 0
    assert not (first / "vocab.txt").exists()
    one = load(str(first))
    assert one.tokenizer.vocab[-2:] == MARKS[:2]
    assert load(str(first / "hugging_face")).tokenizer.sha256 == one.tokenizer.sha256
    reached = request.getfixturevalue("reached")
    assert run(["pretrain", f"--config={config}", f"--workdir={tmp_path / 'second'}", f"--init={first}", FLAG]) == 130
    assert reached[0].task.tokenizer.vocab == (*one.tokenizer.vocab, *MARKS[2:])


def test_relations_with_marks_are_learned(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_tasks.write_toy(tmp_path, "classification")
    for split, count in (("train", 256), ("dev", 64)):
        rng = random.Random(split)
        toy_tasks.write_examples(tmp_path / f"{split}.jsonl", [{"id": str(i), **relation(rng)} for i in range(count)])
    assert toy_tasks.finetune(tmp_path, FLAG) == 0
    assert toy_tasks.finetune(tmp_path, "--config.vocab.added=('<e9>',)") == 2
    assert "holds another run: config.vocab.added: ['<e1>', '</e1>', " in capsys.readouterr().err
    trained = load(str(tmp_path / "run"))
    assert trained.tokenizer.vocab[-4:] == MARKS
    assert toy_tasks.evaluations(tmp_path)[-1]["accuracy"] > 0.95
    assert run(["export", f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'out'}"]) == 0
    out = load(str(tmp_path / "out"))
    assert out.tokenizer.sha256 == trained.tokenizer.sha256
    # Fine-tuned on from the export, with one more mark, whose row is the mean of the rows of its old pieces.
    reached, flags = (
        request.getfixturevalue("reached"),
        (f"--init={tmp_path / 'out'}", "--config.vocab.added=('<e1>:',)"),
    )
    assert toy_tasks.finetune(tmp_path, *flags, workdir="next") == 130
    assert reached[0].task.setting.tokenizer.vocab == (*trained.tokenizer.vocab, "<e1>:")
    _, first = first_state(reached[0])
    old, rows = trained.tokenizer.encode_batch(["<e1>:"])[0], rows_of(first)
    np.testing.assert_allclose(rows[-1], rows_of(trained)[old].mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(rows[:-1], rows_of(trained))


@pytest.mark.parametrize("added", [("a b",), ("",), ("<e1>", "<e1>")])
def test_what_is_no_token(added: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="config.vocab.added is .*; tokens without white space are needed, each once"):
        VocabularyConfig(added=added)
