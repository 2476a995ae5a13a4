"""``--profile``: a trace of the steps asked for is there whole or not at all, and the run is the same with it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from jax.profiler import ProfileData

from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.reporting.profiled_steps import ProfiledSteps
from tests.training import line

NUM_STEPS = 12


def trained(workdir: Path, first: int, last: int, **changes: Any) -> dict[str, float]:
    return line.train(workdir, num_steps=NUM_STEPS, save_every=4, profiled=ProfiledSteps(first, last), **changes)


def traces(workdir: Path) -> list[str]:
    return sorted(path.name for path in (workdir / "profile" / "plugins" / "profile").glob("*"))


def metrics(workdir: Path) -> list[tuple[int, Any]]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [(entry["step"], entry.get("loss")) for entry in lines]


def test_a_trace_holds_the_steps_asked_for_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run", 6, 8)
    said = capsys.readouterr().err
    assert f"trace of steps 6 to 8: {tmp_path}/run/profile" in said
    assert all(tool in said for tool in ("xprof --logdir=", "tensorboard --logdir=", "ui.perfetto.dev"))
    assert traces(tmp_path / "run") == ["steps_6_to_8"]
    [folder] = (tmp_path / "run" / "profile" / "plugins" / "profile").iterdir()
    [file] = folder.glob("*.xplane.pb")  # what XProf and TensorBoard read
    assert "/host:CPU" in {plane.name for plane in ProfileData.from_file(str(file)).planes}
    with gzip.open(folder / "perfetto_trace.json.gz") as unpacked:
        events = json.load(unpacked)["traceEvents"]
    steps = {event["args"]["step_num"] for event in events if event.get("name") == "train" and "args" in event}
    assert steps == {"6", "7", "8"}
    line.train(tmp_path / "plain", num_steps=NUM_STEPS, save_every=4)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "plain")


def test_a_run_that_ends_within_the_steps_keeps_no_trace_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(line.Points):
        def rows(self, epochs: Any, indices: Any) -> Any:
            if indices.max() >= 8 * line.BATCH:
                raise OSError("no more rows")
            return super().rows(epochs, indices)

    with pytest.raises(Exception, match="no more rows"):
        trained(tmp_path, 6, 10, points=Broken())
    assert "the run ended within steps 6 to 10: no trace is kept" in capsys.readouterr().err
    assert traces(tmp_path) == []
    trained(tmp_path, 9, 10)  # the profiler was stopped, so it can be started again
    assert traces(tmp_path) == ["steps_9_to_10"]
    trained(tmp_path, 9, 10)
    assert "steps 9 to 10: begun before this start, at step 12, so not traced by it" in capsys.readouterr().err


def test_without_a_place_for_it_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file in place of the folder")
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "cache"))
    trained(tmp_path / "run", 3, 4)
    assert "no trace of steps 3 to 4: " in capsys.readouterr().err


@pytest.mark.parametrize("value", ["5:3", "0:3", "5", "a:b", "1:2:3", "-1:3", "1:99999999999"])
@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_what_is_no_range_is_one_line(
    value: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, "--config=quickstart", f"--workdir={tmp_path}/run", f"--profile={value}"]) == 2
    assert f"found '{value}'; FIRST:LAST is needed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_steps_that_the_run_does_not_have_are_refused() -> None:
    steps = ProfiledSteps(4, 6)
    steps.check(6)
    with pytest.raises(UserError, match="ends past the run, which has 5 steps; give steps from 1 to 5, or leave"):
        steps.check(5)
