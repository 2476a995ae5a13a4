"""Keeps ``status.json``, which says what a run is doing now, for ``bert-jax status`` and other programs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from bert_jax.errors import UserError, first_line
from bert_jax.program import duration, warn
from bert_jax.reporting.formats import figure, in_words, is_number
from bert_jax.reporting.measures import with_error
from bert_jax.storage import files, reading, retries
from bert_jax.workdir.steps import whole_steps

FILE = "status.json"
_ENDED = ("finished", "failed", "interrupted", "preempted")
State = Literal[  # the state of a run that goes on
    "starting", "restoring", "compiling", "training", "evaluating", "scoring", "profiling", "saving", "exporting",
    "reporting",
]  # fmt: skip
# State of a run that goes on -> the entry of ``goodput`` that counts its seconds, some of which ``move`` moves on.
RUNNING: Mapping[State, str] = {
    "starting": "start",
    "restoring": "restore",
    "compiling": "compile",
    "training": "train",
    "evaluating": "evaluation",
    "scoring": "scores",
    "profiling": "profile",
    "saving": "save",
    "exporting": "export",
    "reporting": "report",
}
NUMBERS = (
    "step", "num_train_steps", "eta_seconds", "last_step_time", "last_save_step", "last_save_time",
    "save_every_steps", "heartbeat", "pid",
)  # fmt: skip
HEARTBEAT_SECONDS = 15.0
_MAX_SCORES = 4  # most scores in the line of a split
_MAX_ALARMS = 50  # the file keeps so many newest alarms
_SHOWN_ALARMS = 5  # ``describe`` shows so many newest alarms
_MOST_PROCESSES = 1 << 31  # valid process ids are below this
SILENCE_SECONDS = 60.0  # without a heartbeat for so long, a run counts as dead


class StatusFile:
    """Keeps ``workdir/status.json`` up to date, from another thread, so that training never waits for a disk.

    Only process 0 of a job has a status file. A change is written within ``every_seconds``, a heartbeat every 15 s. No
    method raises if the disk is full or broken.

    ``goodput`` splits all seconds of the run, restarts included, into entries that add up: start, restore, compile,
    train, input_wait, evaluation, scores, profile, save, export, report, and lost (training that was undone by a kill).
    """

    def __init__(self, workdir: str | os.PathLike[str], every_seconds: float = 2.0):
        self._path = files.as_path(workdir) / FILE
        self._every = HEARTBEAT_SECONDS if files.is_remote(workdir) else every_seconds
        earlier = _plain(reading.read_object(self._path) or {})
        self._fields: dict[str, Any] = {
            "state": "starting",
            "step": earlier.get("step"),
            "num_train_steps": earlier.get("num_train_steps"),
            "eta_seconds": None,
            "last_step_time": None,
            "last_save_step": earlier.get("last_save_step"),
            "last_save_time": earlier.get("last_save_time"),
            "save_every_steps": None,
            "last_error": None,
            "resumable": True,
            "alarms": earlier["alarms"],
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": time.time(),
        }
        self._goodput: dict[str, float] = dict(earlier["goodput"])
        self._counted_until, self._warned = time.monotonic(), False
        self._lock, self._changed, self._ended = threading.RLock(), threading.Event(), threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._thread.start()

    def update(self, **fields: Any) -> None:
        """Set fields of the status, such as ``state``, ``step``, ``num_train_steps`` or ``eta_seconds``."""
        with self._lock:
            self._count()
            if "step" in fields:
                fields["last_step_time"] = time.time()
            self._fields.update(fields)
        self._changed.set()

    @contextlib.contextmanager
    def during(self, state: State) -> Iterator[None]:
        """Context manager: the state is ``state`` inside the block, and the previous state after it."""
        before = self._fields["state"]
        self.update(state=state)
        try:
            yield
        finally:
            self.update(state=before)

    def move(self, source: str, target: str, seconds: float) -> None:
        """Move ``seconds`` from one entry of ``goodput`` to another, such as training that is repeated."""
        with self._lock:
            self._count()
            seconds = min(seconds, self._goodput.get(source, 0.0))
            self._goodput[source] = self._goodput.get(source, 0.0) - seconds
            self._goodput[target] = self._goodput.get(target, 0.0) + seconds

    def saved(self, step: int) -> None:
        """Record that ``step`` is saved. The run has reached this step, even if it logged no figure of it."""
        reached = max(step, self._fields["step"] or 0)
        self.update(step=reached, last_save_step=step, last_save_time=time.time())

    def alarm(self, step: int, text: str) -> None:
        """Add an alarm: something at ``step`` that a person should look at."""
        self.update(alarms=[*self._fields["alarms"], {"step": step, "text": text}][-_MAX_ALARMS:])

    def cut_back(self, step: int) -> None:
        """Remove the alarms of steps after ``step``."""
        self.update(alarms=[alarm for alarm in self._fields["alarms"] if alarm["step"] <= step])

    def end(self, state: str, error: str | None = None, resumable: bool = True) -> None:
        """Write the end of the run: its ``state``, its error, and whether the same command can resume the run."""
        self._ended.set()
        self._changed.set()
        self._thread.join(timeout=30)
        eta = 0.0 if state == "finished" else None
        self.update(state=state, last_error=error, resumable=resumable, eta_seconds=eta)
        self._write()

    def _beat(self) -> None:
        while not self._ended.is_set():
            if self._changed.wait(HEARTBEAT_SECONDS):
                self._changed.clear()
            if not self._ended.is_set():
                with retries.at_once():  # no retry, which could overwrite the final status
                    self._write()
            self._ended.wait(self._every)

    def _count(self) -> None:
        now = time.monotonic()
        if account := RUNNING.get(self._fields["state"]):
            self._goodput[account] = self._goodput.get(account, 0.0) + now - self._counted_until
        self._counted_until = now

    def content(self) -> dict[str, Any]:
        """Return the content that the file should have now."""
        with self._lock:
            self._count()
            goodput = {name: round(seconds, 3) for name, seconds in self._goodput.items()}
            return {**self._fields, "heartbeat": time.time(), "goodput": goodput}

    def _write(self) -> None:
        content = self.content()
        try:
            files.write_text(self._path, json.dumps(content, indent=2) + "\n")
        except Exception as error:  # a store's client may raise anything; training goes on
            if not self._warned:
                warn(f"cannot write {self._path}: {error}; training goes on")
            self._warned = True


def read(workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the status of a run. If the process seems dead without having recorded an end, ``state`` is "stopped".

    The result also has ``command``, which starts or resumes the run (None if run.json does not name one), and
    ``revisions``: name -> step that is kept for ever.

    Raises:
      UserError: ``workdir`` holds no run, or its status names no state.
    """
    try:
        content = reading.parse_object(reading.read_bytes(files.as_path(workdir) / FILE))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{workdir} has no {FILE}: no run was started there; give the --workdir of a run") from None
    except reading.NotPlainError as error:
        raise UserError(f"{error.filename} {error.strerror}; remove it: a resumed run writes it anew") from error
    except UserError:
        raise
    except Exception as error:  # a store's client may raise anything
        raise UserError(
            f"{workdir}/{FILE} cannot be read ({first_line(error)}); check your rights to it, and the network"
        ) from error
    status = _plain(content or {})
    if status["state"] not in (*RUNNING, *_ENDED):
        raise UserError(f"{workdir}/{FILE} is damaged: it names no state; a resumed run writes it anew")
    run = reading.read_object(files.as_path(workdir) / "run.json") or {}
    if status["state"] in RUNNING and not _alive(status):
        status["state"] = "stopped"
        whole = whole_steps(files.as_path(workdir) / "checkpoints")
        if status["last_save_step"] not in whole:  # the save had begun when the run was killed
            status |= {"last_save_step": max(whole, default=None), "last_save_time": None}
    revisions = found if isinstance(found := run.get("revisions"), dict) else {}
    steps = {name: int(step) for name, step in revisions.items() if is_number(step)}
    return {**status, "command": run.get("command"), "revisions": steps}


