"""A ModernBERT in Hugging Face's format goes on with text and vocabulary of another language."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import modernbert
from bert_jax.recipes.architecture import Architecture
from bert_jax.runs.model_choice import overridden_settings
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.tokenizer import of_json
from bert_jax.training.loop import Run
from tests import toy
from tests.interchange.test_families import head_of, params_of
from tests.runs.commands import first_state
from tests.text.byte_level_files import released_for

pytestmark = pytest.mark.usefixtures("one_device")
SYLLABLES = ["ña", "ke", "l\u0069\u0301", "mó", "ŋu", "rą"]  # one with an accent of its own: NFC joins it


def write_language(path: Path) -> Path:
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(40)] + ["the", "river"]
    lines = [" ".join(rng.choices(words, k=rng.randint(4, 9))).capitalize() + "." for _ in range(400)]
    path.write_text("\n\n".join("\n".join(lines[i : i + 8]) for i in range(0, 400, 8)) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for a published model: its rows of the vocabulary all differ, and its tokenizer has the released rules."""
    folder = tmp_path_factory.mktemp("published")
    tokenizer = of_json(released_for(toy.write_text(folder / "general.txt").read_text().splitlines(), 330))
    config = modernbert.Config(tokenizer.size, 32, 4, 2, 48, max_length=64, local_attention=8)
    head = head_of("modernbert", "ForMaskedLM")
    export_model(TrainedModel("", params_of(config, head), config, tokenizer, head), folder / "model", "card")
    return folder


def flags(folder: Path, published: Path, text: str) -> Iterator[str]:
    """Yield the flags of a short run of ``modernbert_continue``."""
    yield from ("--steps=4", "--batch_size=8", "--max_length=32", "--config.training.eval_rows=16")
    yield from (f"--init={published / 'model'}", "--config.training.eval_every_steps=4", "--config.export=False")
    yield from ("--config.corpus.heldout_fraction=0.2", "--config.examples=()")
    own, general = folder / "own.txt", published / "general.txt"
    files = {"": own} if text == "own" else {"parts.own.": own, "parts.general.": general}
    for key, file in files.items():
        yield f"--config.corpus.{key}options.paths={file}"
        yield f"--config.corpus.{key}options.document_boundary=blank_line"


@pytest.mark.parametrize("text", ["own", "replay"])
def test_a_published_model_goes_on_with_a_vocabulary_of_its_own(
    tmp_path: Path, published: Path, reached: list[Run], capsys: pytest.CaptureFixture[str], text: str
) -> None:
    write_language(tmp_path / "own.txt")
    recipe, init = "--config=modernbert_continue", f"--init={published / 'model'}"
    paths = [f"--config.corpus.options.paths={tmp_path / 'own.txt'}", "--config.vocab.size=400"]
    assert run(["vocab", recipe, *paths, init, f"--output={tmp_path / 'mine' / 'tokenizer.json'}"]) == 0
    out = capsys.readouterr().out
    assert "fertility: 1." in out
    assert " times the tokens that the vocabulary of --init makes" in out
    assert "parts of characters" in out

    command = ["pretrain", f"--config=modernbert_continue:{text}", *flags(tmp_path, published, text)]
    workdir = tmp_path / "run"
    assert run([*command, f"--vocab={tmp_path / 'mine'}", f"--workdir={workdir}"]) == 130
    old, task = load(str(published / "model")), reached[0].task
    assert task.tokenizer.sha256 == tokenizers.load(tmp_path / "mine").sha256 != old.tokenizer.sha256
    assert_rows_follow(first_state(reached[0])[1].params, old, task.tokenizer)
    parts = {path.name for path in (workdir / "corpus").iterdir() if path.is_dir()}
    assert ({"own", "general"} <= parts) == (text == "replay")


def test_another_base_than_that_of_the_model_is_said(published: Path) -> None:
    initial = load(str(published / "model"))
    bases = {"global_theta": 10_000.0, "local_theta": 10_000.0}
    own, plain = (Architecture.of({"encoder": "modernbert", **keys}, 400) for keys in (bases, {}))
    line = "global_theta is the recipe's, 10000; the model of --init had 160000"
    assert overridden_settings(own, [], initial) == [line]
    assert overridden_settings(plain, [], initial) == []


def assert_rows_follow(params: Any, old: TrainedModel, new: tokenizers.Tokenizer) -> None:
    """Kept pieces have their bits; a new piece has the mean of the pieces into which the old one cuts its text."""

    def leaves(tree: Any) -> list[np.ndarray]:
        both = (tree["encoder"]["embeddings"]["word_embeddings"], tree["mlm_head"]["output_bias"])
        return [np.asarray(leaf) for leaf in both]

    surfaces = {surface: i for i, surface in enumerate(old.tokenizer.surfaces)}
    kept = added = 0
    for before, after in zip(leaves(old.params), leaves(params), strict=True):
        assert len(after) == new.size
        for i, (text, continues) in enumerate(new.surfaces):
            if (text, continues) in surfaces:
                kept += 1
                np.testing.assert_array_equal(after[i], before[surfaces[text, continues]])
            elif "<0x" not in text:  # a part of a character has no text that could be cut
                added += 1
                [parts] = old.tokenizer.encode_batch([text if continues else f" {text}"])
                np.testing.assert_allclose(after[i], before[parts].mean(axis=0), rtol=1e-6, atol=1e-7)
    assert kept > 500
    assert added > 50
