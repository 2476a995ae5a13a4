"""A store that speaks as much of the JSON API of Google Cloud Storage as gcsfs asks of it, with faults on demand."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[[str, str], str | None]  # (method, path of a request) -> what befalls it; None: nothing
Answer = tuple[int, bytes, dict[str, str]]  # status, content, headers


class FakeGcs(ThreadingHTTPServer):
    """Objects by bucket and name. ``fault`` is asked of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[tuple[str, str], bytes] = {}
        self.uploads: dict[str, tuple[tuple[str, str], bytearray]] = {}  # those of several requests
        self.requests = 0
        self.heal()
        self.slow_seconds = 0.05
        self.closing = threading.Event()

    def heal(self) -> None:
        """No request meets with a fault from now on."""
        self.fault: Fault = lambda method, path: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that has gone is no news here."""


@contextlib.contextmanager
def serving() -> Iterator[FakeGcs]:
    store = FakeGcs()
    thread = threading.Thread(target=store.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.closing.set()
        store.shutdown()
        store.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeGcs

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _serve(self) -> None:
        fault = self.server.fault(self.command, self.path)
        self.server.requests += 1
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "half" and length:  # half of an upload comes through
            self.rfile.read(length // 2)
            self._reset()
            return
        body = self.rfile.read(length)
        if fault == "silent":
            self.server.closing.wait()
        if fault in ("silent", "reset"):
            self._reset()
            return
        if fault == "slow":
            time.sleep(self.server.slow_seconds)
        refused = fault is not None and fault.isdigit()
        code, content, headers = _error(int(fault or 0)) if refused else self._answer(body)
        if fault == "lost":
            self._reset()
            return
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        cut = fault == "half" and len(content) > 1
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._reset()

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _reset(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _answer(self, body: bytes) -> Answer:
        path, _, rest = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(rest))
        parts = [urllib.parse.unquote(part) for part in path.removeprefix("/download").strip("/").split("/")]
        match parts:
            case ["upload", "storage", "v1", "b", bucket, "o"]:
                return self._upload(bucket, query, body)
            case ["storage", "v1", "b", bucket, "o", name, "rewriteTo", "b", other, "o", target]:
                if (bucket, name) not in self.server.objects:
                    return _error(404)
                self.server.objects[other, target] = self.server.objects[bucket, name]
                return _json({"done": True, "resource": self._facts((other, target))})
            case ["storage", "v1", "b", bucket, "o", name]:
                return self._object((bucket, name), query)
            case ["storage", "v1", "b", bucket, "o"]:
                return self._list(bucket, query)
            case ["storage", "v1", "b", bucket]:
                return _json({"name": bucket})
        return _error(400)

    def _facts(self, key: tuple[str, str]) -> dict[str, Any]:
        size = str(len(self.server.objects[key]))
        return {"bucket": key[0], "name": key[1], "size": size, "generation": "1", "updated": "2026-01-01T00:00:00Z"}

    def _object(self, key: tuple[str, str], query: dict[str, str]) -> Answer:
        data = self.server.objects.get(key)
        if data is None:
            return _error(404)
        if self.command == "DELETE":
            self.server.objects.pop(key, None)
            return 204, b"", {}
        if query.get("alt") != "media":
            return _json(self._facts(key))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not wanted:
            return 200, data, {}
        start, stop = int(wanted[1]), int(wanted[2] or len(data) - 1) + 1
        return 206, data[start:stop], {"Content-Range": f"bytes {start}-{min(stop, len(data)) - 1}/{len(data)}"}

    def _list(self, bucket: str, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], set[str]()
        for held, name in sorted(self.server.objects):
            first, found, _ = name.removeprefix(prefix).partition(delimiter or "\0")
            if held == bucket and name.startswith(prefix):
                if found:
                    prefixes.add(f"{prefix}{first}{delimiter}")
                else:
                    items.append(self._facts((held, name)))
        return _json({"items": items, "prefixes": sorted(prefixes)})

    def _upload(self, bucket: str, query: dict[str, str], body: bytes) -> Answer:
        """Take an object from one request, or from several: the first gives its name, the others bring its parts."""
        if number := query.get("upload_id"):
            key, held = self.server.uploads[number]
            start, last, whole = map(int, re.findall(r"\d+", self.headers["Content-Range"]))
            held[start:] = body
            return self._put(key, bytes(held), query) if last + 1 == whole else (308, b"", {"Range": f"bytes=0-{last}"})
        if query.get("uploadType") == "resumable":
            number = str(len(self.server.uploads))
            self.server.uploads[number] = (bucket, query["name"]), bytearray()
            where = f"{self.server.url}/upload/storage/v1/b/{bucket}/o?upload_id={number}"
            return 200, b"", {"Location": where}
        _, facts, data = body.removesuffix(b"\n--==0==--").split(b"--==0==", 2)
        name = json.loads(facts.split(b"\n\n", 1)[1])["name"]
        return self._put((bucket, name), data.split(b"\n\n", 1)[1], query)

    def _put(self, key: tuple[str, str], data: bytes, query: dict[str, str]) -> Answer:
        if query.get("ifGenerationMatch") == "0" and key in self.server.objects:
            return _error(412)
        self.server.objects[key] = data
        return _json(self._facts(key))


def _json(content: Any, code: int = 200) -> Answer:
    return code, json.dumps(content).encode(), {"Content-Type": "application/json"}


def _error(code: int) -> Answer:
    return _json({"error": {"code": code, "message": "of a test"}}, code)