def first_save(workdir: str | os.PathLike[str]) -> str | None:
    """Return advice to wait for the first save of the run that goes on in ``workdir``; None if no run goes on there."""
    try:
        now = read(workdir)
    except UserError:
        return None
    if now["state"] not in RUNNING:
        return None
    step, last, every, eta = (now[name] for name in ("step", "num_train_steps", "save_every_steps", "eta_seconds"))
    if not (every and last):
        return f"a run there is {now['state']} (process {now['pid']} on {now['host']}); wait for its first saved step"
    done = step or 0
    first = min([every, last, *(kept for kept in now["revisions"].values() if kept > done)])
    soon = f" in about {duration(eta * (first - done) / (last - done))}" if eta and done < first else ""
    return f"a run trains there, at step {done:,} of {last:,}, and saves step {first:,} first{soon}; wait for that"


def describe(workdir: str | os.PathLike[str]) -> str:
    """Return the status of a run as text for people."""
    status, now = read(workdir), time.time()
    lines = [
        *_lines(status, now),
        ("kept", _kept(workdir, status["revisions"])),
        *_scores(reading.read_object(files.as_path(workdir) / "results.json") or {}),
    ]
    return "\n".join(f"{label:<8} {text}" for label, text in lines if text)


def _kept(workdir: str | os.PathLike[str], revisions: Mapping[str, int]) -> str:
    """Return how many of the steps that are kept for ever are saved, and which is the next."""
    if not revisions:
        return ""
    saved = whole_steps(files.as_path(workdir) / "checkpoints")
    ahead = [f"{name} at step {step:,}" for name, step in revisions.items() if step > max(saved, default=-1)]
    there = sum(step in saved for step in revisions.values())
    return f"{there} of {len(revisions)} revisions{f', next {ahead[0]}' if ahead else ''}"


