"""``faulty://``: a store in memory whose requests meet with faults, as the clients of real stores tell of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

URL = "faulty://bucket"
REQUESTS = ("info", "ls", "glob", "cat_file", "pipe_file", "put_file", "get_file", "rm_file", "rm", "mv")
PASSING = ("503", "429", "silent", "reset", "lost", "half")


class HttpError(Exception):
    """As that of gcsfs, no ``OSError``."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Service Unavailable, {code}\nof a second line")
        self.code = code


class FaultyStore(MemoryFileSystem):
    """``fault`` is asked of every request: (kind, path) -> what befalls it; None: nothing."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fault: ClassVar[Callable[[str, str], str | None]]
    requests: ClassVar[int] = 0
    inside = threading.local()  # a request that is a part of another is none of its own

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("faulty://", "memory://")))

    @classmethod
    def heal(cls) -> None:
        """No request meets with a fault from now on."""
        cls.fault = lambda kind, path: None


def _request(kind: str) -> Callable[..., Any]:
    whole = getattr(MemoryFileSystem, kind)

    def request(self: FaultyStore, *arguments: Any, **options: Any) -> Any:
        if getattr(self.inside, "busy", False):
            return whole(self, *arguments, **options)
        self.inside.busy = True
        try:
            FaultyStore.requests += 1
            fault = FaultyStore.fault(kind, str(arguments[0]))
            return befall(fault, lambda: whole(self, *arguments, **options), kind, arguments, options)
        finally:
            self.inside.busy = False

    return request


def befall(
    fault: str | None, whole: Callable[[], Any], kind: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Make the request ``whole``, or what is left of it."""
    match fault:
        case "503" | "429":
            raise HttpError(int(fault))
        case "silent":
            raise TimeoutError
        case "lost":  # it is the answer that is lost
            whole()
            raise ConnectionResetError(104, "Connection reset by peer")
        case "half" if kind == "get_file":
            whole()
            Path(arguments[1]).write_bytes(Path(arguments[1]).read_bytes()[:-1])
            raise ConnectionError("Response payload is not completed")
        case "half" if kind == "cat_file" and "start" in options:
            return whole()[:-1]
        case "reset" | "half":  # half an upload is none
            raise ConnectionResetError(104, "Connection reset by peer")
        case "slow":
            time.sleep(0.02)
        case "403":
            raise PermissionError("Forbidden: no access to the bucket")
        case "404":
            raise FileNotFoundError("the bucket does not exist")
    return whole()


for _kind in REQUESTS:
    setattr(FaultyStore, _kind, _request(_kind))
FaultyStore.heal()
fsspec.register_implementation("faulty", FaultyStore, clobber=True)
