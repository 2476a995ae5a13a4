"""Makes several processes one job: finds them, connects them, watches them, and ends them together.

If a process dies, freezes or stalls, all other processes end within seconds and name it (see ``heartbeat_client``). A
SIGTERM to any process makes all processes save the same step and end with exit code ``PREEMPTED``. Whatever launched
the processes must then start all of them again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from bert_jax.cluster import signals
from bert_jax.cluster.exit_codes import CRASHED, INTERRUPTED, of_several
from bert_jax.cluster.heartbeat_client import END, HeartbeatClient
from bert_jax.cluster.messages import Activity
from bert_jax.cluster.rendezvous import Rendezvous, own_addresses, split_address
from bert_jax.cluster.watchdog import Watchdog
from bert_jax.errors import UserError

VARIABLES = {
    "coordinator": "BERT_JAX_COORDINATOR",
    "num_processes": "BERT_JAX_NUM_PROCESSES",
    "process_id": "BERT_JAX_PROCESS_ID",
}
AUTO = "auto"
LOST_SECONDS = 2.0  # time after which the loss of a process is known to the others


@dataclasses.dataclass(frozen=True)
class Processes:
    """The settings by which a process takes part in a job of several processes.

    Attributes:
      coordinator: HOST:PORT of process 0, used by JAX. The heartbeat uses the port number before it.
      local_device_ids: the devices of this process, if its host runs several processes. If None, all devices of the
        host.
      heartbeat_seconds: a process is lost if it is silent, or makes no progress, for longer than this.
      arrival_seconds: the time within which all processes must connect.
    """

    coordinator: str
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None = None
    heartbeat_seconds: float = 30.0
    arrival_seconds: float = 300.0

    def __post_init__(self) -> None:
        split_address(self.coordinator)
        if self.num_processes < 1 or not 0 <= self.process_id < self.num_processes:
            raise UserError(
                f"process {self.process_id} of {self.num_processes}; --process_id goes from 0 to --num_processes less 1"
            )


def find(
    given: Mapping[str, Any], mode: str | None = None, environment: Mapping[str, str] = os.environ
) -> Processes | None:
    """Return the job's processes as described by the flags or else by the environment.

    Return None if neither describes them, because then there is only one process.

    Args:
      given: fields of ``Processes`` by name; None where a flag was not given.
      mode: if "auto", the processes are found by asking the cluster: SLURM, Cloud TPU, GKE or Open MPI, detected by
        JAX.

    Raises:
      UserError: some but not all of coordinator, number and id are given, or no cluster is found.
    """
    found = {name: given.get(name) or environment.get(variable) for name, variable in VARIABLES.items()}
    if given.get("process_id") is not None:
        found["process_id"] = given["process_id"]
    limits: dict[str, Any] = {
        name: given[name] for name in ("heartbeat_seconds", "arrival_seconds") if given.get(name) is not None
    }
    if mode == AUTO:
        return _of_cluster(limits)
    missing = [name for name, value in found.items() if value is None]
    if len(missing) == len(VARIABLES):
        return None
    if missing:
        raise UserError(
            f"of the job's processes {', '.join(missing)} is not known; give "
            + ", ".join(f"--{name} (or {VARIABLES[name]})" for name in missing)
        )
    for name in ("num_processes", "process_id"):
        if not str(found[name]).isdecimal():
            raise UserError(f"{VARIABLES[name]} is {found[name]!r}; a whole number is needed")
    number, own = int(str(found["num_processes"])), int(str(found["process_id"]))
    return Processes(str(found["coordinator"]), number, own, **limits)


def _of_cluster(limits: Mapping[str, Any]) -> Processes:
    from jax._src.clusters import ClusterEnv  # jax.distributed.initialize itself uses this class

    found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, 300)
    coordinator, num_processes, process_id, local = found
    if coordinator is None or num_processes is None or process_id is None:
        raise UserError(
            "--distributed=auto: no cluster is found (SLURM, Cloud TPU, GKE, Open MPI); give --coordinator, "
            "--num_processes and --process_id"
        )
    if listed := os.environ.get("JAX_LOCAL_DEVICE_IDS"):  # JAX itself reads this variable
        local = [int(number) for number in listed.split(",")]
    return Processes(coordinator, num_processes, process_id, None if local is None else tuple(local), **limits)


def join(processes: Processes, workdir: str, same: Mapping[str, str]) -> None:
    """Meet all processes of the job and set JAX up; call this before anything else uses JAX.

    Args:
      workdir: a folder that all processes can read; process 0 puts a key in it by which the processes recognise each
        other.
      same: values that must be equal on all processes, by name. If any differ, every process ends with the reason.

    Raises:
      PeerLostError: process 0 cannot be reached, or one side cannot prove that it belongs to the job.
      UserError: JAX does not see all processes.
    """
    host, port = split_address(processes.coordinator)
    first = processes.process_id == 0
    if first and not own_addresses(host):
        print(
            f"{host} names no address of this machine that others reach: ports {port - 1} and {port} are open on all of"
            " its addresses; keep them private",
            file=sys.stderr,
        )
    own = f"process {processes.process_id} of {processes.num_processes} on {socket.gethostname()}"
    print(f"{own}: waiting up to {processes.arrival_seconds:.0f} s for all processes", file=sys.stderr, flush=True)
    client = HeartbeatClient(
        Rendezvous(
            f"{host}:{port - 1}",
            processes.num_processes,
            processes.process_id,
            workdir,
            processes.arrival_seconds,
            processes.heartbeat_seconds,
        )
    )
    client.wait_for_all()
    if first:
        print(f"all {processes.num_processes} processes have arrived", file=sys.stderr, flush=True)
    for name, value in same.items():
        client.wait(f"the {name}", value)
    HeartbeatClient.open = client
    signals.last_words.append(lambda: client.fail("interrupted", INTERRUPTED))
    _end_on_errors()
    jax.distributed.initialize(
        processes.coordinator,
        processes.num_processes,
        processes.process_id,
        local_device_ids=processes.local_device_ids,
        initialization_timeout=int(processes.arrival_seconds),
        coordinator_bind_address=processes.coordinator if first and own_addresses(host) else None,
    )
    if jax.process_count() != processes.num_processes:
        raise UserError(
            f"JAX sees {jax.process_count()} processes, {processes.num_processes} arrived; give each its own devices"
        )


def common(config: str) -> dict[str, str]:
    """Return the values that must be equal on all processes of a job, by name.

    They are versions, a hash of the code, and ``config`` (JSON).
    """
    return {
        "Python": platform.python_version(),
        "jax": jax.__version__,
        "code": code_hash(),
        "config": config,
    }


def code_hash() -> str:
    """Return a hash of the source files of this package as it is installed here."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def several() -> bool:
    """Return whether the job has other processes besides this one."""
    return HeartbeatClient.open is not None and HeartbeatClient.open.num_processes > 1


