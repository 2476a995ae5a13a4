"""The record of a run shows with which keys its vocabulary and corpus were made, whoever made them."""

from pathlib import Path
from typing import Any

import pytest

from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.corpora.prepare import CorpusConfig, VocabularyConfig
from bert_jax.interchange.card import _languages
from bert_jax.runs.inputs import Inputs
from bert_jax.runs.used_keys import used_keys
from tests import toy


def used(config: dict[str, Any], workdir: Path) -> dict[str, Any]:
    corpus = configuration.build(CorpusConfig, config["corpus"], "config.corpus")
    vocab = configuration.build(VocabularyConfig, config["vocab"], "config.vocab")
    return used_keys(config, Inputs(str(workdir), vocab, corpus, None, bound=False))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A vocabulary and a corpus, made with keys that are no defaults."""
    recipe = toy.write_recipe(tmp_path / "recipe.json", toy.recipe(toy.write_text(tmp_path / "text.txt")))
    flags = [f"--config={recipe}", "--config.corpus.options.language=sw", "--config.corpus.duplicates=exact"]
    cased = "--config.vocab.lowercase=False"
    assert run(["vocab", *flags, cased, f"--output={tmp_path / 'vocab.txt'}"]) == 0
    path = f"--config.vocab.path={tmp_path / 'vocab.txt'}"
    assert run(["corpus", *flags, cased, path, f"--output={tmp_path / 'corpus'}"]) == 0
    return tmp_path


def test_keys_that_only_make_are_left_out(made: Path) -> None:
    config = toy.recipe(made / "text.txt")
    assert used(config, made / "run") == config, "the run makes both"
    there = {"path": str(made / "corpus"), "heldout_fraction": 0.005, "options": {"paths": ()}, "source": "jsonl"}
    config |= {"vocab": {"path": str(made / "vocab.txt"), "size": 9, "lowercase": False}, "corpus": there}
    found = used(config, made / "run")
    assert found["vocab"] == {"path": str(made / "vocab.txt"), "lowercase": False}
    built = {"source": "text_files", "heldout_fraction": 0.2, "duplicates": "exact", "part_bytes": 0}
    assert found["corpus"] == {"path": there["path"], "options": {"language": "sw"}, **built}
    assert _languages({"config": found}) == ["sw"]
    config["corpus"] = {**there, "options": {"language": "en", "paths": ()}}
    assert _languages({"config": used(config, made / "run")}) == ["en"], "what the user says is for the card"
    parts = {"old": {"path": there["path"], "options": {}}}
    config["corpus"] = {"heldout_fraction": 0.005, "parts": parts}
    assert used(config, made / "run")["corpus"] == {"parts": {"old": {"path": there["path"]}}}
    new = {"source": "text_files", "options": {"paths": (str(made / "text.txt"),)}}
    config["corpus"] = {"heldout_fraction": 0.005, "parts": {**parts, "new": new}}
    assert used(config, made / "run")["corpus"] == {
        "heldout_fraction": 0.005,
        "parts": {"old": {"path": there["path"]}, "new": new},
    }
