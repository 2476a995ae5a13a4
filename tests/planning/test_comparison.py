"""``bert-jax plan --compare``: a run beside its plan, and what the next plan says of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.models.model import config_facts
from bert_jax.planning import comparison, topologies
from bert_jax.planning.plan import Change
from bert_jax.runs.plan_comparison import compare, measurements
from tests.planning import tiny

CPUS = {"platform": "cpu", "kind": "cpu", "count": 8}


def write_run(workdir: Path, windows: int = 6, **changes: Any) -> None:
    """Write what a run of the tiny recipe leaves, whose steps took 2 s, and 1 s of waiting in every window of 10."""
    workdir.mkdir(exist_ok=True)
    config = tiny.config()
    facts = {"model": config_facts(tiny.recipe().shape())}
    content = {"format": 1, "run_id": workdir.name, "config": config, "facts": facts, "devices": CPUS, "restarts": []}
    (workdir / "run.json").write_text(json.dumps({**content, **changes}, default=str))
    speed = {"step_seconds": 2.0, "input_wait_seconds": 1.0, "mfu": 0.1}
    lines = [{"step": 10 * i, "split": "train", "time": 1.0 * i, **speed} for i in range(1, windows + 2)]
    lines[0]["step_seconds"] = 99.0
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a plan that must be refused before anything is compiled; return the line that says why."""
    assert run(["plan", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_the_next_plan_says_how_far_the_last_ones_were_off(tmp_path: Path, cache: Path) -> None:
    write_run(tmp_path / "first")
    notes: list[str] = []
    found = compare(str(tmp_path / "first"), None, notes.append)
    assert notes[0] == f"compiling the steps of {tmp_path}/first for cpu:8"
    [phase], [planned] = found.phases, found.plan.phases
    assert (phase.phase, phase.windows, phase.measured) == ("phase1", 6, 2.0), "the first window is not steady"
    assert phase.input_wait == pytest.approx(0.05)
    assert planned.prediction is not None
    assert phase.ratio == pytest.approx(2.0 / planned.prediction.seconds)
    assert json.loads(found.as_json())["phases"][0]["ratio"] == phase.ratio
    said = "\n".join(found.as_lines())
    assert "MEASURED 2 s (median of 6 log windows" in said
    assert f"kept in {cache}/predictions/cpu-8, which the next plan reads" in said

    machine, recipe = found.plan.topology, tiny.recipe()

    def said(where: str = "cpu:8", **changes: Any) -> str:
        _, experiment = recipe.variant(Change(**changes), tiny.machine().devices)
        return comparison.look_up(topologies.parse(where), experiment, recipe.shape())[0]

    comparison.keep(machine, "first", [dataclasses.replace(phase, measured=2 * phase.predicted)])  # replaces its own
    assert said() == "measured steps of this recipe on cpu:8 were 2 x the prediction in 1 run"
    (cache / "predictions" / "cpu-8" / "spoilt.json").write_text("{")
    comparison.keep(machine, "second", [dataclasses.replace(phase, measured=4 * phase.predicted)])
    assert said().endswith(" were 3 x the prediction in 2 runs (2 to 4 x)")
    assert said(micro_batches={"phase1": 2}).startswith(
        "measured steps of other recipes on cpu:8 were 3 x the prediction"
    )
    assert said("cpu:4").startswith("no prediction for cpu:4 was compared with a measurement yet; after a run on cpu:4")
    _, experiment = recipe.variant(Change(), tiny.machine().devices)
    assert comparison.look_up(machine, experiment, recipe.shape())[1] == pytest.approx(3)
    assert comparison.look_up(topologies.parse("cpu:4"), experiment, recipe.shape())[1] is None


def test_a_run_in_epochs_is_planned_with_the_steps_that_it_had(tmp_path: Path) -> None:
    config = tiny.config(checkpoints={"every_steps": None})
    config["training"] = {"evaluations_per_epoch": 2, "log_every_steps": 10}
    config["phases"]["phase1"] = {"num_epochs": 3.0, "batch_size": tiny.ROWS, "max_length": tiny.LENGTH}
    write_run(tmp_path, config=config, phases={"phase1": {"num_steps": 70, "batch_size": 64, "max_length": 32}})

    def steps() -> tuple[int, int]:
        experiment = measurements(str(tmp_path))[1].settings.experiment()
        return experiment.phases.num_steps, experiment.save_every_steps

    assert steps() == (70, 70), "not evaluated yet"
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "split": "eval", "time": 1.0}) + "\n" for step in (0, 12, 24))
    assert steps() == (70, 12)


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = tmp_path / "run"
    flag = f"--compare={workdir}"
    assert "holds no run with a recipe and a model" in refused(capsys, flag)
    write_run(workdir, windows=1)
    assert "no steady step times since its start: 2 windows of a phase are needed" in refused(capsys, flag)
    write_run(workdir, restarts=[{"step": 60}])
    assert "no steady step times since it was resumed at step 60" in refused(capsys, flag)
    write_run(workdir, config={"task": {"name": "classification"}})
    assert "holds a run of fine-tuning" in refused(capsys, flag)
    write_run(workdir, devices={})
    assert "give --topology=KIND:SHAPE" in refused(capsys, flag)
    write_run(workdir, devices={"platform": "gpu", "kind": "Some GPU", "count": 1})
    assert "no peak rates are known for devices of the kind 'Some GPU'" in refused(capsys, flag)
    write_run(workdir)
    assert "was made on 8 devices of the kind 'cpu', not on v5e:4x4" in refused(capsys, flag, "--topology=v5e:4x4")
    assert "leave out --config, --tokens" in refused(capsys, flag, "--config=quickstart", "--tokens=2")
    assert "--topology missing" in refused(capsys, "--config=quickstart")
    assert "--config and --topology missing" in refused(capsys)


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (("cpu", "cpu", 2), "cpu:2"),
        (("tpu", "TPU v5 lite", 16), "v5e:4x4"),
        (("tpu", "TPU v5p", 64), "v5p:4x4x4"),
        (("gpu", "NVIDIA H100 80GB HBM3", 1), "h100:1"),
    ],
)
def test_the_machine_of_a_run_has_a_name(devices: tuple[str, str, int], name: str) -> None:
    assert topologies.of_devices(*devices) == [topologies.parse(name)]


def test_a_slice_of_no_known_shape_is_refused() -> None:
    with pytest.raises(UserError, match="no slice of 7 v5e devices is known"):
        topologies.of_devices("tpu", "TPU v5 lite", 7)