def _scores(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, text) lines: the scores of the chosen step on each split, the main metric first."""
    if not is_number(results.get("best_step")):
        return
    yield "chosen", f"step {results['best_step']:,}"
    splits = results.get("metrics")
    for name, metrics in splits.items() if isinstance(splits, dict) else ():
        known = [(k, v) for k, v in metrics.items() if is_number(v)] if isinstance(metrics, dict) else []
        known.sort(key=lambda item: item[0] != results.get("metric"))
        errors = errors_of.get(name) if isinstance(errors_of := results.get("standard_errors"), dict) else None
        errors = errors if isinstance(errors, dict) else {}
        yield name, ", ".join(f"{in_words(k)} {with_error(k, figure(v), errors)}" for k, v in known[:_MAX_SCORES])


def _lines(status: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
    state = status["state"]
    stopped = state == "stopped"
    where = f" (process {status['pid']} on {status['host']})" if state in RUNNING else ""
    alarms = status["alarms"]
    alarmed = ", with alarms" if alarms else ""
    yield "state", ("stopped without a report (killed?)" if stopped else state) + where + alarmed
    if stopped and status["heartbeat"]:
        yield "seen", f"{duration(now - status['heartbeat'])} ago"
    step, total = status["step"], status["num_train_steps"]
    if step is not None:
        yield "step", f"{step:,}" + (f" of {total:,} ({step / total:.1%})" if total else "")
    for alarm in alarms[-_SHOWN_ALARMS:]:
        yield "alarm", f"at step {alarm['step']:,}: {alarm['text']}"
    if state in RUNNING and status["eta_seconds"] is not None:
        yield "ETA", duration(status["eta_seconds"])
    quiet = now - (status["last_step_time"] or now)
    if state == "training" and quiet > SILENCE_SECONDS:
        yield "quiet", f"no step reported for {duration(quiet)}"
    saved, when = status["last_save_step"], status["last_save_time"]
    ago = f", {duration(now - when)} ago" if when else ""
    yield "saved", "nothing yet" if saved is None else f"step {saved:,}{ago}"
    yield "time", goodput_line(status["goodput"])
    yield "error", status["last_error"] or ("none" if state in _ENDED else "")
    if state != "finished" and state not in RUNNING:
        command = status["command"] or "run the command that started it again"
        yield "resume", command if status["resumable"] else "not with the same command: it would end the same way"


def goodput_line(goodput: Mapping[str, float]) -> str:
    """Return a line with the total time and the shares of its parts: ``12 m 05 s: train 80 %, compile 12 %, ...``."""
    total = sum(goodput.values())
    parts = sorted(goodput.items(), key=lambda item: -item[1])
    shares = [f"{name.replace('_', ' ')} {seconds / total:.0%}" for name, seconds in parts if seconds > 0.005 * total]
    return f"{duration(total)}: {', '.join(shares)}" if total else ""


def _alive(status: Mapping[str, Any]) -> bool:
    if status["heartbeat"] is None or time.time() - status["heartbeat"] > SILENCE_SECONDS:
        return False
    if status["host"] != socket.gethostname():
        return True
    return status["pid"] is not None and 0 < status["pid"] < _MOST_PROCESSES and files.runs(int(status["pid"]))


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status that has every field used here, even if the file is damaged or written by hand.

    A number that is missing or invalid becomes None.
    """
    numbers = {name: value if is_number(value := content.get(name)) else None for name in NUMBERS}
    goodput = content.get("goodput")
    shares = {k: float(v) for k, v in goodput.items() if is_number(v)} if isinstance(goodput, dict) else {}
    others = {"state": None, "host": None, "last_error": None, "resumable": True}
    listed = found if isinstance(found := content.get("alarms"), list) else []
    alarms = [one for one in listed if isinstance(one, dict) and is_number(one.get("step")) and one.get("text")]
    return {**others, **content, **numbers, "goodput": shares, "alarms": alarms}
