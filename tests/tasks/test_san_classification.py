"""Classification of pairs by a stochastic answer network: where the texts meet, bad settings, and a run."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.cluster.exit_codes import BAD_INPUT
from bert_jax.errors import UserError
from bert_jax.tasks.san_classification import Config
from tests.tasks import toy_tasks


def test_the_boundary_is_between_text_and_pair():
    """[CLS] and the first [SEP] belong to the premise, the last [SEP] to the hypothesis (mt-dnn v0.1, batcher.py)."""
    task = toy_tasks.make_task("san_classification", {"train": toy_tasks.examples("san_classification", 8)})
    batch = task.rows["train"].take(np.arange(8), 32)
    sep = task.setting.tokenizer.sep_id
    for ids, types, mask in zip(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"], strict=True):
        first, second = np.flatnonzero(ids == sep)
        assert types[: first + 1].tolist() == [0] * (first + 1)
        assert types[first + 1 : second + 1].tolist() == [1] * (second - first)
        assert mask.sum() == second + 1
    assert "token_type_ids" in task.batch_specs["train"]


@pytest.mark.parametrize("bad", [{"reading_steps": 0}, {"step_dropout_rate": 1.0}])
def test_bad_settings(bad):
    with pytest.raises(UserError, match=f"config.task.{next(iter(bad))} is"):
        Config(**bad)


@pytest.mark.usefixtures("one_device")
def test_a_run_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With an encoder that reads no token types; one text, and a class of transformers with this head, are a line."""
    phase, model = {"num_epochs": 4}, {"encoder": "roberta"}
    toy_tasks.write_toy(tmp_path, "san_classification", phase=phase, model=model, export=True, packing="none")
    assert toy_tasks.finetune(tmp_path, "--config.task.reading_steps=2") == 0
    assert "not exported: transformers has no class with this head" in capsys.readouterr().err
    metrics, records = toy_tasks.results(tmp_path)["metrics"]["dev"], toy_tasks.predictions(tmp_path)
    assert metrics["accuracy"] > 0.9
    assert metrics["accuracy"] == np.mean([record["prediction"] == record["label"] for record in records])
    workdir = f"--workdir={tmp_path / 'run'}"
    assert run(["predict", workdir, "a great film"]) == BAD_INPUT
    assert "2 texts, text and pair, are needed" in capsys.readouterr().err
    assert run(["export", workdir, f"--output={tmp_path / 'model'}"]) == 0
    assert "RobertaModel" in (said := capsys.readouterr().out)
    assert "left out: classifier" in said
