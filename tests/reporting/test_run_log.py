"""metrics.jsonl is exact after a cut, and every logger is a view of it that can never stop a run."""

import json
import math
import resource
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from etils.epath.backend import fsspec_backend
from fsspec.implementations.memory import MemoryFileSystem

from bert_jax.errors import UserError
from bert_jax.parts import catalogue
from bert_jax.reporting.loggers import mlflow, tensorboard, trackio, wandb
from bert_jax.reporting.run_log import RunLog
from bert_jax.training.experiment import TrainingConfig

RUN = {"run_id": "id1", "name": "name", "config": {"model": {"num_layers": 2}}}


class Recorder:
    """A logger that remembers its calls."""

    def __init__(self, fails_at=None):
        self.calls, self._fails_at = [], fails_at

    def _hear(self, *what):
        self.calls.append(what)
        if what[0] == self._fails_at:
            raise ConnectionError("no network")

    def start(self, run):
        self._hear("start", run)

    def log(self, step, split, time, metrics):
        self._hear("log", step, split, time, metrics)

    def cut_back(self, records):
        self._hear("cut_back", list(records))

    def close(self):
        self._hear("close")


@pytest.fixture
def open_log():
    """Return a function that opens a ``RunLog``, which is closed when the test ends."""
    opened = []

    def make(*arguments, **options):
        opened.append(RunLog(*arguments, **options))
        return opened[-1]

    yield make
    for log in opened:
        log.close()


def fill(log, steps):
    for step in steps:
        log.write(step, "train", {"mlm_loss": 10.0 / (step + 1), "mfu": None})
        if step % 2 == 0:
            log.write(step, "eval", {"mlm_loss": 9.0 / (step + 1)})


def test_a_line_is_a_json_object_with_its_keys_first_and_null_for_what_is_no_number(tmp_path, open_log):
    log = open_log(tmp_path)
    values = {"a": float("nan"), "b": np.float32(0.5), "c": None, "d": np.int64(7), "phase": "x", "e": np.inf}
    log.write(3, "train", values)
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert list(record)[:3] == ["step", "split", "time"]
    del record["time"]
    assert record == {"step": 3, "split": "train", "a": None, "b": 0.5, "c": None, "d": 7, "phase": "x", "e": None}


def test_lines_that_no_run_has_written_are_left_out(tmp_path, open_log):
    line = {"step": 1, "split": "train", "time": 2.0, "mlm_loss": 3.0}
    changes = ({"mlm_loss": 10**400}, {"mlm_loss": {"a": 1}}, {"step": 10**400}, {"time": "x"}, {"split": ["a"]})
    spoilt = [json.dumps({**line, **change}).encode() for change in changes] + [b"[" * 100_000, b"\xff"]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*spoilt, json.dumps(line).encode(), b""]))
    assert open_log(tmp_path).records() == [line]


