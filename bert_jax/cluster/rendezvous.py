"""The address at which the processes of a job meet, and the sockets on which process 0 listens there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import ipaddress
import socket
import time

from bert_jax.errors import UserError

BACKLOG = 1024  # the most connections that wait to be accepted; all processes connect at once
RETRY_SECONDS = 0.5  # wait between two tries to listen at a port


@dataclasses.dataclass(frozen=True)
class Rendezvous:
    """The settings by which the processes of a job meet.

    Attributes:
      address: HOST:PORT of process 0.
      workdir: a folder that all processes can read and a stranger cannot. It holds the key (see ``job_key``) until all
        processes have arrived.
      arrival_seconds: the time within which all processes must arrive.
      heartbeat_seconds: a process is lost if it is silent, or makes no progress, for longer than this.
    """

    address: str
    num_processes: int
    process_id: int
    workdir: str
    arrival_seconds: float = 300.0
    heartbeat_seconds: float = 30.0


def split_address(address: str) -> tuple[str, int]:
    """Return (HOST, PORT) of the address ``HOST:PORT``. Raises ``UserError`` for an address of another form."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(UnicodeError):
        host.encode("idna")  # the resolver does this too
        if host and port.isdecimal() and 1 < int(port) <= 65_535:
            return host.strip("[]"), int(port)
    raise UserError(f"the coordinator is {address!r}; HOST:PORT is needed, such as 10.0.0.2:8476")


@functools.cache
def own_addresses(host: str) -> tuple[tuple[socket.AddressFamily, tuple], ...]:
    """Return the addresses of this machine that the name ``host`` stands for, as (family, address with port 0).

    Loopback addresses count only if ``host`` itself is a loopback address or "localhost": /etc/hosts may map this
    machine's name to 127.0.1.1, while the other hosts know it by another address. If the result is empty, listen on all
    addresses.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    named = {(family, address): None for family, _, _, _, address in found}  # a set that keeps the order
    return tuple(
        (family, address)
        for family, address in named
        if (_is_loopback(host) or not _is_loopback(str(address[0]))) and _is_own(family, address)
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_own(family: socket.AddressFamily, address: tuple) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind(address)
    except OSError:
        return False
    return True


def listen(address: str, seconds: float) -> list[socket.socket]:
    """Return sockets that listen at ``address``: on those addresses of this machine that it names, or on all if none.

    Args:
      seconds: how long to try; process 0 of an earlier start of the job may still hold the port.

    Raises:
      OSError: the port is not available.
    """
    host, port = split_address(address)
    deadline = time.monotonic() + seconds
    while True:
        try:
            return _bound(own_addresses(host), port)
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


def _bound(own: tuple[tuple[socket.AddressFamily, tuple], ...], port: int) -> list[socket.socket]:
    if not own:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return [socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both)]
    bound: list[socket.socket] = []
    try:
        for family, (name, _, *rest) in own:
            bound.append(socket.create_server((name, port, *rest), family=family, backlog=BACKLOG))
    except OSError:
        for server in bound:
            server.close()
        raise
    return bound
