"""What a stranger may do to a port, without the key. Each attack returns the connections that it holds open."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from bert_jax.cluster.rendezvous import split_address

T = TypeVar("T")
Attack = Callable[[str, random.Random], list[socket.socket]]
JOIN = {"kind": "Join", "process_id": 1, "num_processes": 2, "host": "h", "pid": 7, "nonce": "n", "proof": "0" * 64}
BEAT = {"kind": "Beat", "step": 3, "moves": 1, "state": "training", "age": 0.1, "limit": 30.0}
FAILED = {"kind": "Failed", "error": "so it is", "code": 2}
WRONG = (0.5, -1, True, None, "0", "x", [], {}, [1], 2**70, 1e300, float("nan"), float("inf"), "\ud800", "\0")
WRONG_LINES = (b"", b"{}", b"[]", b"null", b"1e400", b"{", b'{"kind": 1}', b'{"kind": "Join"}', b"\xff\xfe", b"\0\0")


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


def as_json(*messages: Any) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


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
    for before in (b"", b"{", json.dumps(JOIN).encode() + b"\n"):
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
        for letter in json.dumps(JOIN)[:20]:
            line.sendall(letter.encode())
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


def lines_that_are_no_message(address: str, _: random.Random) -> list[socket.socket]:
    return say_each(address, WRONG_LINES)


def deep_nesting(address: str, _: random.Random) -> list[socket.socket]:
    return say_each(address, [b"[" * 4000, b'{"a":' * 600, b'{"kind": ' + b"[" * 1500 + b"]" * 1500 + b"}"])


def wrong_types(address: str, _: random.Random) -> list[socket.socket]:
    return say_each(address, as_json(*({**JOIN, key: value} for key in JOIN for value in WRONG)))


def keys_that_lack_or_are_too_many(address: str, _: random.Random) -> list[socket.socket]:
    lacking = [{key: JOIN[key] for key in JOIN if key != left_out} for left_out in JOIN]
    return say_each(address, as_json(*lacking, {**JOIN, "more": 1}))


def a_guessed_proof(address: str, rng: random.Random) -> list[socket.socket]:
    """As each of the processes; what follows is not heard."""
    joins = [{**JOIN, "process_id": number, "proof": rng.randbytes(32).hex()} for number in (0, 1, 2)]
    return each(joins, lambda join: say(address, *as_json(join, BEAT, FAILED)))


def the_challenge_as_proof(address: str, _: random.Random) -> list[socket.socket]:
    line = connect(address)
    with contextlib.suppress(OSError, ValueError), line.makefile("rb") as lines:
        for text in json.loads(lines.readline()).values():
            line.sendall(as_json({**JOIN, "nonce": text, "proof": text})[0] + b"\n")
    return [line]


def messages_without_a_proof(address: str, _: random.Random) -> list[socket.socket]:
    """What a process says, and what process 0 says."""
    process = [BEAT, {**BEAT, "step": "x"}, FAILED, {"kind": "Bye"}]
    process.append({"kind": "Waits", "name": "end", "holds": "", "alike": True})
    first = [{"kind": "Stop", "reason": "r", "code": 2}, {"kind": "AllHere"}, {"kind": "Full"}, {"kind": "Awake"}]
    first += [{"kind": "Challenge", "nonce": "n", "key": "k"}, {"kind": "Welcome", "proof": "p"}]
    return say_each(address, as_json(*process, *first))


def what_ended_jobs_before_there_was_a_proof(address: str, _: random.Random) -> list[socket.socket]:
    joins = [{"process_id": n, "num_processes": 2, "host": "h", "pid": 7} for n in (0.5, 1, 0, True, "1")]
    then = {"step": "x", "state": "s"}, {"failed": "so it is", "code": 2}
    return each(joins, lambda join: say(address, *as_json(join, *then)))


def many_connections(address: str, _: random.Random) -> list[socket.socket]:
    """More than are kept."""
    return each(range(400), lambda _: [connect(address)])


NOISE: Mapping[str, Attack] = MappingProxyType(
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
ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        **NOISE,
        **{
            attack.__name__: attack
            for attack in (
                lines_that_are_no_message,
                deep_nesting,
                wrong_types,
                keys_that_lack_or_are_too_many,
                a_guessed_proof,
                the_challenge_as_proof,
                messages_without_a_proof,
                what_ended_jobs_before_there_was_a_proof,
            )
        },
    }
)


def are_hung_up(lines: Iterable[socket.socket], seconds: float = 30.0) -> bool:
    """Whether the other side closes all of these connections."""
    deadline = time.monotonic() + seconds
    try:
        for line in lines:
            with contextlib.suppress(ConnectionError):
                while True:
                    line.settimeout(max(deadline - time.monotonic(), 0.01))
                    if not line.recv(2**16):
                        break
                    if time.monotonic() > deadline:
                        return False
    except TimeoutError:
        return False
    finally:
        close(lines)
    return True


def close(lines: Iterable[socket.socket]) -> None:
    for line in lines:
        line.close()
