"""The address at which the processes of a job meet, and the sockets on which process 0 listens there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import ipaddress
import socket
import time

from bert_jax.errors import UserError

BACKLOG = 1024  # connections that wait to be accepted: all processes connect at once
RETRY_SECONDS = 0.5  # between two tries to listen at a port


@dataclasses.dataclass(frozen=True)
class Rendezvous:
    """The settings by which the processes of a job meet.

    Attributes:
      address: HOST:PORT of process 0.
      workdir: a folder that all of them can read and a stranger cannot; it holds the key (``job_key``) until all are
        there.
      arrival_seconds: time in which all must arrive.
      heartbeat_seconds: a process that is silent, or stands still, for longer is lost.
    """

    address: str
    num_processes: int
    process_id: int
    workdir: str
    arrival_seconds: float = 300.0
    heartbeat_seconds: float = 30.0


def split_address(address: str) -> tuple[str, int]:
    """Return the parts of ``HOST:PORT``. Raises ``UserError`` for another form."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(UnicodeError):
        host.encode("idna")  # the resolver does this too
        if host and port.isdecimal() and 1 < int(port) <= 65_535:
            return host.strip("[]"), int(port)
    raise UserError(f"the coordinator is {address!r}; HOST:PORT is needed, such as 10.0.0.2:8476")


@functools.cache
def own_addresses(host: str) -> tuple[tuple[socket.AddressFamily, tuple], ...]:
    """Return the addresses of this machine that ``host`` names, as (family, address with port 0).

    Loopback addresses count only if ``host`` is literally one: /etc/hosts may have a name of this machine as 127.0.1.1,
    while the other hosts know it by another address. An empty result means: listen on all addresses.
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
    """Return sockets that listen at ``address``: on the addresses of this machine that it names, else on all.

    Args:
      seconds: how long to try; process 0 of the job before a restart may still have the port.

    Raises:
      OSError: the port cannot be had.
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
