"""A server that speaks as much of Hugging Face's hub as fetching a model takes, and fails as it is told to."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

GOLDEN = Path(__file__).parents[1] / "golden"
MODEL = (GOLDEN / "qwen3_moe-gqa-f32" / "model.gguf").read_bytes()
DIRECTORY = {
    path.name: path.read_bytes()
    for path in sorted((GOLDEN / "qwen3_moe-gqa-f32").iterdir())
    if path.suffix in (".json", ".safetensors")
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """Files by name. commit: of the main branch. status, error: what every request is refused with."""

    files: dict[str, bytes]
    commit: str = COMMIT
    status: int = 200
    error: str = ""
    token: str | None = None  # that is asked for


@dataclass
class Hub:
    """cut: bytes after which the connection of a GET of this file ends, one entry for each time. listed: sizes told in
    the list in place of the true ones. sent: other bytes than the checksum is of. statuses: for the next requests."""

    repos: dict[str, Repo]
    url: str = ""
    cut: dict[str, list[int]] = field(default_factory=dict)
    listed: dict[str, int] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    cdn: bool = False
    header_cut: dict[str, list[int]] = field(default_factory=dict)  # of requests for a file's beginning, as cut
    header_statuses: dict[str, list[int]] = field(default_factory=dict)
    gets: list[tuple[str, str]] = field(default_factory=list)  # file, range
    headers: list[tuple[str, str]] = field(default_factory=list)
    bytes_sent: Counter[str] = field(default_factory=Counter)
    authorizations: list[str | None] = field(default_factory=list)
    cdn_authorizations: list[str | None] = field(default_factory=list)


def is_large(name: str) -> bool:
    return name.endswith((".gguf", ".safetensors"))


def etag_of(name: str, data: bytes) -> str:
    if is_large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization")
        (self.hub.cdn_authorizations if path.startswith("/cdn/") else self.hub.authorizations).append(token)
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path)
        file = re.fullmatch(r"(/cdn)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = listing[1] if listing else file[2] if file else ""
        repo = self.hub.repos.get(name)
        if repo is None:
            return self._refuse(401 if not self.headers.get("Authorization") else 404, "RepoNotFound")
        if file and file[1]:
            return self._file(repo, file[4], cdn=True)
        wanted = f"Bearer {repo.token}"
        if repo.status != 200 or (repo.token is not None and self.headers.get("Authorization") != wanted):
            return self._refuse(repo.status if repo.status != 200 else 401, repo.error)
        if listing:
            return self._list(name, repo)
        assert file is not None
        return self._file(repo, file[4], cdn=False)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _list(self, name: str, repo: Repo) -> None:
        siblings = []
        for file, data in repo.files.items():
            size = self.hub.listed.get(file, len(data))
            one: dict[str, Any] = {"rfilename": file, "size": size, "blobId": "0" * 40}
            if is_large(file):
                one["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 130}
            siblings.append(one)
        body = json.dumps({"id": name, "sha": repo.commit, "siblings": siblings, "tags": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _file(self, repo: Repo, name: str, *, cdn: bool) -> None:
        hub, data = self.hub, repo.files.get(name)
        if data is None:
            return self._refuse(404, "EntryNotFound")
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        whole = not (asked and asked[2])
        statuses = (hub.statuses if whole else hub.header_statuses).get(name)
        if self.command == "GET" and statuses:
            return self._refuse(statuses.pop(0), "")
        size = hub.listed.get(name, len(data))
        data = hub.sent.get(name, data)
        etag = hub.etags.get(name) or etag_of(name, repo.files[name])
        if hub.cdn and not cdn and is_large(name):
            self.send_response(302)
            other = hub.url.replace("127.0.0.1", "localhost")  # another host, as far as a client knows
            self.send_header("Location", f"{other}/cdn{self.path}")
            self.send_header("X-Linked-Etag", f'"{etag}"')
            self.send_header("X-Linked-Size", str(size))
            self.send_header("X-Repo-Commit", repo.commit)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        start = end = 0
        if asked and hub.ranges:
            start, end = int(asked[1]), min(len(data), int(asked[2] or len(data)) + 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            data = data[start:end]
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Linked-Size", str(size))
        self.send_header("X-Repo-Commit", repo.commit)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "GET":
            return None
        (hub.gets if whole else hub.headers).append((name, self.headers.get("Range", "")))
        cuts = (hub.cut if whole else hub.header_cut).get(name)
        limit = cuts.pop(0) if cuts else len(data)
        self.wfile.write(data[:limit])
        if whole:
            hub.bytes_sent[name] += min(limit, len(data))
        if limit < len(data):
            self.wfile.flush()
            self.close_connection = True
        return None


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at a port of its own; `url` is set."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
