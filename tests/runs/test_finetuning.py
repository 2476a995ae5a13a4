"""A fine-tuning makes each thing once: it reads its files, encodes each split and loads its model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bert_jax.interchange import loading
from bert_jax.runs import finetuning_end
from bert_jax.runs.prediction import load_tuned, predict
from bert_jax.tasks.classification import Task
from tests.tasks import toy_tasks


def test_each_thing_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_device: None) -> None:
    made: Counter[str] = Counter()

    def counted(owner: Any, name: str, shown: Any) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            made[shown(*arguments)] += 1
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    data = {"splits": {"train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"}, "train_fraction": 0.5}
    shape = {"model": {"layers": "scanned"}}  # the trained task reads other parameters than the loaded model has
    toy_tasks.write_toy(tmp_path, "classification", phase={"num_epochs": 1}, data=data, export=True, **shape)
    longer = [{**one, "text": f"{one['text']} " * 2} for one in toy_tasks.examples("classification", 20, 3)]
    toy_tasks.write_examples(tmp_path / "test.jsonl", longer)
    with monkeypatch.context() as monkeypatch:
        counted(finetuning_end, "load", lambda *_: "files")
        counted(Task, "encode", lambda task, split, examples: f"{split} {len(examples)}")
        counted(loading, "read_params", lambda *_: "model")
        assert toy_tasks.finetune(tmp_path) == 0
    assert made == {"files": 1, "train 96": 1, "dev 48": 1, "test 20": 1, "model": 1}
    assert (tmp_path / "run" / "hugging_face" / "model.safetensors").exists()
    model = load_tuned(str(tmp_path / "run"))
    for split, examples in (("dev", toy_tasks.examples("classification", 48, 2)), ("test", longer)):
        alone = predict(model, examples).records
        together = toy_tasks.predictions(tmp_path, split)
        assert [one["id"] for one in together] == [one["id"] for one in alone]
        for one, other in zip(together, alone, strict=True):
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_fewer_examples_than_the_run_was_begun_with(
    tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_tasks.write_toy(tmp_path, "classification", train=64, dev=16, phase={"num_epochs": 1})
    assert toy_tasks.finetune(tmp_path) == 0
    toy_tasks.write_examples(tmp_path / "train.jsonl", toy_tasks.examples("classification", 16, 1))
    assert toy_tasks.finetune(tmp_path) == 2
    assert "was begun with other inputs: run.corpus_fingerprint" in capsys.readouterr().err
