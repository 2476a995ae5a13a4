"""Keeps ``run.json``, and decides whether a command may go on with the run in a workdir.

A run has one folder, into which only one process writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from bert_jax.cluster import distributed
from bert_jax.cluster.exit_codes import BAD_INPUT
from bert_jax.configuration import differences
from bert_jax.errors import UserError
from bert_jax.parts.catalogue import what_changed
from bert_jax.program import say
from bert_jax.storage import files, reading
from bert_jax.workdir import file_formats
from bert_jax.workdir.lease import Lease

_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "numpy",
    "tokenizers",
    "tensorflow-datasets",
)

# entry of run.json -> its type
TYPES: dict[str, type] = {
    "identity": dict,
    "facts": dict,
    "restarts": list,
    "devices": dict,
    "extended": list,
    "skipped_steps": list,
    "rolled_back": list,
    "titles": dict,
    "revisions": dict,
}
_REVISION = re.compile(r"[a-zA-Z0-9][\w.-]*")  # the name of a revision, which becomes the name of a folder


def read_run(workdir: str) -> dict[str, Any]:
    """Return the content of ``workdir/run.json``; {} if there is no such file.

    Raises ``UserError`` if it is damaged, or another version wrote it.
    """
    path = files.as_path(workdir) / "run.json"
    if not path.exists():
        return {}
    try:
        run = reading.parse_object(reading.read_bytes(path))
    except reading.NotPlainError as error:
        raise UserError(f"{path} {error.strerror}; put a plain file in its place") from error
    if run:
        file_formats.check_workdir(run, workdir)
    if run is None or not _is_sound(run):
        raise UserError(
            f"{path} is damaged: it does not say what the run is; put it back (every checkpoint has a copy, as 'run' "
            "in checkpoints/STEP/facts/metadata), or use another --workdir"
        )
    return run


def _is_sound(run: Mapping[str, Any]) -> bool:
    """Return whether the entries of ``run.json`` that are used later have the right types."""
    if not all(isinstance(run.get(name, of_type()), of_type) for name, of_type in TYPES.items()):
        return False
    rolled_back, identity, restarts = run.get("rolled_back", []), run.get("identity", {}), run.get("restarts", [])
    if not all(isinstance(entry, dict) for entry in [*rolled_back, *restarts]):
        return False
    if not all(isinstance(entry.get("extended", []), list) for entry in restarts):
        return False
    steps = [*run.get("skipped_steps", []), *(number for back in rolled_back for number in back.values())]
    revisions = run.get("revisions", {}).items()
    if not all(_REVISION.fullmatch(name) and type(step) is int for name, step in revisions):
        return False
    named = not identity or isinstance(run.get("run_id"), str)
    return named and isinstance(identity.get("init"), str | None) and all(type(step) is int for step in steps)


Purpose = Literal["pretraining", "fine-tuning"]
_STARTS = ("init", "init_optimizer")  # flags, and entries of the identity, that name the model that a run begins with


def purpose_of(tree: Mapping[str, Any]) -> Purpose:
    """Return the purpose of a run, by its config or its identity."""
    return "pretraining" if "objective" in tree else "fine-tuning"


def content(
    workdir: str,
    config: Mapping[str, Any],
    identity: Mapping[str, Any],
    command: str,
    extend: bool = False,
    bound: bool = True,
) -> dict[str, Any]:
    """Return the content of ``run.json`` for a command that starts or resumes a run.

    Args:
      identity: the settings that identify the run (``Settings.identity``). A restart may change the rest of
        ``config``, but none of these.
      extend: whether a restart may change the numbers of steps (the schedule then follows the new length).
      bound: whether the run has saved a step. If not, the run starts from scratch, and recorded values do not matter.

    Raises:
      UserError: the workdir belongs to another run; the message names each difference.
    """
    run = read_run(workdir)
    if run.get("imported_from"):
        raise UserError(
            f"{workdir} holds a model imported from {run['imported_from']}; train from it with --init={workdir} and"
            " another --workdir"
        )
    if not bound:
        _check_start(workdir, run, identity)
        run = {}
    elif not run.get("identity"):
        raise UserError(
            f"{workdir} has checkpoints, but no run.json that says whose they are; put it back (every checkpoint has a "
            "copy, as 'run' in checkpoints/STEP/facts/metadata), or give another --workdir"
        )
    if run:
        begun = run.get("identity", {})
        held, wanted = purpose_of(begun), purpose_of(identity)
        if held != wanted:
            start = f"; start from its model with --init={workdir}" if held == "pretraining" else ""
            raise UserError(f"{workdir} holds a run of {held}, this is one of {wanted}. Give another --workdir{start}")
        again = {name: begun[name] for name in _STARTS if name in begun and identity.get(name) is None}
        identity = {**identity, **again}  # to resume, these flags need not be given again
        changed = differences(begun, json.loads(json.dumps(identity)))
        blocking = [d for d in changed if not (extend and _is_length(d))]
        if blocking:
            longer = wanted == "pretraining" and all(map(_is_length, blocking))
            hint = "; --extend allows another number of steps" if longer else ""
            hint += what_changed(blocking, workdir)
            raise UserError(
                f"{workdir} holds another run: {'; '.join(blocking)}. Give the old values, or another --workdir{hint}"
            )
        run["extended"] = [*run.get("extended", []), *changed]
    else:
        run = {"run_id": uuid.uuid4().hex[:12], "name": Path(workdir).name, "started": time.time(), "restarts": []}
    run |= {
        file_formats.KEY: file_formats.WORKDIR.number,
        "workdir": os.fspath(workdir),
        "command": command,
        "config": config,
        "identity": identity,
        "versions": versions(),
        "git_commit": git_commit(),
    }
    return run


def _check_start(workdir: str, run: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if a run without a saved step was begun with one of ``_STARTS``, and is now without it."""
    begun = run.get("identity", {})
    for name in _STARTS:
        if begun.get(name) is None or identity.get(name) is not None or purpose_of(begun) != purpose_of(identity):
            continue
        raise UserError(
            f"{workdir} holds a run that was begun with --{name}={begun[name]} and has saved no step yet; give "
            f"--{name} again, or another --workdir to begin without"
        )