def is_first() -> bool:
    """Return whether this is process 0, which alone writes files that only one process may write."""
    return HeartbeatClient.open is None or HeartbeatClient.open.process_id == 0


def at(step: int, state: Activity) -> None:
    """Report progress: this process is at ``step`` and is now doing ``state``, such as "saving"."""
    if HeartbeatClient.open is not None:
        HeartbeatClient.open.at(step, state)
    elif Watchdog.open is not None:
        Watchdog.open.at(state)


def wait(name: str, holds: str = "") -> None:
    """Wait until all processes have called this, each with the same ``holds``; if the values differ, the job ends.

    ``name`` identifies the call: a job may use a name only once.
    """
    if HeartbeatClient.open is not None:
        HeartbeatClient.open.wait(name, holds)


def exchange(name: str, holds: str) -> list[str]:
    """Return the ``holds`` of every process, ordered by process number.

    ``name`` identifies the call: a job may use a name only once.
    """
    return [holds] if HeartbeatClient.open is None else HeartbeatClient.open.exchange(name, holds)


def first_says(name: str, value: Any) -> Any:
    """Return process 0's ``value`` (a JSON value) on every process; use this where file systems may look different.

    ``name`` identifies the call: a job may use a name only once.
    """
    return json.loads(exchange(name, json.dumps(value))[0])


def agreed(value: int) -> int:
    """Return, on every process, the ``value`` of process 0."""
    return int(multihost_utils.broadcast_one_to_all(jax.numpy.asarray(value))) if jax.process_count() > 1 else value


def all_agree(value: bool) -> bool:
    """Return whether ``value`` is True on every process."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.process_allgather(jax.numpy.asarray(value)).all())


def leave() -> None:
    """End this process's part in the job: wait for all other processes to finish, then close the connection."""
    client = HeartbeatClient.open
    if client is None:
        return
    client.wait(END)
    client.leave()
    HeartbeatClient.open = None
    jax.distributed.shutdown()


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
    if HeartbeatClient.open is None:
        return
    hear_of_lost()
    if known is None:
        sys.__excepthook__(type(error), error, error.__traceback__)
        leave_by_error(f"{type(error).__name__}: {error}".splitlines()[0], CRASHED)
    else:
        print(known[0], file=sys.stderr)
        leave_by_error(known[0].removeprefix("error: "), of_several(error, known[1]))


def hear_of_lost() -> None:
    """Wait long enough to learn whether a lost process caused an error in this process; call this before reporting it.

    If another process is lost, collectives fail here too. The heartbeat server then names the lost process and ends
    this process.
    """
    if several():
        time.sleep(LOST_SECONDS)


def leave_by_error(message: str, code: int) -> None:
    """Tell the other processes why, then end this process with exit code ``code``; return if there are no others."""
    client = HeartbeatClient.open
    if client is None:
        return
    client.fail(message, code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
