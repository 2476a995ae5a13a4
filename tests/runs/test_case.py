"""The case of a vocabulary whose files do not say it is the user's to say; a key that contradicts files is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.corpora.prepare import VocabularyConfig
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.encoders import bert
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.runs.inputs import describe_vocabulary, initial_of_run
from bert_jax.text.tokenizer import Tokenizer, wordpiece
from tests import toy
from tests.interchange.small_model import assert_same
from tests.models.helpers import random_params
from tests.tasks import toy_tasks

pytestmark = pytest.mark.usefixtures("one_device")
LETTERS = [chr(code) for first in "aA" for code in range(ord(first), ord(first) + 26)]
PIECES = (*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "é", "The", "the")
KEYS = "config.vocab."


def write_model(folder: Path, tokenizer: Tokenizer) -> Path:
    config = bert.Config(tokenizer.size, 32, 1, 2, 64, max_length=32)
    export_model(TrainedModel("", random_params(config), config, tokenizer), folder, "a card")
    return folder


@pytest.fixture(scope="module")
def says(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cased model, as it is exported."""
    return write_model(tmp_path_factory.mktemp("says") / "model", wordpiece(PIECES, lowercase=False))


@pytest.fixture(scope="module")
def bare(says: Path) -> Path:
    """The same without the files that say its case."""
    folder = says.parent / "bare"
    shutil.copytree(says, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "SHA256SUMS"):
        (folder / name).unlink()
    return folder


@pytest.fixture(scope="module")
def begin(says: Path) -> dict[str, list[str]]:
    """Commands that begin at a model, without their --init and --workdir."""
    text = toy.write_text(says.parent / "text.txt")
    text.write_text(re.sub("^t", "T", text.read_text(), flags=re.MULTILINE))
    recipe = toy.write_recipe(
        says.parent / "recipe.json", toy.recipe(text, objective={"name": "mlm"}, schedule={"warmup_steps": 0})
    )
    tuning = toy_tasks.write_toy(says.parent / "tuning", "classification", 16, 8)
    short = ["--config.phases.phase1.num_steps=2", "--config.training.eval_every_steps=2", "--config.export=False"]
    return {
        "pretrain": ["pretrain", f"--config={recipe}", *short, "--config.examples=()"],
        "finetune": ["finetune", f"--config={tuning}", f"--data={tuning.parent}", "--config.phases.train.num_epochs=1"],
    }