def test_cut_back_keeps_the_bytes_of_what_stands_and_a_resumed_log_has_nothing_twice(tmp_path, open_log):
    whole = open_log(tmp_path)
    fill(whole, range(10))
    whole.close()
    path = tmp_path / "metrics.jsonl"
    before = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(path.read_bytes() + b'{"step": 5, "split": "tra')  # the kill came in the middle of a line
    resumed = open_log(tmp_path, [listener := Recorder()])
    resumed.cut_back(4)
    assert path.read_bytes() == b"".join(line for line in before if json.loads(line)["step"] <= 4)
    assert listener.calls == [("cut_back", resumed.records())]
    fill(resumed, range(5, 10))
    keys = [(r["step"], r["split"]) for r in resumed.records()]
    assert keys == [(json.loads(line)["step"], json.loads(line)["split"]) for line in before]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_torn_line_is_dropped_also_without_a_cut(tmp_path, open_log):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "split": "eval", "time": 2.0}\n{"step": 2, "sp')
    log = open_log(tmp_path)
    log.write(2, "eval", {})
    assert [r["step"] for r in log.records()] == [1, 2]
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 2


def test_lines_that_the_disk_does_not_take_wait_for_room_and_no_save_is_ahead_of_them(tmp_path, open_log, capsys):
    log, before = open_log(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    fill(log, [1])
    size = (tmp_path / "metrics.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        fill(log, [2, 3])
        with pytest.raises(UserError, match=f"cannot write {log._path}: File too large; .*raise the limit .*ulimit -f"):
            log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err.count("training goes on to the next save") == 1
    assert (tmp_path / "metrics.jsonl").stat().st_size == size
    fill(log, [5])
    log.flush()
    assert [(r["step"], r["split"]) for r in log.records()] == [
        *((1, "train"), (2, "train"), (2, "eval"), (3, "train"), (5, "train"))
    ]


def test_cut_back_tells_how_much_time_was_lost(tmp_path, open_log):
    lines = [json.dumps({"step": s, "split": "train", "time": 100.0 + 3 * s}) for s in range(6)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    log = open_log(tmp_path)
    assert log.cut_back(3) == pytest.approx(6.0)
    assert log.cut_back(3) == 0.0
    assert log.cut_back(-1) == math.inf, "nothing is left: all the time is lost"
    assert log.cut_back(-1) == 0.0
    assert log.records() == []


@pytest.mark.parametrize("moment", ["start", "log", "cut_back", "close"])
def test_a_logger_that_fails_is_named_once_and_switched_off(tmp_path, capsys, moment, open_log):
    bad, good = Recorder(fails_at=moment), Recorder()
    log = open_log(tmp_path, (bad, good))
    log.start(RUN)
    fill(log, range(4))
    log.cut_back(2)
    fill(log, [3])
    log.close()
    assert capsys.readouterr().err.count("no network") == 1
    assert bad.calls[-1][0] == moment
    assert [t[0] for t in bad.calls].count(moment) == 1
    assert [t[0] for t in good.calls][-1] == "close"
    assert len(log.records()) == 6


def events(folder: Path) -> set[tuple[str, str, int, float, float]]:
    """Return (split, name, step, wall time, value) of every event.

    A record of the file is length (8 bytes), checksum (4), data, checksum (4).
    """
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in folder.rglob("events.out.*"):
        data = file.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                found.append((file.parent.name, value.tag, event.step, round(event.wall_time, 3), value.simple_value))
    assert len(found) == len(set(found))
    return set(found)


def test_events_are_a_view_of_the_records_also_after_a_cut(tmp_path, open_log):
    def expected(log):
        return {
            (r["split"], "mlm_loss", r["step"], round(r["time"], 3), float(np.float32(r["mlm_loss"])))
            for r in log.records()
        }

    first = open_log(tmp_path, [tensorboard.Logger()])
    first.start(RUN)
    fill(first, range(8))
    first.close()
    assert events(tmp_path / "events") == expected(first)
    second = open_log(tmp_path, [tensorboard.Logger()])
    second.start(RUN)
    second.cut_back(3)
    assert events(tmp_path / "events") == expected(second)
    fill(second, range(4, 12))
    second.close()
    assert len(second.records()) == 18
    assert events(tmp_path / "events") == expected(second)


@pytest.mark.parametrize("module", [wandb, mlflow, trackio])
def test_a_missing_package_is_an_error_before_training_that_names_the_extra(module, monkeypatch):
    name = module.__name__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"pip install {name}"):
        module.Logger()


def test_wandb_resumes_under_one_id(tmp_path, monkeypatch, open_log):
    calls = []
    run = types.SimpleNamespace(log=lambda values, step: calls.append((step, values)), finish=lambda: None)
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: calls.append(options) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        log = open_log(tmp_path, [wandb.Logger()])
        log.start(RUN)
    log.write(5, "eval", {"mlm_loss": 2.0, "mfu": None, "phase": "128"})
    log.close()
    assert [(c["id"], c["resume"], c["dir"]) for c in calls[:2]] == [("id1", "allow", str(tmp_path))] * 2
    step, values = calls[2]
    assert step == 5
    assert set(values) == {"eval/mlm_loss", "time"}


def test_trackio_resumes_under_one_name(tmp_path, monkeypatch, open_log):
    calls = []
    run = types.SimpleNamespace(log=lambda metrics, step: calls.append((step, metrics)))
    fake = types.ModuleType("trackio")
    fake.finish = lambda: calls.append("end")
    fake.init = lambda **options: calls.append(options) or run
    monkeypatch.setitem(sys.modules, "trackio", fake)
    for _ in range(2):
        log = open_log(tmp_path, [trackio.Logger()])
        log.start(RUN)
    log.write(5, "eval", {"mlm_loss": 2.0, "mfu": None, "phase": "128"})
    log.close()
    assert [(c["project"], c["name"], c["resume"]) for c in calls[:2]] == [("bert_jax", "name-id1", "allow")] * 2
    assert calls[2:] == [(5, {"eval/mlm_loss": 2.0}), "end"]


@pytest.fixture
def object_store(monkeypatch):
    """An s3:// that lives in memory."""

    class Store(MemoryFileSystem):
        protocol = "s3"
        store = {}
        pseudo_dirs = [""]

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(str(path).replace("s3://", "memory://"))

    monkeypatch.setattr("fsspec.filesystem", lambda name, **options: Store())
    fsspec_backend._get_filesystem.cache_clear()
    yield
    fsspec_backend._get_filesystem.cache_clear()


def test_a_remote_log_is_uploaded_whole_and_read_back(tmp_path, monkeypatch, object_store, open_log):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "one"))
    log = open_log("s3://bucket/run", [tensorboard.Logger()])
    log.start(RUN)
    fill(log, range(6))
    log.close()
    remote = epath.Path("s3://bucket/run")
    assert len((remote / "metrics.jsonl").read_text().splitlines()) == 9
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / "two"))  # another machine
    resumed = open_log("s3://bucket/run", [tensorboard.Logger()])
    resumed.start(RUN)
    resumed.cut_back(3)
    resumed.flush()
    assert [r["step"] for r in resumed.records()] == [0, 0, 1, 2, 2, 3]
    assert len((remote / "metrics.jsonl").read_text().splitlines()) == 6
    here = {p.relative_to(tmp_path / "two").parts[-1] for p in (tmp_path / "two").rglob("events.out.*")}
    there = {p.name for split in (remote / "events").iterdir() for p in split.iterdir()}
    assert there == here
    resumed.close()


