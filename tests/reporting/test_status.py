"""``bert-jax status`` on a run that goes on, ended, failed or was killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from bert_jax.errors import UserError
from bert_jax.reporting import status
from bert_jax.reporting.status import StatusFile


@pytest.fixture
def open_status():
    """Return a function that opens a ``StatusFile``, whose thread ends when the test ends."""
    opened = []

    def make(*arguments, **options):
        opened.append(StatusFile(*arguments, **options))
        return opened[-1]

    yield make
    for file in opened:
        file._ended.set()
        file._changed.set()
        file._thread.join()


def wait_for(workdir, **expected):
    """Return the status, once it has these values."""
    for _ in range(200):
        found = json.loads((workdir / "status.json").read_text())
        if all(found[key] == value for key, value in expected.items()):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{found} never had {expected}")


def test_a_running_status_is_written_from_the_start_and_follows(tmp_path, open_status):
    file = open_status(tmp_path, every_seconds=0.01)
    assert status.read(tmp_path)["state"] == "starting"
    file.update(state="training", step=120, num_train_steps=1000, eta_seconds=200.0)
    file.saved(100)
    found = wait_for(tmp_path, state="training", step=120, last_save_step=100)
    assert found["eta_seconds"] == 200.0
    text = status.describe(tmp_path)
    assert "training" in text
    assert "120 of 1,000 (12.0%)" in text
    assert "3 m 20 s" in text
    assert "step 100, 0 s ago" in text


def test_a_model_that_is_not_there_yet_is_waited_for(tmp_path, open_status):
    """A step takes 2 s, and 750 of 1,000 steps are left, so step 400 is saved in 5 minutes."""
    from bert_jax.interchange.loading import load

    def said():
        with pytest.raises(UserError) as refused:
            load(str(tmp_path))
        return str(refused.value)

    file = open_status(tmp_path, every_seconds=0.01)
    assert f"{tmp_path} has no finished checkpoint; a run there is starting (process {os.getpid()} on " in said()
    file.update(state="training", step=250, num_train_steps=1000, eta_seconds=1500.0, save_every_steps=400)
    wait_for(tmp_path, step=250, save_every_steps=400)
    assert status.first_save(tmp_path) == (
        "a run trains there, at step 250 of 1,000, and saves step 400 first in about 5 m 00 s; wait for that"
    )
    (tmp_path / "checkpoints").mkdir()
    assert said() == f"{tmp_path} has no finished checkpoint; {status.first_save(tmp_path)}"
    file.update(save_every_steps=5000)  # the last step is saved too
    wait_for(tmp_path, save_every_steps=5000)
    assert "saves step 1,000 first in about 25 m 00 s" in status.first_save(tmp_path)
    (tmp_path / "run.json").write_text('{"revisions": {"step0": 0, "step256": 256, "step512": 512}}')
    assert "saves step 256 first in about 12 s" in status.first_save(tmp_path)
    assert "kept     0 of 3 revisions, next step0 at step 0" in status.describe(tmp_path)
    (tmp_path / "run.json").unlink()
    file.end("failed", "error")
    assert status.first_save(tmp_path) is None
    assert said() == f"{tmp_path} has no finished checkpoint; train first"


def test_a_run_stands_at_the_step_that_it_saved(tmp_path, open_status):
    """Ctrl-C saves at once, before the figures of the last steps are logged."""
    file = open_status(tmp_path)
    file.update(state="training", step=0, num_train_steps=400)
    file.saved(16)
    file.end("interrupted")
    assert status.read(tmp_path)["step"] == 16
    assert "16 of 400 (4.0%)" in status.describe(tmp_path)


def test_a_finished_run_shows_no_resume_and_a_failed_one_its_error(tmp_path, open_status):
    (tmp_path / "run.json").write_text(json.dumps({"command": "bert-jax pretrain --workdir=x"}))
    open_status(tmp_path).end("finished")
    assert "resume" not in status.describe(tmp_path)
    open_status(tmp_path).end("failed", "FloatingPointError: loss is nan at step 7")
    text = status.describe(tmp_path)
    assert "FloatingPointError: loss is nan at step 7" in text
    assert "bert-jax pretrain --workdir=x" in text
    open_status(tmp_path).end("interrupted")
    assert status.read(tmp_path)["state"] == "interrupted"


def test_a_killed_process_reads_as_stopped_with_the_command_that_resumes(tmp_path):
    program = f"""
import os, signal, time
from bert_jax.reporting.status import StatusFile
file = StatusFile({str(tmp_path)!r}, every_seconds=0.01)
file.update(state="training", step=5, num_train_steps=10)
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "run.json").write_text(json.dumps({"command": "bert-jax pretrain --config=quickstart"}))
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "training"
    assert status.read(tmp_path)["state"] == "stopped"
    text = status.describe(tmp_path)
    assert "stopped without a report (killed?)" in text
    assert "bert-jax pretrain --config=quickstart" in text
    assert "ETA" not in text


