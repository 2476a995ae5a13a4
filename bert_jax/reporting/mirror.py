"""Mirrors local files to an object store. This is needed because object stores cannot append to a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from typing import Any

from bert_jax.errors import PassingError
from bert_jax.storage import files, reading

PERIOD_SECONDS = 30.0  # between uploads; stores charge for writes and limit their rate


class Mirror:
    """Uploads the files or folders ``names`` below ``local`` to ``remote``, each file as a whole.

    ``warn`` is called with a line about an upload that failed.
    """

    def __init__(self, remote: str | os.PathLike[str], names: tuple[str, ...], warn: Callable[[str], None]):
        self._remote, self._names, self._warn = files.as_path(remote), names, warn
        self.local = files.cache_directory() / "logs" / sha256(os.fspath(remote).encode()).hexdigest()[:16]
        self.local.mkdir(parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._pending: Future[None] | None = None
        self._last = time.monotonic()
        self._uploaded: dict[str, tuple[int, int]] = {}  # name -> (size, modification time) when uploaded

    def pull(self, name: str) -> None:
        """Replace a local file by its remote copy; remove the local file if there is no copy.

        A local file that begins with the whole copy is kept: the process was killed before it had uploaded the rest.
        """
        here, there = self.local / name, self._remote / name
        if not there.exists():
            here.unlink(missing_ok=True)
            return
        data = there.read_bytes()
        if not (here.exists() and reading.read_bytes(here).startswith(data)):
            here.write_bytes(data)

    def push_soon(self) -> None:
        """Start an upload of changed files in the background, at most once per ``PERIOD_SECONDS``."""
        busy = self._pending is not None and not self._pending.done()
        if not busy and time.monotonic() - self._last >= PERIOD_SECONDS:
            self._last = time.monotonic()
            self._pending = self._thread.submit(self._push)

    def push(self) -> None:
        """Upload changed files now, and wait until done. Raises ``PassingError`` if the store does not answer."""
        self._thread.submit(self._push, raises=PassingError).result()

    def close(self) -> None:
        """Wait for a running upload, then upload the files that have changed since."""
        self._thread.shutdown()
        self._push()

    def _push(self, raises: type[Exception] | tuple[()] = ()) -> None:
        try:
            found = {name: (path.stat().st_size, path.stat().st_mtime_ns) for name, path in self._walk(self.local)}
            if found.keys() != self._uploaded.keys():
                for name in {name for name, _ in self._walk(self._remote)} - found.keys():
                    (self._remote / name).unlink()
            for name in sorted(name for name in found if found[name] != self._uploaded.get(name)):
                files.write_bytes(self._remote / name, (self.local / name).read_bytes())
            self._uploaded = found
        except raises:
            raise
        except Exception as error:  # a store's client may raise anything; training goes on
            self._warn(f"cannot upload the logs to {self._remote}: {error}; trying again later")

    def _walk(self, root: Any) -> Iterator[tuple[str, Any]]:
        """Yield (name relative to ``root``, path) of every mirrored file."""
        waiting = [(name, root / name) for name in self._names]
        while waiting:
            name, path = waiting.pop()
            if path.is_dir():
                waiting += [(f"{name}/{entry.name}", entry) for entry in path.iterdir()]
            elif path.exists():
                yield name, path
