"""The messages between the processes of a job. Each is one line with a JSON object, and has a class below.

A line is accepted only if it has exactly the keys of one class, with values of the types that the class declares.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

PROOF_BYTES = 4096  # longest line before the sender has proved who it is
LINE_BYTES = 2**22  # longest line after the proof, which may hold a whole config
LARGEST = 2**53  # no step, process id or number of seconds is larger
Activity = Literal[  # what a process says that it is doing
    "starting", "restoring", "compiling", "first step", "reading", "training", "evaluating", "probing",
    "profiling", "saving", "exporting", "reporting", "finishing",
]  # fmt: skip


class BadMessage(ValueError):
    """A line is not a message of this program; the error's text says what the line is instead."""


@dataclasses.dataclass(frozen=True)
class Challenge:
    """Process 0 asks a connecting process to prove that it has the key with the name ``key``."""

    nonce: str
    key: str


@dataclasses.dataclass(frozen=True)
class Full:
    """Process 0 tells a connecting process that all processes have already arrived."""


@dataclasses.dataclass(frozen=True)
class Join:
    """A process answers process 0's challenge with ``proof``, and challenges process 0 with ``nonce``."""

    process_id: int
    num_processes: int
    host: str
    pid: int
    nonce: str
    proof: str


@dataclasses.dataclass(frozen=True)
class Welcome:
    proof: str


@dataclasses.dataclass(frozen=True)
class AllHere:
    """Process 0 says that all processes have arrived."""


@dataclasses.dataclass(frozen=True)
class Awake:
    """Process 0 says, at regular intervals, that it is alive."""


@dataclasses.dataclass(frozen=True)
class Beat:
    """A process says what it is doing now.

    Attributes:
      age: seconds since the process last made progress.
      limit: seconds that may pass from one progress of the process to the next.
    """

    step: int
    moves: int
    state: str
    age: float
    limit: float


@dataclasses.dataclass(frozen=True)
class Failed:
    error: str
    code: int


@dataclasses.dataclass(frozen=True)
class Waits:
    """A process says that it has come to a point of the program.

    ``alike``: whether ``holds`` must be equal on all processes.
    """

    name: str
    holds: str
    alike: bool


@dataclasses.dataclass(frozen=True)
class Passed:
    """Process 0 says that all processes have come to the point ``name``.

    ``holds`` has the value of each process, ordered by process number; it is empty if they had to be equal.
    """

    name: str
    holds: list[str]


@dataclasses.dataclass(frozen=True)
class Bye:
    """A process says that it has finished its work."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """Process 0 says that the job cannot go on, why, and with which exit code to end."""

    reason: str
    code: int


Message = Challenge | Full | Join | Welcome | AllHere | Awake | Beat | Failed | Waits | Passed | Bye | Stop
KINDS = MappingProxyType({kind.__name__: kind for kind in Message.__args__})  # type: ignore[attr-defined]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= LARGEST  # neither NaN nor infinite


SOUND: Mapping[str, tuple[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "bool": ("true or false", lambda value: type(value) is bool),
        "int": ("a whole number from 0 on", lambda value: type(value) is int and _is_number(value)),
        "float": ("a number from 0 on", _is_number),
        "str": ("a text", lambda value: type(value) is str),
        "list[str]": ("texts", lambda value: type(value) is list and all(type(entry) is str for entry in value)),
    }
)


def as_line(message: Message) -> bytes:
    return json.dumps({"kind": type(message).__name__, **dataclasses.asdict(message)}).encode() + b"\n"


def parse(line: bytes) -> Message:
    """Return the message in a line. Raises ``BadMessage``, whose text quotes nothing of the line."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise BadMessage("a line that is not JSON") from None
    if not isinstance(values, dict) or not isinstance(name := values.pop("kind", None), str) or name not in KINDS:
        raise BadMessage("a message of no known kind")
    kind = KINDS[name]
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if values.keys() != fields.keys():
        raise BadMessage(f"a message {name} whose keys are not those of this version ({', '.join(fields) or 'none'})")
    for key, type_name in fields.items():
        needed, is_sound = SOUND[type_name]
        if not is_sound(values[key]):
            raise BadMessage(f"a message {name} whose {key} is not {needed}")
    return kind(**values)


async def read_line(reader: asyncio.StreamReader, most: int) -> bytes:
    """Return the next line, or b"" at the end of the stream.

    Raises ``BadMessage`` if it is longer than ``most`` bytes.
    """
    line = bytearray()
    while True:
        try:
            line += await reader.readuntil()
        except asyncio.LimitOverrunError as overrun:
            line += await reader.readexactly(overrun.consumed)
            if len(line) <= most:
                continue
        except asyncio.IncompleteReadError:
            return b""
        if len(line) > most:
            raise BadMessage(f"a line of more than {most:,} bytes")
        return bytes(line)
