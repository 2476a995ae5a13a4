"""What is read of ``run.json``."""

import json
from pathlib import Path

from bert_jax.workdir import file_formats
from bert_jax.workdir.run_record import read_run


def test_the_settings_of_a_run_of_before_have_the_keys_of_today(tmp_path: Path) -> None:
    def recorded(schedule: str) -> dict[str, object]:
        rates = {"kind": schedule, "peak_learning_rate": 0.1, "decay_steps": 0, "warmup_fraction": 0.1}
        model = {"size": "tiny", "attention": "causal"}
        return {"seed": 3, "model": model, "optimizer": {"kind": "lamb", "b1": 0.9}, "schedule": rates}

    content = {"identity": recorded("linear"), "config": recorded("warmup_stable_decay")}
    run = {file_formats.KEY: file_formats.WORKDIR.number, "run_id": "a", **content}
    (tmp_path / "run.json").write_text(json.dumps(run))
    found = read_run(str(tmp_path))
    optimizer = {"name": "lamb", "b1": 0.9}
    rates = {"name": "linear", "peak_learning_rate": 0.1, "warmup_fraction": 0.1}
    model = {"size": "tiny"}
    assert found["identity"] == {"seed": 3, "model": model, "optimizer": optimizer, "schedule": rates}
    decay = {"decay_steps": 0, "decay": "linear", "final_fraction": 0.0}
    assert found["config"]["schedule"] == {**rates, "name": "warmup_stable_decay", **decay}
    (tmp_path / "run.json").write_text(json.dumps(found))
    assert read_run(str(tmp_path)) == found