def test_a_remote_log_keeps_local_lines_that_were_not_uploaded(tmp_path, monkeypatch, object_store, open_log):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    log = open_log("s3://bucket/killed")
    fill(log, range(2))
    log.flush()
    fill(log, range(2, 4))  # and then the process is killed
    assert [r["step"] for r in open_log("s3://bucket/killed").records()] == [0, 0, 1, 2, 2, 3]


def test_a_store_that_fails_does_not_stop_training(tmp_path, monkeypatch, object_store, open_log):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    warnings = []
    monkeypatch.setattr("bert_jax.reporting.run_log.warn", warnings.append)
    log = open_log("s3://bucket/broken")
    fill(log, range(2))

    def refuse(*_args, **_options):
        raise PermissionError("403")

    monkeypatch.setattr("bert_jax.storage.files.write_bytes", refuse)
    log.flush()
    log.flush()
    assert warnings
    assert all("403" in w for w in warnings)


def test_loggers_may_have_commas_between_them():
    assert TrainingConfig(loggers=("tensorboard, wandb",)).loggers == ("tensorboard", "wandb")
    own = f"a,b.py@{'0' * 16}"
    assert TrainingConfig(loggers=(own, "wandb")).loggers == (own, "wandb")


def test_loggers_are_found_by_file_name():
    assert set(catalogue.parts("reporting.loggers", having="Logger")) == {"tensorboard", "wandb", "mlflow", "trackio"}
    assert isinstance(catalogue.find("reporting.loggers", "tensorboard", having="Logger").Logger(), tensorboard.Logger)
