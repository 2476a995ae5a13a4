"""The metadata of a step lacks an entry, or has something else there: one line, before anything is built from it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.interchange import loading
from bert_jax.models.model import config_facts
from tests.features.test_features import CONFIG, PARAMS, TOKENIZER

FACTS = {
    "model": config_facts(CONFIG),
    "lowercase": True,
    "vocabulary_sha256": TOKENIZER.sha256,
    "corpus_fingerprint": None,
    "head": None,
    "task": None,
    "labels": [],
    "run": {"run_id": "x"},
}


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    TOKENIZER.save(tmp_path / "vocab.txt")
    return tmp_path


def test_every_entry(workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def read(facts: dict[str, Any]) -> str:
        """Return what a command says that reads a step with these facts; "" if it works."""
        shutil.rmtree(workdir / "model", ignore_errors=True)
        monkeypatch.setattr(loading, "read_chosen", lambda *_: (PARAMS, facts, 3))
        code = run(["export", f"--workdir={workdir}", f"--output={workdir / 'model'}"])
        said = capsys.readouterr().err
        assert code == (2 if "error: " in said else 0), said
        return said

    assert read(FACTS) == ""
    for name in FACTS:
        for odd in (None, 7, "x", [], {}, "left out"):
            facts = {**FACTS, name: odd} if odd != "left out" else {k: v for k, v in FACTS.items() if k != name}
            said = read(facts)
            if name in ("model", "lowercase", "vocabulary_sha256") and odd != "x":
                assert said.startswith(f"error: {workdir}: the metadata of step 3 lacks {name}"), (name, odd, said)
                assert said.count("\n") == 1
    for name, key in (("model", "encoder"), ("head", "architecture"), ("task", "name")):
        said = read({**FACTS, name: {**(FACTS[name] or {"x": 1}), key: None}})
        assert f"lacks {name}.{key}, or has something else there" in said
