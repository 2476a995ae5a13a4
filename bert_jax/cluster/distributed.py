"""Lets the rest of the program join a job of several processes, agree, wait, exchange values and leave.

This file starts a job and passes calls on to its ``Job``. If a process dies, freezes or stalls, all other processes end
within seconds and name it (see ``job``). A SIGTERM to any process makes all processes save the same step and end with
exit code ``PREEMPTED``. Whatever launched the processes must then start all of them again.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
import resource
import socket
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

import jax

from bert_jax.cluster import signals
from bert_jax.cluster.exit_codes import BAD_INPUT, CRASHED, INTERRUPTED, of_several
from bert_jax.cluster.job import Job
from bert_jax.cluster.processes import Processes, own_address, split_address
from bert_jax.cluster.store import Exchange, Store
from bert_jax.cluster.watchdog import Activity, Watchdog
from bert_jax.errors import UserError
from bert_jax.program import say
from bert_jax.storage import files

_CONNECT_SECONDS = 60  # the longest time from the arrival of all to the connection of all to JAX
_MOST_FILES = 1 << 16  # the limit on open files that process 0 sets for itself, if the system allows it
_SHARED_SECONDS = 10.0  # how long a mount may take to show a new file
_LOST_SECONDS = 2.0  # time after which an error of another process is known to this one
_OF_XLA = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")


def join(processes: Processes, config: str | None) -> None:
    """Wait for all processes of the job and set JAX up; call this before anything else uses JAX.

    Args:
      config: a recipe as JSON. If it, a version or the code is not the same on all processes, every process ends with
        one line that says what differs, and exit code ``BAD_INPUT``. If None, nothing is compared.

    Raises:
      PeerLostError: a process does not come, or process 0 cannot be reached.
      UserError: the processes do not fit together, or JAX does not see all of them.
    """
    host, port = split_address(processes.coordinator)
    if processes.is_first and own_address(host) is None:
        say(
            f"{host} names no address of this machine that others reach: port {port} is open on all of its addresses; "
            "keep it private"
        )
    own = f"process {processes.process_id} of {processes.num_processes} on {socket.gethostname()}"
    say(f"{own}: waiting up to {processes.arrival_seconds:.0f} s for all processes")
    Job.open = job = Job(processes)
    signals.last_words.append(lambda: job.fail("interrupted", INTERRUPTED))
    _end_on_errors()
    if processes.is_first:
        _allow_files()
    job.meet()
    _connect(processes)
    Exchange.open = Exchange(Store(), processes.process_id, job.hosts)
    if config is not None:
        agree("the Python", platform.python_version())
        agree("the jax", jax.__version__)
        agree("the code", code_hash())
        agree("the config", config)
    if processes.is_first:
        say(f"all {processes.num_processes} processes have arrived")
    if jax.process_count() != processes.num_processes:
        raise UserError(
            f"JAX sees {jax.process_count()} processes, {processes.num_processes} arrived; give each its own devices"
        )


def _connect(processes: Processes) -> None:
    own = own_address(split_address(processes.coordinator)[0])
    jax.distributed.initialize(
        processes.coordinator,
        processes.num_processes,
        processes.process_id,
        local_device_ids=processes.local_device_ids,
        initialization_timeout=_CONNECT_SECONDS,
        heartbeat_timeout_seconds=math.ceil(2 * processes.heartbeat_seconds),
        coordinator_bind_address=processes.coordinator if own else None,
    )


def _allow_files() -> None:
    """Raise the limit on open files: each process has connections to process 0, and strangers may hold more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def code_hash() -> str:
    """Return a hash of the source files of this package as it is installed here."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def joined() -> bool:
    """Return whether this process was started as a process of a job, be it the only one."""
    return Job.open is not None


def several() -> bool:
    """Return whether the job has other processes besides this one."""
    return Job.open is not None and Job.open.processes.num_processes > 1


def is_first() -> bool:
    """Return whether this is process 0, which alone writes files that only one process may write."""
    return Job.open is None or Job.open.processes.is_first


def at(step: int, state: Activity) -> None:
    """Report progress: this process is at ``step`` and is now doing ``state``, such as "saving"."""
    if Watchdog.open is not None:
        Watchdog.open.at(step, state)


def agree(name: str, value: str) -> None:
    """Wait until all processes have called this with the same ``value``.

    If the values differ, the job ends with exit code ``BAD_INPUT`` and a line that names the processes that differ.
    """
    if Job.open and Exchange.open and (line := Exchange.open.difference(name, value)):
        Job.open.end_all(line, BAD_INPUT)


def wait(name: str) -> None:
    """Wait until all processes have called this."""
    agree(name, "")


def exchange(name: str, value: str) -> list[str]:
    """Return the ``value`` of every process, ordered by process number."""
    return Exchange.open.all_say(name, value) if Exchange.open else [value]


def check_shared(workdir: str) -> None:
    """Raise ``UserError`` if a process does not see in ``workdir`` what process 0 writes there."""
    if not several():
        return
    path = files.as_path(workdir) / f".seen-by-all-{first_says('the file for all', uuid.uuid4().hex)}"
    if is_first():
        files.write_text(path, "")
    wait("the file for all is there")
    deadline = time.monotonic() + _SHARED_SECONDS
    while not (sees := path.exists()) and time.monotonic() < deadline:
        time.sleep(0.5)
    blind = [str(number) for number, text in enumerate(exchange("sees it", json.dumps(sees))) if text != "true"]
    if is_first():
        path.unlink()
    if blind:
        raise UserError(
            f"processes {', '.join(blind)} do not see what process 0 writes in {workdir}; give all the same --workdir, "
            "on a shared mount or in a bucket"
        )


def first_says(name: str, value: Any) -> Any:
    """Return process 0's ``value`` (a JSON value) on every process.

    Use this where clocks, figures or file systems may look different to the others. Process 0 waits for no other.
    """
    return json.loads(Exchange.open.first_says(name, json.dumps(value))) if Exchange.open else value


def leave() -> None:
    """End this process's part in the job: wait for all other processes to finish, then close the connection."""
    if Job.open is not None:
        wait("the end")
        Job.open.end_alone()  # from now on others may leave
        jax.distributed.shutdown()
        Job.open.leave()
        Job.open = Exchange.open = None


