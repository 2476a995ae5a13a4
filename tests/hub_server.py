"""A small Hugging Face Hub in a thread: the requests of huggingface_hub that read, upload and commit a model."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import re
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

WRITER, READER, STRANGER = "hf_" + "w" * 30, "hf_" + "r" * 30, "hf_" + "s" * 30
ROLES = {WRITER: "write", READER: "read"}  # of the tokens that the account "me" has
LARGE = (".safetensors",)  # files that are uploaded before the commit


def _sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclasses.dataclass
class Repository:
    """Commits (sha -> path -> content) and branches (name -> sha)."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
    branches: dict[str, str] = dataclasses.field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        about = (len(self.commits), sorted((name, _sha1(data)) for name, data in files.items()))
        sha = hashlib.sha1(repr(about).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = dict(files), sha
        return sha

    def on(self, branch: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches[branch]]


class Hub:
    """The state of the server.

    Attributes:
      uploads: the content of large files by sha256, committed or not.
      requests: "METHOD path" of each request, in order.
      cut_after: the number of bytes of a body after which a connection breaks; None: it does not break.
      refuse: (METHOD, pattern of the path) -> the status with which the request is refused.
      during: called while a large file is being uploaded, before the upload counts.
      before: called before a commit is made.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.uploads: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.cut_after: int | None = None
        self.refuse: dict[tuple[str, str], int] = {}
        self.during: Callable[[str], None] = lambda what: None
        self.before: Callable[[str], None] = lambda what: None
        self.url = ""

    def add(self, name: str, files: dict[str, bytes] | Path, branch: str = "main", **options: Any) -> str:
        """Commit ``files``, or all files in a folder, and return the commit."""
        repository = self.repositories.setdefault(name, Repository(**options))
        if isinstance(files, Path):
            below = [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in below}
        return repository.commit(branch, files)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_POST = do_PUT = do_GET

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[no-any-return]

    def _handle(self) -> None:
        path = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        self.role = ROLES.get(self.headers.get("authorization", "").removeprefix("Bearer "))
        try:
            body = self._body()
            for (method, pattern), status in self.hub.refuse.items():
                if method == self.command and re.search(pattern, path):
                    return self._answer({"error": "refused"}, status)
            for pattern, answer in ROUTES:
                if found := re.fullmatch(pattern, f"{self.command} {path}".replace("HEAD ", "GET ")):
                    return answer(self, *map(unquote, found.groups()), body=body)
            self._answer({"error": "no such page"}, 404)
        except ConnectionError:
            self.close_connection = True

    def _body(self) -> bytes:
        """Return the body of the request. Breaks the connection after ``cut_after`` bytes of a large file."""
        left, parts = int(self.headers.get("content-length", 0)), list[bytes]()
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        cut = self.hub.cut_after if self.command == "PUT" else None
        data = b"".join(parts) + self.rfile.read(left if cut is None else min(cut, left))
        if cut is not None:
            self._break()
        return data

    def _break(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionError

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            cut = self.hub.cut_after if "Etag" in headers and status != 404 else None
            self.wfile.write(data[:cut])
            if cut is not None and cut < len(data):
                self.wfile.flush()
                self._break()

    def _repository(self, name: str, reads_files: bool = False) -> Repository | None:
        """Return a repository; answer and return None if it is missing or may not be read."""
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not self.role):
            self._answer({"error": "Repository not found"}, 404 if self.role else 401, X_Error_Code="RepoNotFound")
            return None
        if found.gated and reads_files and not self.role:
            self._answer({"error": "gated"}, 403, X_Error_Code="GatedRepo")
            return None
        return found

    def _commit(self, repository: Repository, revision: str) -> str | None:
        sha = repository.branches.get(revision, revision)
        if sha not in repository.commits:
            self._answer({"error": "Invalid rev id"}, 404, X_Error_Code="RevisionNotFound")
            return None
        return sha

    def _may_write(self) -> bool:
        if self.role != "write":
            self._answer({"error": "forbidden"}, 403 if self.role else 401)
        return self.role == "write"

    def whoami(self, body: bytes) -> None:
        if not self.role:
            return self._answer({"error": "Invalid username or password."}, 401)
        self._answer({"name": "me", "type": "user", "auth": {"accessToken": {"role": self.role}}})
        return None

    def info(self, name: str, revision: str | None = None, *, body: bytes) -> None:
        if (found := self._repository(name)) and (sha := self._commit(found, revision or "main")):
            siblings = [{"rfilename": path} for path in sorted(found.commits[sha])]
            facts = {"id": name, "sha": sha, "private": found.private, "gated": found.gated and "manual"}
            self._answer({**facts, "tags": [], "downloads": 0, "siblings": siblings})

    def tree(self, name: str, revision: str, body: bytes) -> None:
        if (found := self._repository(name)) and (sha := self._commit(found, revision)):
            entries = []
            for path, data in sorted(found.commits[sha].items()):
                entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": _sha1(data)}
                if path.endswith(LARGE):
                    entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                entries.append(entry)
            self._answer(entries)

    def resolve(self, name: str, revision: str, path: str, body: bytes) -> None:
        if not (found := self._repository(name, True)) or not (sha := self._commit(found, revision)):
            return None
        if (data := found.commits[sha].get(path)) is None:
            return self._answer({"error": "no entry"}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
        tag = hashlib.sha256(data).hexdigest() if path.endswith(LARGE) else _sha1(data)
        first = re.match(r"bytes=(\d+)-", self.headers.get("range", ""))
        start, size = int(first[1]) if first else 0, len(data)
        ranged = {"Content_Range": f"bytes {start}-{size - 1}/{size}"} if first else {}
        self._answer(data[start:], 206 if first else 200, X_Repo_Commit=sha, Etag=f'"{tag}"', **ranged)
        return None

    def create(self, body: bytes) -> None:
        said = json.loads(body)
        name = f"{said['organization']}/{said['name']}"
        if not self._may_write():
            return None
        if said["organization"] != "me":
            return self._answer({"error": "forbidden"}, 403)
        if name in self.hub.repositories:
            return self._answer({"error": "You already created this model repo"}, 409)
        self.hub.add(name, {".gitattributes": b"*.safetensors lfs\n"}, private=said.get("visibility") == "private")
        self._answer({"url": f"{self.hub.url}/{name}"})
        return None

    def branch(self, name: str, branch: str, body: bytes) -> None:
        if self._may_write() and (found := self._repository(name)):
            if branch in found.branches:
                return self._answer({"error": "exists"}, 409)
            found.branches[branch] = json.loads(body)["startingPoint"]
            self._answer({})
        return None

    def validate(self, body: bytes) -> None:
        import yaml

        front = json.loads(body)["content"].split("---\n")[1]
        good = isinstance(yaml.safe_load(front), dict)
        self._answer({"errors": [] if good else [{"message": "no YAML"}]}, 200 if good else 400)

    def preupload(self, name: str, revision: str, body: bytes) -> None:
        if self._may_write() and (found := self._repository(name)) and (sha := self._commit(found, revision)):
            files = []
            for one in json.loads(body)["files"]:
                mode = "lfs" if one["path"].endswith(LARGE) else "regular"
                held = found.commits[sha].get(one["path"])
                oid = held is not None and (hashlib.sha256(held).hexdigest() if mode == "lfs" else _sha1(held))
                files.append({"path": one["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid or None})
            self._answer({"files": files})

    def batch(self, name: str, body: bytes) -> None:
        if self._may_write() and self._repository(name):
            objects = []
            for one in json.loads(body)["objects"]:
                upload = {"upload": {"href": f"{self.hub.url}/upload/{one['oid']}"}}
                objects.append({**one, **({} if one["oid"] in self.hub.uploads else {"actions": upload})})
            self._answer({"transfer": "basic", "objects": objects})

    def upload(self, oid: str, body: bytes) -> None:
        self.hub.during(oid)
        if hashlib.sha256(body).hexdigest() != oid:
            return self._answer({"error": "other content"}, 400)
        self.hub.uploads[oid] = body
        self._answer(b"")
        return None

    def commit(self, name: str, branch: str, body: bytes) -> None:
        if not self._may_write() or not (found := self._repository(name)):
            return None
        self.hub.before(name)
        files, head = dict(found.on(branch)), found.branches[branch]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header" and value.get("parentCommit", head) != head:
                return self._answer({"error": "the branch has moved"}, 412)
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = found.commit(branch, files)
        self._answer({"commitUrl": f"{self.hub.url}/{name}/commit/{sha}", "commitOid": sha})
        return None


_NAME = "([^/]+/[^/]+)"
ROUTES: list[tuple[str, Callable[..., None]]] = [
    ("GET /api/whoami-v2", _Handler.whoami),
    ("POST /api/repos/create", _Handler.create),
    ("POST /api/validate-yaml", _Handler.validate),
    (f"GET /api/models/{_NAME}", _Handler.info),
    (f"GET /api/models/{_NAME}/revision/([^/]+)", _Handler.info),
    (f"GET /api/models/{_NAME}/tree/([^/]+)", _Handler.tree),
    (f"POST /api/models/{_NAME}/branch/([^/]+)", _Handler.branch),
    (f"POST /api/models/{_NAME}/preupload/([^/]+)", _Handler.preupload),
    (f"POST /api/models/{_NAME}/commit/([^/]+)", _Handler.commit),
    (rf"POST /{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT /upload/([0-9a-f]+)", _Handler.upload),
    (f"GET /{_NAME}/resolve/([^/]+)/(.+)", _Handler.resolve),
]


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    """Yield a new, empty Hub that answers at its ``url``."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub, server.daemon_threads = Hub(), True
    server.hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()


def use(hub: Hub, cache: Path, patch: pytest.MonkeyPatch, token: str | None = WRITER) -> None:
    """Let huggingface_hub in this process ask ``hub``, with an empty cache, and wait for nothing."""
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    from bert_jax.storage import hub as reading

    reading._local.cache_clear()
    for name, value in {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        "HF_TOKEN_PATH": str(cache / "no_token"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
    }.items():
        patch.setattr(constants, name, value)
    at_once = types.SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    for module in (_http, file_download):
        patch.setattr(module, "time", at_once)
    patch.setenv("HF_TOKEN", token) if token else patch.delenv("HF_TOKEN", raising=False)


def environment(hub: Hub, cache: Path, token: str | None = WRITER) -> dict[str, str]:
    """Return the variables with which a process of its own asks ``hub``."""
    switches = dict.fromkeys(("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY"), "1")
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_TOKEN": token or "", **switches}
