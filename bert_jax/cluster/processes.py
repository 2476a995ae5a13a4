"""Finds the place of this process in its job, by flags or environment: number, count, address of process 0."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError

_VARIABLES = {
    "coordinator": "BERT_JAX_COORDINATOR",
    "num_processes": "BERT_JAX_NUM_PROCESSES",
    "process_id": "BERT_JAX_PROCESS_ID",
}


@dataclasses.dataclass(frozen=True)
class Processes:
    """The settings by which a process takes part in a job of several processes.

    Attributes:
      coordinator: HOST:PORT of process 0, used by JAX.
      local_device_ids: the devices of this process, if its host runs several processes. If None, all devices of the
        host.
      heartbeat_seconds: a process is lost if it is silent, or makes no progress, for longer than this.
      arrival_seconds: the time within which all processes must arrive.
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

    @property
    def is_first(self) -> bool:
        return self.process_id == 0


def find_processes(given: Mapping[str, Any]) -> Processes | None:
    """Return the job's processes as described by the flags or else by the environment.

    Return None if neither describes them, because then there is only one process.

    Args:
      given: fields of ``Processes`` by name; None where a flag was not given. If ``distributed`` is "auto", the
        processes are found by asking the cluster: SLURM, Cloud TPU, GKE or Open MPI, detected by JAX.

    Raises:
      UserError: some but not all of coordinator, number and id are given, or no cluster is found.
    """
    values = {name: given.get(name) or os.environ.get(variable) for name, variable in _VARIABLES.items()}
    if given.get("process_id") is not None:
        values["process_id"] = given["process_id"]
    limits: dict[str, Any] = {
        name: given[name] for name in ("heartbeat_seconds", "arrival_seconds") if given.get(name) is not None
    }
    if given.get("distributed") == "auto":
        if typed := [f"--{name}" for name in _VARIABLES if given.get(name) is not None]:
            raise UserError(f"--distributed=auto asks the cluster for what {', '.join(typed)} says; leave one out")
        return _of_cluster(limits)
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(_VARIABLES) and limits:
        flags = " and ".join(f"--{name}" for name in limits)
        raise UserError(f"{flags}: there is one process, which waits for no other; leave it out, or name the processes")
    if len(missing) == len(_VARIABLES):
        return None
    if missing:
        raise UserError(
            f"of the job's processes {', '.join(missing)} is not known; give "
            + ", ".join(f"--{name} (or {_VARIABLES[name]})" for name in missing)
        )
    for name in ("num_processes", "process_id"):
        if not re.fullmatch("[0-9]{1,9}", str(values[name])):
            raise UserError(f"{_VARIABLES[name]} is {values[name]!r}; a whole number is needed")
    number, own = int(str(values["num_processes"])), int(str(values["process_id"]))
    return Processes(str(values["coordinator"]), number, own, **limits)


def _of_cluster(limits: Mapping[str, Any]) -> Processes:
    from jax._src.clusters import ClusterEnv  # jax.distributed.initialize itself uses this class

    facts = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, 300)
    coordinator, num_processes, process_id, local = facts
    if coordinator is None or num_processes is None or process_id is None:
        raise UserError(
            "--distributed=auto: no cluster is found (SLURM, Cloud TPU, GKE, Open MPI); give --coordinator, "
            "--num_processes and --process_id"
        )
    if numbers := os.environ.get("JAX_LOCAL_DEVICE_IDS"):  # JAX itself reads this variable
        local = [int(number) for number in numbers.split(",")]
    return Processes(coordinator, num_processes, process_id, None if local is None else tuple(local), **limits)


def split_address(address: str) -> tuple[str, int]:
    """Return (HOST, PORT) of the address ``HOST:PORT``. Raises ``UserError`` for an address of another form."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(UnicodeError):
        host.encode("idna")  # the resolver does this too
        if host and re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65_535:
            return host.strip("[]"), int(port)
    raise UserError(f"the coordinator is {address!r}; HOST:PORT is needed, such as 10.0.0.2:8476")


def own_address(host: str) -> tuple[socket.AddressFamily, str] | None:
    """Return the address named by ``host``, if it is an address of this machine that the other hosts of a job may know.

    A loopback address counts only if ``host`` itself is a loopback address or "localhost": /etc/hosts may map this
    machine's name to 127.0.1.1, while the other hosts know it by another address.
    """
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, _, _, _, address in answers:
        name = str(address[0])
        if (_is_loopback(host) or not _is_loopback(name)) and _can_bind(family, address):
            return family, name
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _can_bind(family: socket.AddressFamily, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind(address)
    except OSError:
        return False
    return True
