"""An encoder in one file that holds its Family: its runs are exported as the class that it names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.cli.main import run
from bert_jax.parts import catalogue
from tests import toy
from tests.test_one_file import fresh, of_page, recipe, write

__all__ = ["fresh", "recipe"]  # fixtures
NEAR, BLOCKS = of_page("`near.py`", 40), of_page("`blocks.py`", 40)
# Another class of transformers, with names of its own for the same tensors.
OTHER = """
import dataclasses

from bert_jax.interchange.families import bert as families_bert
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import SIZES, LmHead, Pooler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    pass


class Encoder(bert.Encoder):
    pass


class Family(families_bert.Family):
    name, title, model_type, prefix = "Own", "own", "own", "own."
"""
TEXT = "the cat sees the river. " * 4


def pretrain(recipe: Path, code: str, name: str, *flags: str) -> int:
    encoder, workdir = write(recipe.parent, f"{name}.py", code), recipe.with_name(name)
    named = [f"--config.model.encoder={encoder}", f"--workdir={workdir}", "--config.export=True"]
    with toy.one_device():
        return run(["pretrain", f"--config={recipe}", *named, *flags])


def exported(workdir: Path) -> dict[str, object]:
    return json.loads((workdir / "hugging_face" / "config.json").read_text())  # type: ignore[no-any-return]


def test_the_encoder_of_the_page_is_exported_as_bert(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pretrain(recipe, BLOCKS, "blocks", "--config.model.layers=scanned") == 0
    assert "read back as bert, it has the same outputs" in capsys.readouterr().err
    workdir = recipe.with_name("blocks")
    assert exported(workdir)["architectures"] == ["BertForMaskedLM"]
    ours, theirs = (bert_jax.load(str(folder), trust_code=True) for folder in (workdir, workdir / "hugging_face"))
    assert "blocks" in ours.params["encoder"]["embeddings"]
    assert "blocks" not in theirs.params["encoder"]["embeddings"]
    for one, other in zip(ours.hidden_states([TEXT])[0], theirs.hidden_states([TEXT])[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    first, second = ours.params["encoder"]["embeddings"]["blocks"]
    assert ours.hidden_states([TEXT])[0].shape[1] > 20, "positions of both blocks"
    assert np.abs(first - second).max() > 0.01

    (recipe.parent / "train.tsv").write_text("text\tlabel\nthe cat sees\t0\nthe ship sees\t1\n" * 8)
    flags = {"data.splits.train": "train.tsv", "data.dev_fraction": 0.25, "phases.train.max_length": 32}
    flags |= {"phases.train.num_epochs": 1, "phases.train.batch_size": 4}
    tune = ["finetune", "--config=classification", *(f"--config.{key}={value}" for key, value in flags.items())]
    monkeypatch.chdir(recipe.parent)
    tuned = recipe.with_name("tuned")
    with toy.one_device():
        assert run([*tune, f"--init={workdir}", f"--workdir={tuned}", "--trust_code"]) == 0
    assert exported(tuned)["architectures"] == ["BertForSequenceClassification"]
    assert run(["predict", f"--workdir={tuned / 'hugging_face'}", TEXT]) == 0


def test_a_rotary_encoder_of_the_page_with_blocks_of_its_own(recipe: Path) -> None:
    """Three layers in a scan, of which two see one token to each side."""
    flags = ("--config.model.layers=scanned", "--config.model.num_layers=3", "--config.model.near=1")
    assert pretrain(recipe, NEAR, "near", *flags) == 0
    model = bert_jax.load(str(recipe.with_name("near")), trust_code=True)
    assert model.config.blocks[0].window == model.config.blocks[1].window == 1
    assert model.config.blocks[2].window is None
    assert "position_embeddings" not in model.params["encoder"]["embeddings"]
    first, other = (model.hidden_states([text])[0] for text in (TEXT, f"{TEXT} a ship"))
    np.testing.assert_allclose(first[2, :-3], other[2, : first.shape[1] - 3], atol=1e-5)  # what is far is not seen
    assert np.abs(first[3, 1] - other[3, 1]).max() > 1e-4  # but by the last layer


def test_an_encoder_that_does_not_fit_its_family_is_refused_before_text_is_read(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (recipe.parent / "text.txt").unlink()
    assert pretrain(recipe, BLOCKS.replace("+ spread", "- spread"), "wrong") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: the Family of ")
    assert (
        "does not compute what the encoder does: read back, a BertForMaskedLM of random parameters has another" in error
    )
    assert pretrain(recipe, re.sub(r"Family\(family.Family\)", "Family", BLOCKS), "loose") == 2
    assert "loose.py does not derive from one of bert_jax.interchange.families" in capsys.readouterr().err
    own, imported = (
        "class Config(bert.Config):\n    pass",
        "class X: pass\nfrom bert_jax.models.encoders.bert import Config",
    )
    assert pretrain(recipe, OTHER.replace(own, imported), "imported") == 2
    assert "imported.py imports its Config, which is that of the encoder 'bert': derive" in capsys.readouterr().err


def test_a_class_that_this_package_does_not_know(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is exported, and read where the encoder's file is loaded."""
    assert pretrain(recipe, OTHER, "other") == 0
    workdir = recipe.with_name("other")
    assert exported(workdir)["architectures"] == ["OwnForMaskedLM"]
    ours, theirs = (bert_jax.load(str(folder), trust_code=True) for folder in (workdir, workdir / "hugging_face"))
    for one, other in zip(jax.tree.leaves(ours.params), jax.tree.leaves(theirs.params), strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setattr(catalogue, "_names", {})
    with pytest.raises(
        bert_jax.UserError,
        match="is a 'own' model; readable model types: albert, bert, distilbert, electra, ernie",
    ):
        bert_jax.load(str(workdir / "hugging_face"))