@pytest.mark.parametrize(("age", "state"), [(30.0, "training"), (90.0, "stopped")])
def test_a_run_on_another_host_counts_as_dead_after_a_minute_of_silence(tmp_path, open_status, age, state):
    open_status(tmp_path).end("finished")
    content = json.loads((tmp_path / "status.json").read_text())
    content |= {"state": "training", "host": "elsewhere", "heartbeat": time.time() - age}
    (tmp_path / "status.json").write_text(json.dumps(content))
    assert status.read(tmp_path)["state"] == state


def test_a_folder_without_a_run_is_an_error_that_says_so(tmp_path):
    with pytest.raises(UserError, match="no run was started there"):
        status.describe(tmp_path)


def test_goodput_adds_up_to_the_time_and_survives_a_restart(tmp_path, open_status):
    begin = time.monotonic()
    file = open_status(tmp_path)
    file.update(state="training")
    time.sleep(0.1)
    with file.during("evaluating"):
        time.sleep(0.05)
    file.move("train", "input_wait", 0.04)
    file.end("interrupted")
    elapsed = time.monotonic() - begin
    split = status.read(tmp_path)["goodput"]
    assert sum(split.values()) == pytest.approx(elapsed, abs=0.05)
    assert split["evaluation"] == pytest.approx(0.05, abs=0.03)
    assert split["input_wait"] == pytest.approx(0.04, abs=0.001)
    again = open_status(tmp_path)
    again.move("train", "lost", 0.03)
    again.end("interrupted")
    after = status.read(tmp_path)["goodput"]
    assert after["lost"] == pytest.approx(0.03, abs=0.001)
    assert after["train"] == pytest.approx(split["train"] - 0.03, abs=0.002)


def test_more_waiting_than_training_is_never_a_negative_time(tmp_path, open_status):
    file = open_status(tmp_path)
    file.move("train", "input_wait", 5.0)
    file.end("finished")
    assert min(status.read(tmp_path)["goodput"].values()) >= 0.0


def test_a_disk_that_fails_is_reported_once_and_stops_nothing(tmp_path, open_status, monkeypatch, capsys):
    def refuse(*_arguments):
        raise UserError("no space left")

    monkeypatch.setattr("bert_jax.storage.files.write_text", refuse)
    file = open_status(tmp_path, every_seconds=0.01)
    for step in range(5):
        file.update(step=step)
        time.sleep(0.02)
    file.end("finished")
    assert capsys.readouterr().err.count("no space left") == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"state": "training"}, "stopped"),
        ({"state": "training", "heartbeat": "x", "pid": None, "step": "many", "goodput": []}, "stopped"),
        ({"state": "failed", "last_save_time": 1.0, "goodput": {"train": "x"}}, "failed"),
        ({"state": "finished", "last_save_step": 7}, "finished"),
        ({"state": "training", "heartbeat": time.time(), "host": socket.gethostname(), "pid": 2**70}, "stopped"),
        ({"state": "training", "heartbeat": time.time(), "host": socket.gethostname(), "pid": 1e30}, "stopped"),
        ({"state": "failed", "step": 10**400, "num_train_steps": 10**400, "alarms": [{"step": 10**400}]}, "failed"),
    ],
)
def test_a_status_that_lacks_fields_is_read_as_far_as_it_goes(tmp_path, open_status, content, expected):
    (tmp_path / "status.json").write_text(json.dumps(content))
    assert status.read(tmp_path)["state"] == expected
    assert expected in status.describe(tmp_path)
    open_status(tmp_path)  # a run that goes on from there
    assert status.read(tmp_path)["state"] == "starting"


def test_a_save_that_a_kill_cut_short_is_not_called_saved(tmp_path):
    (tmp_path / "status.json").write_text(
        json.dumps({"state": "training", "last_save_step": 40, "last_save_time": 1.0})
    )
    (tmp_path / "checkpoints" / "40.orbax-checkpoint-tmp").mkdir(parents=True)
    assert status.read(tmp_path)["last_save_step"] is None
    assert "nothing yet" in status.describe(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"state": 5}', '{"state": "asleep"}'])
def test_a_status_without_a_state_is_one_line(tmp_path, content):
    (tmp_path / "status.json").write_text(content)
    with pytest.raises(UserError, match="status.json is damaged"):
        status.describe(tmp_path)


def test_a_command_that_would_fail_again_is_not_offered(tmp_path, open_status):
    (tmp_path / "run.json").write_text(json.dumps({"command": "bert-jax pretrain --workdir=x"}))
    open_status(tmp_path).end("failed", "mlm_loss not finite", resumable=False)
    text = status.describe(tmp_path)
    assert "bert-jax pretrain" not in text
    assert "it would end the same way" in text


def test_a_status_that_cannot_be_reached_is_not_one_that_is_not_there(tmp_path):
    os.mkfifo(tmp_path / "status.json")  # to read it would wait for ever
    with pytest.raises(UserError, match="status.json is a pipe, a socket or a device; remove it: a resumed run"):
        status.describe(tmp_path)
    (tmp_path / "status.json").unlink()
    (tmp_path / "status.json").mkdir()
    with pytest.raises(UserError, match=r"status.json cannot be read \(.*; check your rights to it, and the network"):
        status.read(tmp_path)
