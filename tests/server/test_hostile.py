"""Clients that mean no good, or whose network fails: none of them holds up the others."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from .conftest import Server, serving

TIMEOUT_S = 2
ENDLESS = {"prompt": "In the beginning", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A server that waits two seconds for its clients."""
    with serving("--client-timeout", str(TIMEOUT_S), "--body-limit", "64K") as running:
        yield running


def connect(server: Server) -> socket.socket:
    url = httpx.URL(server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect((url.host, url.port))
    return connection


def said(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def post(body: bytes, *more: str, length: int | None = None) -> bytes:
    head = (
        "POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}", *more, "", "",
    )  # fmt: skip
    return "\r\n".join(head).encode() + body


def works(server: Server) -> bool:
    answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "ignore_eos": True})
    return answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("start", [b"", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: "])
def test_a_request_that_never_comes_is_not_waited_for(strict: Server, start: bytes) -> None:
    connections = [connect(strict) for _ in range(100)]
    began = time.monotonic()
    for connection in connections:
        connection.sendall(start)
    assert works(strict)
    assert {said(connection) for connection in connections} == {b""}
    assert time.monotonic() - began >= TIMEOUT_S - 0.5


def test_a_trickle_does_not_buy_time(strict: Server) -> None:
    with connect(strict) as connection:
        closed = False
        for _ in range(50 * TIMEOUT_S):
            try:
                connection.sendall(b"G")
            except OSError:
                closed = True
                break
            time.sleep(0.2)
        assert closed


def test_a_body_that_does_not_come_is_an_error(strict: Server) -> None:
    with connect(strict) as connection:
        connection.sendall(post(b'{"prompt": ', length=100))
        answer = said(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    with connect(strict) as connection:  # refused at once; the rest of it is not waited for much longer
        connection.sendall(post(b"{", length=1 << 20))
        answer = connection.recv(100)
        connection.sendall(b" ")
        answer += said(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_who_does_not_read_loses_the_connection(strict: Server) -> None:
    body = json.dumps({**ENDLESS, "stream": True, "n": 8, "logprobs": 20, "temperature": 1}).encode()
    with connect(strict) as connection:
        connection.sendall(post(body))
        strict.wait(lambda: strict.get("/health").json()["engine"]["pending"] == 8)
        strict.wait(strict.idle)
        assert b"[DONE]" not in said(connection)


def test_heads_that_are_too_large(strict: Server) -> None:
    with connect(strict) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        answer = b""
        for _ in range(40):
            try:
                connection.sendall(b"X-Much: " + b"a" * 2000 + b"\r\n")
            except OSError:
                break
        answer = said(connection)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""  # a reset may overtake it
    assert strict.get("/health").status_code == 200


@pytest.mark.parametrize(("sent", "status"), [
    (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # TLS
    (b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),  # no host
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
    (b"GET /page/..%2f..%2fapp.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
    (b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\nConnection: close\r\n\r\n", 403),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\nConnection: close\r\n\r\n", 403),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (post(b'{"prompt": "\xff\xfe"}', "Connection: close"), 400),
    (post(b'{"prompt": "\\ud800"}', "Connection: close"), 200),  # half a pair: U+FFFD
    (post(b"\xef\xbb\xbf{}", "Connection: close"), 400),
    (post(b"[" * 60_000, "Connection: close"), 400),
    (post(b'{"prompt": "a", "max_tokens": 1e999}', "Connection: close"), 400),
    (post(b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "Connection: close"), 400),
    (post(b'{"prompt": "a", "max_tokens": 1}', "Connection: close", "Expect: 100-continue"), 200),
])  # fmt: skip
def test_what_is_no_request(strict: Server, sent: bytes, status: int) -> None:
    with connect(strict) as connection:
        connection.sendall(sent)
        answer = said(connection).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    if status >= 400:
        assert json.loads(body)["error"]["message"]
    assert works(strict)


def test_two_requests_at_once_on_one_connection(strict: Server) -> None:
    body = b'{"prompt": "a", "max_tokens": 2, "ignore_eos": true}'
    with connect(strict) as connection:
        connection.sendall(post(body) + post(body, "Connection: close"))
        assert said(connection).count(b"HTTP/1.1 200 ") == 2


def test_the_engine_is_killed_under_load() -> None:
    """Every request gets an answer: its text, or an error that says what happened."""
    outcomes: Counter[str] = Counter()
    with serving("--sequences", "4", "--queue", "8") as server:
        enough = threading.Event()

        def ask(number: int) -> None:
            stream = number % 2 == 0
            with server.client() as client:
                while not enough.is_set():
                    answer = client.post("/v1/completions", json={**ENDLESS, "max_tokens": 200, "stream": stream})
                    if answer.status_code == 200:
                        whole = not stream or answer.text.endswith("data: [DONE]\n\n")
                        assert whole or '"code":"engine_lost"' in answer.text
                        outcomes["whole" if whole else "lost"] += 1
                    else:
                        assert answer.status_code in (429, 503)
                        outcomes[answer.json()["error"]["code"]] += 1
                        assert int(answer.headers["retry-after"]) >= 1
                        time.sleep(0.05)

        clients = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for client in clients:
            client.start()
        for _ in range(2):
            before = outcomes["whole"]
            server.wait(lambda: outcomes["whole"] > before + 4, 60)  # noqa: B023
            os.kill(server.engine_pid(), signal.SIGKILL)
            server.wait(lambda: server.get("/health").status_code == 200, 60)
        enough.set()
        for client in clients:
            client.join(60)
            assert not client.is_alive()
        server.wait(server.idle)
        assert server.get("/health").json()["engine"]["restarts"] == 2
    assert {"whole", "engine_unavailable"} <= set(outcomes)
    assert outcomes["lost"] + outcomes["engine_lost"] > 0
