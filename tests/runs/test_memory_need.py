"""A step that this machine's memory cannot hold is refused before anything is read, on a CPU too."""

import re

import pytest

from bert_jax.errors import UserError
from bert_jax.recipes.finetuning_settings import FinetuningSettings
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs import checks
from bert_jax.runs.finetuning import Finetuning
from bert_jax.runs.pretraining import Pretraining
from tests import toy
from tests.planning import tiny

ROOM = 60e6  # bytes


def test_a_phase_that_cannot_fit(monkeypatch):
    """The second phase is refused before the first begins; what the message advises is taken."""
    rows = {"num_steps": 500, "max_length": tiny.LENGTH}
    phases = {"phase1": {**rows, "batch_size": 8}, "phase2": {**rows, "batch_size": 4096}}
    monkeypatch.setattr(checks, "device_bytes", lambda device: ROOM)
    with toy.one_device():
        with pytest.raises(UserError) as refused:
            Pretraining(PretrainingSettings.of(tiny.config(phases=phases)))
        said = re.fullmatch(
            r"config\.phases\.phase2\.batch_size is 4,096: a step takes ([0-9.]+) MiB of memory on each of 1 CPU "
            r"devices, which have 57\.22 MiB; give --config\.phases\.phase2\.batch_size=([0-9]+), a shorter .*",
            str(refused.value),
        )
        assert said, refused.value
        assert float(said[1]) > 57.22
        phases["phase2"]["batch_size"] = int(said[2])
        Pretraining(PretrainingSettings.of(tiny.config(phases=phases)))


def test_a_fine_tuning_that_cannot_fit(monkeypatch):
    examples = {"train": [{"text": "a b c", "label": label, "id": label} for label in "xyxy"]}
    examples["dev"] = examples["train"]
    model = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "mlp_dim": 64, "max_length": 64}
    data = {"format": "table", "splits": {"train": "train.csv"}}
    settings = {"task": {"name": "classification"}, "data": data, "model": model, "vocab": {"min_frequency": 1}}
    monkeypatch.setattr(checks, "device_bytes", lambda device: ROOM)
    for size, fits in ((8, True), (50_000, False)):
        phases = {"train": {"num_epochs": 1, "batch_size": size, "max_length": 64}}
        with toy.one_device():
            checked = Finetuning(FinetuningSettings.of({**settings, "phases": phases}), None)
            if fits:
                checked.with_examples({"": examples})
                continue
            with pytest.raises(UserError, match=r"config\.phases\.train\.batch_size is 50,000: a step takes"):
                checked.with_examples({"": examples})