@pytest.mark.parametrize("verb", [pytest.param("pretrain", marks=pytest.mark.heavy), "finetune"])
def test_the_key_decides_where_no_file_does(
    tmp_path: Path, bare: Path, begin: dict[str, list[str]], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "run"
    command = [*begin[verb], f"--init={bare}", f"--workdir={workdir}"]
    assert run([*command, f"--{KEYS}lowercase=False"]) == 0
    assert f"vocabulary: {len(PIECES)} pieces, cased" in capsys.readouterr().err
    record = json.loads((workdir / "run.json").read_text())
    assert record["config"]["vocab"]["lowercase"] is record["facts"]["lowercase"] is False
    [ids] = load(str(workdir)).tokenizer.encode_batch(["The"])
    assert [PIECES[i] for i in ids] == ["The"]
    assert run([*command, f"--{KEYS}lowercase=True"]) == 2
    assert f"{KEYS}lowercase=True contradicts {workdir}" in capsys.readouterr().err


def test_without_a_key_a_bare_vocabulary_is_uncased_and_that_is_said(bare: Path) -> None:
    """BertTokenizer of transformers reads such a folder in the same way."""
    found = initial_of_run(VocabularyConfig(lowercase=False), (), str(bare), "", resumes=False)
    assert found
    assert describe_vocabulary(found.tokenizer) == f"vocabulary: {len(PIECES)} pieces, uncased"


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
@pytest.mark.parametrize("key", ["lowercase=True", "strip_accents=True"])
def test_a_key_that_contradicts_the_files_is_refused(
    tmp_path: Path, says: Path, begin: dict[str, list[str]], verb: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*begin[verb], f"--init={says}", f"--workdir={tmp_path / 'run'}", f"--{KEYS}{key}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"--{KEYS}{key} contradicts " in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["vocab", "corpus", "pretrain", "finetune", "preflight"])
def test_a_key_that_contradicts_the_file_of_a_vocabulary_is_refused(
    tmp_path: Path, says: Path, begin: dict[str, list[str]], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((says / "tokenizer.json").read_bytes())
    common = begin["finetune" if verb == "finetune" else "pretrain"][1:]
    places = {"pretrain": "workdir", "finetune": "workdir", "preflight": "workdir"}
    path = f"--{KEYS}path={tmp_path / 'tokenizer.json'}"
    command = [verb, *common, path, f"--{places.get(verb, 'output')}={tmp_path / 'new'}"]
    assert run([*command, f"--{KEYS}lowercase=True"]) in (1, 2)
    found = capsys.readouterr()
    assert f"--{KEYS}lowercase=True contradicts {tmp_path / 'tokenizer.json'}" in found.err + found.out


@pytest.mark.parametrize(("flag", "lowercase"), [("false", False), ("true", True), (None, True)])
def test_import_takes_the_case_that_no_file_says(tmp_path: Path, bare: Path, flag: str | None, lowercase: bool) -> None:
    flags = [f"--lowercase={flag}"] if flag else []
    assert run(["import", f"--input={bare}", f"--workdir={tmp_path / 'run'}", *flags]) == 0
    found = load(str(tmp_path / "run"))
    assert found.tokenizer.lowercase is found.facts["lowercase"] is lowercase


def test_import_refuses_a_case_that_contradicts_the_files(
    tmp_path: Path, says: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", f"--input={says}", f"--workdir={tmp_path / 'run'}"]
    assert run([*command, "--lowercase=true"]) == 2
    assert "contradicts" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert run([*command, "--lowercase=false"]) == 0


def test_kept_accents_go_through_runs_corpora_and_exports(
    tmp_path: Path, begin: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exported files give the same ids in ``tokenizers``; tests/text/test_case.py has transformers."""
    tokenizer = wordpiece(PIECES, strip_accents=False)
    model = write_model(tmp_path / "model", tokenizer)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    assert (settings["do_lower_case"], settings["strip_accents"]) == (True, False)
    assert json.loads((model / "tokenizer.json").read_text())["normalizer"]["strip_accents"] is False
    assert load(str(model)).tokenizer.sha256 == tokenizer.sha256
    (model / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (model / "tokenizer.json").unlink()
    (model / "SHA256SUMS").unlink()
    assert load(str(model)).tokenizer.sha256 == tokenizer.sha256, "as others write it"
    (model / "tokenizer_config.json").unlink()
    command = [*begin["pretrain"], f"--init={model}", f"--workdir={tmp_path / 'run'}", f"--{KEYS}strip_accents=False"]
    assert run([*command, "--config.export=True"]) == 0
    assert f"{len(PIECES)} pieces, uncased, accents kept" in capsys.readouterr().err
    exported, own = load(str(tmp_path / "run" / "hugging_face")), load(str(tmp_path / "run"))
    assert own.tokenizer.sha256 == exported.tokenizer.sha256 == tokenizer.sha256
    assert_same(own.params["encoder"], exported.params["encoder"])
    assert "(uncased, accents kept)" in (tmp_path / "run" / "hugging_face" / "README.md").read_text()
    facts: dict[str, Any] = json.loads((tmp_path / "run" / "run.json").read_text())["facts"]
    manifest = json.loads((tmp_path / "run" / "corpus" / "manifest.json").read_text())
    assert facts["strip_accents"] is manifest["strip_accents"] is False
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    assert run(["inspect", f"--corpus={tmp_path / 'run' / 'corpus'}", f"--vocab={tmp_path / 'vocab.txt'}"]) in (0, 1)
    assert "the vocabulary of the corpus" in capsys.readouterr().out
