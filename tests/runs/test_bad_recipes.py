"""Bad recipes and bad texts of a pretraining are one line, before anything slow."""

from pathlib import Path

import pytest

from bert_jax.records import SPECIAL_TOKENS
from tests import toy
from tests.runs.commands import pretrain


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_text(tmp_path_factory.mktemp("text") / "text.txt")


BAD_RECIPES = {
    "unknown key": (
        {"training": {"log_evry_steps": 5}},
        "config.training.log_evry_steps; did you mean 'log_every_steps'",
    ),
    "unknown group": ({"trainig": {}}, "config.trainig; did you mean 'training'"),
    "wrong type": ({"schedule": {"peak_learning_rate": "fast"}}, "peak_learning_rate is 'fast'; expected float"),
    "long rows": (
        {"phases": {"phase1": {"num_steps": 24, "batch_size": 8, "max_length": 64}}},
        "exceeds the model's 32 positions",
    ),
    "masking of a phase": (
        {"phases": {"phase1": {"num_steps": 24, "batch_size": 8, "max_length": 32, "masking": {"rte": 0.3}}}},
        "config.phases.phase1.masking.rte; did you mean 'rate'",
    ),
    "packing": ({"objective": {"packing": "tight"}}, "config.objective.packing is 'tight'; allowed: 'none', 'packed'"),
    "mesh": ({"mesh": {"data": 3}}, "does not divide the 8 devices"),
    "batch": ({"phases": {"phase1": {"num_steps": 24, "batch_size": 12, "max_length": 32}}}, "that does: 8 or 16"),
    "heads": ({"mesh": {"tensor": 8}}, "tensor is 8, which does not divide the model's 2 attention heads"),
    "warm-up": ({"schedule": {"warmup_steps": 25}}, "exceed the run's 24 steps"),
    "objective": ({"objective": {"name": "mlm_nspp"}}, "did you mean 'mlm_nsp'"),
    "attention": (
        {"model": {"attention": "causal"}},
        "config.model.attention follows from config.objective.name, which says who sees whom: 'ltr' reads",
    ),
    "a key of a phase": (
        {"phases": {"phase1": {"num_steps": 24, "batch_size": 8, "max_length": 32, "objective": {"nme": "mlm"}}}},
        "config.phases.phase1.objective.nme; did you mean 'name'",
    ),
    "masking of a phase's objective": (
        {"phases": {"phase1": {"num_steps": 24, "batch_size": 8, "max_length": 32, "objective": {"masking": 3}}}},
        "config.phases.phase1.objective.masking is 3; it replaces keys",
    ),
    "few files": (
        {"corpus": {"source": "text_files", "options": {"paths": (__file__,)}}},
        "config.corpus.options.paths has too few files (1), each one document, to train on 2 and hold out 2",
    ),
    "few files to hold out": (
        {
            "corpus": {
                "source": "text_files",
                "options": {"paths": (str(Path(__file__).with_name("*.py")),)},
                "heldout_fraction": 0.01,
            }
        },
        "cut them into documents of some pages with --config.corpus.options.document_boundary=pages",
    ),
    "strategy": ({"objective": {"masking": {"strategy": "span"}}}, "there is no strategy 'span' in bert_jax.rows"),
    "unit": (
        {"objective": {"masking": {"strategy": "whole_unit", "unit": "wrod"}}},
        "did you mean 'word'? valid: piece, word); name its",
    ),
    "no objective": ({"objective": {"name": "losses"}}, "ltr, mass, mlm, mlm_nsp"),
    "short rows": (
        {"phases": {"phase1": {"num_steps": 24, "batch_size": 8, "max_length": 4}}},
        "config.phases.phase1.max_length is 4; a sequence with its special tokens needs at least 5",
    ),
    "no steps": (
        {"phases": {"phase1": {"num_steps": 0, "batch_size": 8, "max_length": 32}}},
        "config.phases.phase1.num_steps is 0",
    ),
    "no corpus": ({"corpus": {"path": "nowhere"}}, "nowhere is not a corpus"),
    "logger": ({"training": {"loggers": ("tensorbord",)}}, "did you mean 'tensorboard'"),
    "source": ({"corpus": {"source": "docstring", "options": {}}}, "did you mean 'docstrings'"),
    "no such text": ({"corpus": {"options": {"paths": ("nothing/*.txt",)}}}, "nothing/*.txt"),
}


@pytest.mark.parametrize("name", BAD_RECIPES)
def test_bad_recipes(name: str, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, expected = BAD_RECIPES[name]
    assert pretrain(tmp_path, toy.recipe(text, **changes)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert expected in error
    assert not (tmp_path / "run" / "vocab.txt").exists()


def test_a_vocabulary_that_is_no_group(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrain(tmp_path, {**toy.recipe(text), "vocab": "x"}, "--vocab=y") == 2
    assert "config.vocab is 'x', and has keys of its own" in capsys.readouterr().err


BAD_TEXTS = {
    "empty": (b"", "text"),
    "one sentence": (b"There is but one sentence here.\n", "document"),
    "binary": (b"Good text.\nMore text.\n\x00\x01\x02\xff" * 20, "byte offset 22"),
    "encoding": ("Caf\u00e9 au lait.\nNoch ein Satz.\n".encode("latin-1") * 20, "byte offset 3"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_texts(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, expected = BAD_TEXTS[name]
    (tmp_path / "bad.txt").write_bytes(content)
    assert pretrain(tmp_path, toy.recipe(tmp_path / "bad.txt")) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert expected in error
    assert not (tmp_path / "run" / "corpus").exists()


def test_a_vocabulary_without_a_special_token(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS[:-1], "the", "cat"]) + "\n")
    assert pretrain(tmp_path, toy.recipe(text), f"--vocab={vocab}") == 2
    assert "[MASK]" in capsys.readouterr().err
    assert not (tmp_path / "run" / "vocab.txt").exists()