def _end_on_errors() -> None:
    """Make an uncaught error in any thread end the process at once, because exit handlers would wait for the others."""

    def end(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        end_by(error)
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = end
    threading.excepthook = lambda args: end(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)


def end_by(error: BaseException, known: tuple[str, int] | None = None) -> None:
    """Tell the other processes about ``error``, then end this process. If there are no others, do nothing and return.

    Args:
      known: (message, exit code) for an expected error; the message is printed in place of the traceback.
    """
    if Job.open is None:
        return
    if several():
        time.sleep(_patience(error))
    Job.open.end_alone()
    if known is None:
        sys.__excepthook__(type(error), error, error.__traceback__)
        reason, code = f"{type(error).__name__}: {error}".splitlines()[0], CRASHED
    else:
        print(known[0], file=sys.stderr)
        reason, code = known[0].removeprefix("error: "), of_several(error, known[1])
    Job.open.fail(reason, code)
    signals.leave(code)


def _patience(error: BaseException) -> float:
    """Return for how many seconds ``error`` is kept back, because a lost process may have caused it.

    If another process is lost, collectives fail here too. Process 0 then names the lost process and ends this one.
    """
    cause: BaseException | None = error
    while cause is not None and Job.open is not None:
        if _OF_XLA.match(str(cause)):
            return Job.open.processes.heartbeat_seconds + 2 * _LOST_SECONDS
        cause = cause.__cause__ or cause.__context__
    return _LOST_SECONDS


def leave_at_once(reason: str, code: int) -> NoReturn:
    """Print the reason, tell the other processes, if there are any, then end this process with exit code ``code``."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    if Job.open is not None:
        Job.open.fail(reason, code)
    signals.leave(code)