# Facts that are recorded but may change; the digest of the vocabulary covers strip_accents.
_FREE_FACTS = ("run.model.remat", "run.strip_accents")


def settle(workdir: str, run: dict[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Record the facts about a run that are known once vocabulary and corpus exist, and return the content of
    ``run.json``.

    Raises:
      UserError: a fact (such as the vocabulary, corpus or model) is not the same as recorded before a restart.
    """
    facts = json.loads(json.dumps(facts))
    changed = [
        difference
        for difference in differences(run.get("facts", facts), facts, "run")
        if difference.partition(":")[0] not in _FREE_FACTS
    ]
    if changed:
        raise UserError(
            f"{workdir} was begun with other inputs: {'; '.join(changed)}. Put them back, or use another --workdir"
        )
    run = {**run, "facts": facts}
    write_run(workdir, run)
    return run


def record_start(workdir: str, resumed: int | None, devices: Mapping[str, Any]) -> dict[str, Any]:
    """Record in ``run.json`` that training starts on ``devices``; return the file's new content.

    ``resumed``: the step of the checkpoint from which it resumes; None if it starts from scratch. If ``--extend`` has
    changed the numbers of steps since the last start, the entry in ``restarts`` says so with ``extended``.
    """
    run = read_run(workdir)
    if resumed is None:
        return record(workdir, devices=devices)
    restart = {"step": resumed, "time": time.time(), "command": run.get("command"), "versions": versions()}
    restart |= {"extended": run["extended"]} if run.get("extended") else {}
    return record(workdir, devices=devices, restarts=[*run.get("restarts", []), restart], extended=[])


def record(workdir: str, **entries: Any) -> dict[str, Any]:
    """Set ``entries`` in ``run.json``; return the file's new content."""
    run = {**read_run(workdir), **entries}
    write_run(workdir, run)
    return run


def write_run(workdir: str, run: Mapping[str, Any]) -> None:
    number = {file_formats.KEY: file_formats.WORKDIR.number}
    files.write_text(files.as_path(workdir) / "run.json", json.dumps({**number, **run}, indent=1))


def _is_length(difference: str) -> bool:
    name = difference.split(":")[0]
    return name.startswith("config.phases.") and name.endswith((".num_steps", ".num_tokens", ".num_epochs"))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can influence the numerical results of a run."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _PACKAGES}}


def git_commit() -> str | None:
    """Return the git commit of the checkout that this package runs from; None if it is not in a checkout."""
    with contextlib.suppress(OSError):
        here = Path(__file__).resolve().parents[2]
        if (here / ".git").exists():
            done = subprocess.run(
                ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
            )
            return done.stdout.strip() or None
    return None


LOCK = ".lock"
_NOT_OURS = {  # file name -> the name of a folder with such a file
    "manifest.json": "a corpus",
    "setup.cfg": "a source tree",
    "pyproject.toml": "a source tree",
    ".git": "a source tree",
}


def check_workdir(workdir: Path) -> None:
    """Raise ``UserError`` if a path cannot be a workdir, because it holds something else, such as a corpus."""
    path = Path(os.path.realpath(workdir))
    if (path / "run.json").exists():
        return
    what = next((what for name, what in _NOT_OURS.items() if (path / name).exists()), None)
    if path in (Path("/"), Path.home()):
        what = "not a place for one run"
    if path.exists() and not path.is_dir():
        what = "a file"
    if path.is_symlink():
        what = "a link that leads nowhere"
    if what:
        raise UserError(f"--workdir={workdir} is {what}; give a new folder, or the folder of a run, such as runs/first")


@contextlib.contextmanager
def only_writer(workdir: str) -> Iterator[None]:
    """Context manager: inside the block, this process is the only one that may write into the workdir.

    The process holds a lock, which the kernel releases however the process ends; on an object store, it holds a lease
    instead. If the block raises ``UserError`` or ``OSError`` before it has made anything of value in a new workdir, the
    workdir is removed.

    Raises:
      UserError: another process trains in the workdir, or the path cannot be a workdir.
    """
    if not distributed.is_first():
        yield
    elif files.is_remote(workdir):
        with Lease(workdir, say, lambda reason: distributed.leave_at_once(reason, BAD_INPUT)):
            yield
    else:
        path = Path(files.as_target(workdir))
        check_workdir(path)
        new = [folder for folder in (path, *path.parents) if not folder.exists()]
        ours = bool(new) or not any(path.iterdir())
        with _lock(path):
            files.sweep(path)  # removes unfinished files of a killed run
            try:
                yield
            except (UserError, OSError):  # both are shown to the user as one line, not as a bug
                if ours:
                    _remove_unused(path, new)
                raise


def _lock(workdir: Path) -> IO[str]:
    """Return the lock file of ``workdir``, which is created if missing. The lock is held until the file is closed."""
    for _ in range(100):
        workdir.mkdir(parents=True, exist_ok=True)
        try:
            lock = reading.lock_file(workdir / LOCK)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        except (reading.NotPlainError, IsADirectoryError) as error:
            raise UserError(
                f"{workdir / LOCK} is not a plain file; remove it and run the same command again"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "?"
            lock.close()
            raise UserError(
                f"{workdir} is in use by process {holder}; wait for it, or choose another --workdir"
            ) from error
        if files.is_there(lock, workdir / LOCK):
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            return lock
        lock.close()
    raise UserError(f"{workdir} is made and removed by other runs; choose another --workdir")


KEPT = ("corpus", "checkpoints")  # a folder with one of these, or with a log that is not empty, holds work


def _remove_unused(workdir: Path, new: Sequence[Path]) -> None:
    """Empty ``workdir`` and remove the folders ``new``, unless the workdir or a folder below it holds work.

    Folders below count because a grid has its runs there. An unfinished build (``.partial``) also counts as work: the
    next run continues it.
    """
    for place, folders, found in os.walk(workdir):
        if any(name in KEPT or name.endswith(".partial") for name in folders):
            return
        if "metrics.jsonl" in found and os.path.getsize(os.path.join(place, "metrics.jsonl")):
            return
    for entry in workdir.iterdir():
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
    with contextlib.suppress(OSError):  # someone has put something else there
        for folder in new:
            folder.rmdir()
