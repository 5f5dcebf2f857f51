"""A line for each request, as people and as programs read them; the engine's end and return."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Server, serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    path = tmp_path_factory.mktemp("log") / "stderr"
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)  # the server inherits it
        try:
            manager = serving("--log-format", "json")
            server = manager.__enter__()
        finally:
            os.dup2(before, 2)
            os.close(before)
    yield server, path
    manager.__exit__(None, None, None)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def line_of(logged: tuple[Server, Path], request: str) -> dict[str, Any]:
    server, path = logged
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = [line for line in lines(path) if line.get("request_id") == request]
        return bool(found)

    server.wait(there)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_a_line(logged: tuple[Server, Path], stream: bool) -> None:
    server, _ = logged
    with server.client() as client:
        body = {**CHAT, "stream": stream, "n": 2}
        answer = client.post("/v1/chat/completions", json=body, headers={"x-request-id": f"a-{stream}"})
    assert answer.headers["x-request-id"] == f"a-{stream}"
    line = line_of(logged, f"a-{stream}")
    assert (line["level"], line["method"], line["status"]) == ("info", "POST", 200)
    assert line["path"] == "/v1/chat/completions"
    assert line["tokens"] == 10
    assert line["prompt_tokens"] > 2
    assert 0 <= line["queue_s"] <= line["first_token_s"] <= line["duration_s"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert line["client"] == "127.0.0.1"


def test_a_refused_request_has_a_line_and_an_id_of_ours(logged: tuple[Server, Path]) -> None:
    server, path = logged
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json={"messages": 5}, headers={"x-request-id": "two words"})
    given = answer.headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", given)
    line = line_of(logged, given)
    assert (line["level"], line["status"], line["tokens"], line["first_token_s"]) == ("warning", 400, 0, None)
    assert "two words" not in path.read_text()


def test_who_only_looks_has_none(logged: tuple[Server, Path]) -> None:
    server, path = logged
    for place in ("/health", "/metrics", "/", "/page/style.css"):
        server.get(place)
    last = server.get("/v1/models").headers["x-request-id"]
    line_of(logged, last)
    assert not [line for line in lines(path) if line.get("path") in ("/health", "/metrics", "/")]


def test_an_engine_that_dies_and_comes_back(logged: tuple[Server, Path]) -> None:
    server, path = logged
    os.kill(server.engine_pid(), signal.SIGKILL)
    server.wait(lambda: "ready again" in path.read_text())
    messages = [line.get("message", "") for line in lines(path)]
    died = next(place for place, message in enumerate(messages) if "the engine ended with status -9" in message)
    back = next(place for place, message in enumerate(messages) if "the engine is ready again" in message)
    assert died < back


def test_plain_lines() -> None:
    script = (
        "import logging; from colibri.server.access_log import Access, set_up\n"
        "set_up('plain', {})\n"
        "access = Access('x-1', None, 'GET', '/v1/models'); access.status = 200; access.write()\n"
        "logging.getLogger('colibri.server').error('it ended')\n"
    )
    for wanted in (True, False):
        done = subprocess.run([sys.executable, "-c", script.format(wanted)], capture_output=True, text=True, check=True)
        found = done.stderr.splitlines()
        assert len(found) == 1 + wanted
        if wanted:
            known = "request_id=x-1 method=GET path=/v1/models status=200 tokens=0"
            assert re.match(rf"\S+Z INFO {known} duration_s=\S+$", found[0])
        assert found[-1].endswith("ERROR it ended")
