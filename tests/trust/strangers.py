"""What a stranger may do to a port. Each attack returns the connections that it holds open."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from bert_jax.cluster.processes import split_address

T = TypeVar("T")
Attack = Callable[[str, random.Random], list[socket.socket]]
LINE = b'{"kind": "Join", "process_id": 1}'


def connect(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), timeout=5)


def say(address: str, *lines: bytes) -> list[socket.socket]:
    """Send lines on one connection, as long as it is taken."""
    line = connect(address)
    with contextlib.suppress(OSError):
        for text in lines:
            line.sendall(text + b"\n")
    return [line]


def say_each(address: str, lines: Iterable[bytes]) -> list[socket.socket]:
    """Send lines on a connection each."""
    return each(lines, lambda text: say(address, text))


def each(values: Iterable[T], attack: Callable[[T], list[socket.socket]]) -> list[socket.socket]:
    """All connections of an attack with one value after the other; none if one of them cannot be made."""
    opened: list[socket.socket] = []
    try:
        for value in values:
            opened += attack(value)
    except OSError:
        close(opened)
        raise
    return opened


def silence(address: str, _: random.Random) -> list[socket.socket]:
    return [connect(address)]


def half_closed(address: str, _: random.Random) -> list[socket.socket]:
    line = connect(address)
    with contextlib.suppress(OSError):  # hung up already
        line.shutdown(socket.SHUT_WR)
    return [line]


def half_closed_by_the_other_half(address: str, _: random.Random) -> list[socket.socket]:
    line = connect(address)
    with contextlib.suppress(OSError):
        line.sendall(b"then nothing is read")
        line.shutdown(socket.SHUT_RD)
    return [line]


def reset(address: str, _: random.Random) -> list[socket.socket]:
    for before in (b"", b"{", LINE + b"\n"):
        with connect(address) as line, contextlib.suppress(OSError):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.sendall(before)
    return []


def come_and_go(address: str, _: random.Random) -> list[socket.socket]:
    for _ in range(200):
        connect(address).close()
    return []


def garbage(address: str, rng: random.Random) -> list[socket.socket]:
    return say_each(address, (rng.randbytes(rng.randrange(1, 2000)) for _ in range(10)))


def garbage_without_end(address: str, rng: random.Random) -> list[socket.socket]:
    line = connect(address)
    with contextlib.suppress(OSError):
        line.sendall(rng.randbytes(2**16).replace(b"\n", b" "))
    return [line]


def a_huge_line(address: str, _: random.Random) -> list[socket.socket]:
    return say(address, b'"' + b"x" * 2**24 + b'"')


def many_lines(address: str, _: random.Random) -> list[socket.socket]:
    return say(address, *[b"{}"] * 5000)


def byte_by_byte(address: str, _: random.Random) -> list[socket.socket]:
    line = connect(address)
    with contextlib.suppress(OSError):
        for letter in LINE[:20]:
            line.sendall(bytes([letter]))
            time.sleep(0.02)
    return [line]


def tls(address: str, rng: random.Random) -> list[socket.socket]:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(506)
    return say(address, hello)


def http(address: str, _: random.Random) -> list[socket.socket]:
    return say(address, b"GET / HTTP/1.1\r", b"Host: job\r", b"\r")


def http2(address: str, rng: random.Random) -> list[socket.socket]:
    """The preface of gRPC, and frames that are none."""
    return say(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + rng.randbytes(400))


def many_connections(address: str, _: random.Random) -> list[socket.socket]:
    """More than are kept."""
    return each(range(400), lambda _: [connect(address)])


ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        attack.__name__: attack
        for attack in (
            silence,
            half_closed,
            half_closed_by_the_other_half,
            reset,
            come_and_go,
            garbage,
            garbage_without_end,
            a_huge_line,
            many_lines,
            byte_by_byte,
            tls,
            http,
            http2,
            many_connections,
        )
    }
)


def close(lines: Iterable[socket.socket]) -> None:
    for line in lines:
        line.close()
