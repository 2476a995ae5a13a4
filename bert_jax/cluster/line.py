"""A connection between process 0 and another process of a job. Each line is a JSON object, in both directions."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

from bert_jax.cluster.processes import own_address, split_address
from bert_jax.errors import UserError
from bert_jax.storage import reading

PORT_SECONDS = 10.0  # how long to wait for the port, which process 0 of an earlier start may still hold
_LOOK_SECONDS = 0.2
_LONGEST = 1 << 20  # bytes of a line; a stranger may send more


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket):
        self._connection, self._reader = connection, connection.makefile("rb")

    def send(self, **content: Any) -> None:
        """Send an object; do nothing if the connection has ended."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(content).encode() + b"\n")

    def read(self, seconds: float | None = None) -> dict[str, Any] | None:
        """Return the next object; None if the connection has ended, or something else was sent.

        Raises ``TimeoutError`` if nothing comes for ``seconds``; then nothing can be read any more.
        """
        try:
            self._connection.settimeout(seconds)
            return reading.parse_object(self._reader.readline(_LONGEST))
        except TimeoutError:
            raise
        except (OSError, ValueError):  # ValueError: another thread of this process has closed the reader
            return None

    def close(self) -> None:
        """End the connection, for the other end and for a thread that reads here."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.close()
        self._connection.close()


def listen_at(coordinator: str) -> socket.socket:
    """Return a socket that listens where JAX will: at the address of the coordinator, or at all addresses.

    JAX itself would share the port with another program that listens there. An earlier process 0 gets
    ``PORT_SECONDS`` to leave the port.
    """
    host, port = split_address(coordinator)
    own, both = own_address(host), socket.has_dualstack_ipv6()
    family, address = own or (socket.AF_INET6 if both else socket.AF_INET, "")
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        try:
            return socket.create_server((address, port), family=family, dualstack_ipv6=both and own is None)
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"cannot listen at {coordinator} ({os.strerror(error.errno or 0)}); wait until what listens there "
                    "has ended, such as process 0 of another job, or give --coordinator another port"
                ) from None
        time.sleep(_LOOK_SECONDS)
