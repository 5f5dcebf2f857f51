"""What an operator relies on: bounds, clients that leave, an engine that dies, an orderly end, closed doors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from colibri.engine.model import model_path
from colibri.errors import ArgumentError
from colibri.server.admission import Admission, Outputs
from colibri.server.app import _reports
from colibri.server.heartbeat import Watchdog
from colibri.server.protocol import Alive, Output, Step
from colibri.server.service import Service
from colibri.server.settings import ServerSettings
from colibri.server.tickets import Ticket

from .conftest import Server, serving

ENDLESS = {"prompt": "In the beginning", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
LONG_PROMPT = {"prompt": [5] * 2000, "max_tokens": 10, "ignore_eos": True}


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """Two sequences at once, two more may wait."""
    with serving("--sequences", "2", "--queue", "2", "--chunk", "64") as running:
        yield running


def open_stream(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    request = client.build_request("POST", "/v1/completions", json={**body, "stream": True})
    return client.send(request, stream=True)


def listens(server: Server) -> bool:
    try:
        httpx.get(f"{server.url}/health", timeout=5)
    except httpx.TransportError:
        return False
    return True


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_both_processes_share_the_memory_asked_for() -> None:
    """The engine's part and the most that the web server takes, with its connections, are no more than --ram."""
    with serving("--ram", "320M") as server, ThreadPoolExecutor(48) as clients:
        engine = re.search(r"([\d.]+) MiB for the engine", server.line)
        assert engine is not None
        answers = [clients.submit(server.post, "/v1/completions", {**ENDLESS, "max_tokens": 20}) for _ in range(48)]
        assert all(answer.result().status_code == 200 for answer in answers)
        assert float(engine[1]) + peak_mib(server.process.pid) <= 320
        assert server.metric("colibri_memory_budget_bytes") == pytest.approx(float(engine[1]) * 2**20, rel=1e-3)


def test_what_is_known_of_long_prompts_is_bounded() -> None:
    """One answer in memory, all together, and what was refused."""
    long = [5] * 2000
    with serving() as server:
        pids = server.process.pid, server.engine_pid()
        server.post("/infer", {"prompt": long, "top_k": 1})
        for pid in pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak from now on
        before = [peak_mib(pid) for pid in pids]
        assert len(server.post("/infer", {"prompt": long}).json()["logits"]) == server_vocabulary(server)
        assert len(server.post("/infer", {"prompt": long[:600], "positions": "all"}).json()["positions"]) == 600
        echo = {"prompt": [long] * 6, "echo": True, "logprobs": 20, "max_tokens": 0}
        assert server.post("/v1/completions", echo).status_code == 200
        assert server.post("/v1/completions", {**echo, "prompt": [long] * 8}).status_code == 400
        much = {"prompt": long[:200], "positions": "all", "top_k": 1000}
        assert server.post("/infer", {**much, "prompt": long}).status_code == 400
        assert server.post("/infer", much).status_code == 200  # what is done takes nothing any more
        with ThreadPoolExecutor(1) as clients, server.standing_still():
            first = clients.submit(server.post, "/infer", much)
            server.wait(lambda: server.get("/health").json()["engine"]["pending"] == 1)
            assert server.post("/infer", much).status_code == 429
        assert first.result().status_code == 200
        grown = [peak_mib(pid) - mib for pid, mib in zip(pids, before, strict=True)]
        assert grown[0] < 96
        assert grown[1] < 64


def peak_mib(pid: int) -> int:
    peak = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert peak is not None
    return int(peak[1]) >> 10


def server_vocabulary(server: Server) -> int:
    return int(server.post("/infer", {"prompt": [5], "top_k": 1}).json()["vocab_size"])


# ---- clients that leave --------------------------------------------------------------------------------------------


def test_a_client_that_leaves_while_tokens_come_frees_its_place(server: Server) -> None:
    with server.client() as client:
        response = open_stream(client, ENDLESS)
        next(response.iter_lines())
        response.close()
    server.wait(server.idle, 3)


def test_a_client_may_leave_just_when_a_token_comes() -> None:
    """Whatever the order of the two, the request ends."""

    async def ends(turns: int) -> bool:
        queue: asyncio.Queue[Output] = asyncio.Queue()
        service = Service(ServerSettings())
        admission = Admission(service.supervisor.tickets, service.metrics, service.live, 1)
        outputs = Outputs(admission, [Ticket(1, queue)], queue)

        async def consume() -> None:
            while True:
                await outputs.next(10)

        task = asyncio.create_task(consume())
        for _ in range(5):
            await asyncio.sleep(0)
        queue.put_nowait(Output(1))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,), timeout=5)
        return task.cancelled()

    assert [asyncio.run(ends(turns)) for turns in range(6)] == [True] * 6


def test_a_page_that_is_closed_leaves_nothing_behind() -> None:
    async def left_behind() -> int:
        reports = _reports(Service(ServerSettings()))
        waiting = asyncio.ensure_future(anext(reports))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait((waiting,))
        await reports.aclose()
        await asyncio.sleep(0)
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(left_behind()) == 0


def test_a_client_that_leaves_in_the_prompt_frees_its_place(server: Server) -> None:
    for body in (LONG_PROMPT, {**LONG_PROMPT, "stream": True}):
        before = server.metric("colibri_requests_cancelled_total")
        with socket.create_connection((httpx.URL(server.url).host, httpx.URL(server.url).port)) as connection:
            content = httpx.Request("POST", server.url, json=body).content
            head = ("POST /v1/completions HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
            connection.sendall("\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content)
            time.sleep(0.1)
        server.wait(server.idle, 3)
        assert server.metric("colibri_requests_cancelled_total") >= before


def taking_nothing(server: Server, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A connection whose client has asked for a stream and does not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((httpx.URL(server.url).host, httpx.URL(server.url).port))
    content = httpx.Request("POST", server.url, json={**body, "stream": True}).content
    head = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Connection: close")
    connection.sendall("\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content)
    return connection


def test_what_is_known_of_a_prompt_counts_until_its_client_has_taken_it(server: Server) -> None:
    much = {"prompt": [5] * 200, "positions": "all", "top_k": 1000}
    before = server.metric("colibri_prompt_tokens_total")
    with taking_nothing(server, much, "/infer"):
        server.wait(lambda: server.metric("colibri_prompt_tokens_total") > before and server.idle())
        assert server.post("/infer", much).status_code == 429
    server.wait(lambda: server.post("/infer", much).status_code == 200)


def test_clients_that_take_nothing_stand_still_and_hold_up_nobody(server: Server) -> None:
    body = {**ENDLESS, "logprobs": 5}
    expected = server.post("/v1/completions", body).json()["choices"][0]["text"]
    before, counted = server.metric("colibri_generated_tokens_total"), [0.0]

    def stands_still() -> bool:
        time.sleep(0.5)
        counted.append(server.metric("colibri_generated_tokens_total"))
        return counted[-1] == counted[-2] > before

    connections = [taking_nothing(server, body) for _ in range(20)]
    server.wait(stands_still)
    assert counted[-1] - before < 20 * ENDLESS["max_tokens"] // 2
    assert server.get("/health").json()["engine"]["pending"] == 20
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 4, "ignore_eos": True}).status_code == 200
    assert server.get("/health").json()["engine"]["pending"] == 20
    with connections.pop().makefile("rb") as taken:  # and one goes on
        lines = [line[6:] for line in taken.read().split(b"\n") if line.startswith(b"data: {")]
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == expected
    for connection in connections:
        connection.close()
    server.wait(server.idle)


def test_a_client_that_leaves_the_queue_does_not_disturb_those_that_run(small: Server) -> None:
    with small.client() as client:
        running = [open_stream(client, {**ENDLESS, "prompt": [token] * 1700, "max_tokens": 300}) for token in (5, 6)]
        lines = [response.iter_lines() for response in running]
        for each in lines:
            next(each)
        waiting = open_stream(client, {**ENDLESS, "prompt": [7] * 1500})  # more than the cache has left
        waiting.close()
        for each in lines:  # to the end of 300 tokens
            assert [line for line in each if "finish_reason" in line and '"length"' in line]
    small.wait(small.idle)


def test_the_queue_is_bounded_and_says_when_to_come_back(small: Server) -> None:
    with small.client() as client:
        with small.standing_still():
            streams = [open_stream(client, ENDLESS) for _ in range(4)]
            assert [response.status_code for response in streams] == [200] * 4
            refused = client.post("/v1/completions", json=ENDLESS)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert client.get("/health").json()["status"] == "ok"
        assert client.post("/v1/completions", json={**ENDLESS, "n": 9}).status_code == 400
        for response in streams:
            response.close()
    small.wait(small.idle)
    assert small.post("/v1/completions", {"prompt": "a"}).status_code == 200


def test_a_long_prompt_delays_others_by_a_chunk(small: Server) -> None:
    """While 2000 tokens are prefilled in chunks of 64, tokens of the other sequence keep coming."""
    with small.client() as client:
        response = open_stream(client, {**ENDLESS, "max_tokens": 400})
        lines = response.iter_lines()
        next(lines)
        done = threading.Event()
        times: list[float] = []

        def long() -> None:
            small.post("/v1/completions", {**LONG_PROMPT, "prompt": [6] * 2000, "max_tokens": 1})
            done.set()

        worker = threading.Thread(target=long)
        worker.start()
        while not done.is_set() and next(lines, None) is not None:
            times.append(time.monotonic())
        worker.join()
        response.close()
    small.wait(small.idle)
    assert len(times) > 2000 / 64 / 2


def test_silence_is_filled_with_comments() -> None:
    """Proxies close connections on which nothing is said: a request that waits for its tokens gets comments."""
    with serving("--keep-alive", "0.2") as server, server.client() as client:
        os.kill(server.engine_pid(), signal.SIGSTOP)
        lines = open_stream(client, {**ENDLESS, "max_tokens": 5}).iter_lines()
        assert ": keep-alive" in [next(lines) for _ in range(4)]
        os.kill(server.engine_pid(), signal.SIGCONT)
        assert [line for line in lines if line][-1] == "data: [DONE]"


# ---- the engine dies -----------------------------------------------------------------------------------------------


def test_an_engine_that_is_killed_comes_back() -> None:
    with serving() as server, server.client() as client:
        expected = server.post("/v1/completions", {**ENDLESS, "max_tokens": 5}).json()["choices"][0]["text"]
        for _ in range(2):
            stream = open_stream(client, ENDLESS)
            lines = stream.iter_lines()
            next(lines)
            whole: list[httpx.Response] = []
            worker = threading.Thread(target=lambda: whole.append(server.post("/v1/completions", ENDLESS)))  # noqa: B023
            with server.standing_still() as engine:
                worker.start()
                server.wait(lambda: server.get("/health").json()["engine"]["pending"] == 2)
                os.kill(engine, signal.SIGKILL)
            assert any("engine_lost" in line for line in lines)
            worker.join()
            assert whole[0].status_code == 503
            assert whole[0].json()["error"]["code"] == "engine_lost"
            assert "retry-after" in whole[0].headers
            server.wait(lambda: server.get("/health").status_code == 200)
            again = server.post("/v1/completions", {**ENDLESS, "max_tokens": 5}).json()["choices"][0]["text"]
            assert again == expected
        health = server.get("/health").json()
        assert health["engine"]["restarts"] == 2
        assert server.metric("colibri_engine_restarts_total") == 2


@pytest.mark.parametrize("how", ["touched", "replaced by a shorter one"])
def test_a_model_file_that_changed_is_loaded_again(tmp_path: Path, how: str) -> None:
    """Experts are read as they are needed, and not from what is no longer the file that was checked."""
    source, file = model_path(None), tmp_path / "model.gguf"
    shutil.copy(source, file)
    many = {"prompt": "It was the best of times, and the king said to the queen:", "max_tokens": 60}
    with serving("-m", str(file)) as server:
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        if how == "touched":
            os.utime(file)
        else:
            os.truncate(file, 1 << 20)
        first = server.post("/v1/completions", many)
        assert first.status_code == 500
        assert "while in use" in first.json()["error"]["message"]
        server.wait(lambda: server.get("/health").json()["engine"]["restarts"] >= 1)
        if how != "touched":
            server.wait(lambda: "truncated" in server.get("/health").json().get("reason", ""))
            assert server.get("/health").status_code == 503
            shutil.copy(source, file)
        server.wait(lambda: server.get("/health").status_code == 200, 60)
        assert server.post("/v1/completions", many).status_code == 200


def test_while_the_engine_is_away_requests_are_refused(removable: Path) -> None:
    """Also when it cannot come back for a while."""
    with serving("-m", str(removable)) as server:
        moved = removable.rename(removable.with_name("elsewhere"))
        os.kill(server.engine_pid(), signal.SIGKILL)
        server.wait(lambda: server.get("/health").status_code == 503)
        for restarts in (1, 2):
            server.wait(lambda: server.get("/health").json()["engine"]["restarts"] >= restarts)  # noqa: B023
            assert server.get("/health").json()["status"] == "restarting"
            answer = server.post("/v1/completions", ENDLESS)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_unavailable"
        assert "model.gguf" in server.get("/health").json()["reason"]
        moved.rename(removable)
        server.wait(lambda: server.get("/health").status_code == 200, 60)


def test_a_server_that_ends_while_its_engine_starts_again_starts_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        killed = server.engine_pid()
        os.kill(killed, signal.SIGKILL)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        server.wait(lambda: children.read_text().split() not in ([], [str(killed)]))
        assert server.stop() == 0
    said = capfd.readouterr().err
    assert said.count("restarting in") == 1
    assert "Traceback" not in said


# ---- the engine hangs ----------------------------------------------------------------------------------------------


def test_an_engine_that_rests_for_a_moment_goes_on() -> None:
    with serving("--hang", "16") as server, server.client() as client:
        lines = open_stream(client, ENDLESS).iter_lines()
        next(lines)
        os.kill(server.engine_pid(), signal.SIGSTOP)
        server.wait(lambda: server.get("/health").json()["status"] == "stalled")
        assert server.get("/health").status_code == 503
        os.kill(server.engine_pid(), signal.SIGCONT)
        server.wait(lambda: server.get("/health").status_code == 200)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.get("/health").json()["engine"]["restarts"] == 0


def test_an_engine_that_hangs_is_replaced(removable: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving("--hang", "5", "-m", str(removable)) as server, server.client() as client:
        expected = server.post("/v1/completions", {**ENDLESS, "max_tokens": 5}).json()["choices"][0]["text"]
        stream = open_stream(client, ENDLESS)
        lines = stream.iter_lines()
        next(lines)
        moved = removable.rename(removable.with_name("elsewhere"))
        hung = server.engine_pid()
        os.kill(hung, signal.SIGSTOP)
        assert any("engine_lost" in line for line in lines)
        assert server.get("/health").json()["status"] == "restarting"
        assert "got nowhere for 5 s" in capfd.readouterr().err
        moved.rename(removable)
        server.wait(lambda: server.get("/health").status_code == 200, 60)
        assert not os.path.exists(f"/proc/{hung}")
        assert server.get("/health").json()["engine"]["restarts"] >= 1
        again = server.post("/v1/completions", {**ENDLESS, "max_tokens": 5}).json()["choices"][0]["text"]
        assert again == expected


def test_what_counts_as_news() -> None:
    """Beats that repeat the last one are none: an engine whose heartbeat goes on while its steps do not hangs, too."""
    watchdog = Watchdog(3)
    watchdog.heard(Alive(7))
    for _ in range(3):
        assert not watchdog.tick()
        watchdog.heard(Alive(7))
    assert watchdog.stalled
    assert watchdog.tick()
    watchdog.heard(Alive(8))
    assert not watchdog.stalled
    assert not watchdog.tick()
    watchdog.heard(Step(()))
    assert watchdog.silent_s == 0


# ---- the end -------------------------------------------------------------------------------------------------------


def test_sigterm_lets_requests_finish_and_takes_no_more() -> None:
    with serving() as server, server.client() as client:
        engine = server.engine_pid()
        stream = open_stream(client, {**ENDLESS, "max_tokens": 400})
        lines = stream.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        server.wait(lambda: not listens(server))
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert server.process.wait(10) == 0
        server.wait(lambda: not os.path.exists(f"/proc/{engine}"), 5)


def test_the_drain_is_bounded() -> None:
    with serving("--drain", "1") as server, server.client() as client:
        stream = open_stream(client, ENDLESS)
        page = client.send(client.build_request("GET", "/live"), stream=True)
        next(stream.iter_lines())
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 10
        page.close()
        stream.close()


def test_an_engine_ends_with_its_web_server() -> None:
    with serving() as server:
        engine = server.engine_pid()
        server.process.kill()
        server.wait(lambda: not os.path.exists(f"/proc/{engine}"), 10)


# ---- closed doors --------------------------------------------------------------------------------------------------


def test_a_key_is_asked_for() -> None:
    with serving(environment={"COLIBRI_API_KEY": "secret"}) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            answer = httpx.get(f"{server.url}/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        server.headers["Authorization"] = "Bearer secret"
        assert server.get("/v1/models").status_code == 200
        for path in ("/", "/health", "/page/page.js"):
            assert httpx.get(f"{server.url}{path}").status_code == 200
        for path in ("/metrics", "/live", "/openapi.json"):
            assert httpx.get(f"{server.url}{path}").status_code == 401


def test_names_that_resolve_here_by_trickery_are_refused(server: Server) -> None:
    for host, status in (("evil.example", 403), ("localhost", 200), ("127.0.0.1:99", 200), ("[::1]", 200), ("", 403)):
        assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == status, host


def test_pages_of_other_origins_are_refused(server: Server) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    assert server.post("/v1/completions", body, headers={"Origin": "https://evil.example"}).status_code == 403
    assert server.post("/v1/completions", body, headers={"Origin": server.url}).status_code == 200
    with server.client() as client:  # what a form of another page could send without being asked
        answer = client.post("/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": "text/plain"})
        assert answer.status_code in (400, 415)


def test_bodies_and_headers_are_bounded() -> None:
    with serving("--body-limit", "64K") as server, server.client() as client:
        assert server.post("/v1/completions", {"prompt": "a" * 70_000}).status_code == 413
        chunked = client.post(
            "/v1/completions", content=(b" " * 10_000 for _ in range(20)), headers={"Content-Type": "application/json"}
        )
        assert chunked.status_code == 413
        assert client.get("/health", headers={"X-Large": "a" * 100_000}).status_code == 431
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_other_machines_need_a_key_or_permission() -> None:
    with pytest.raises(ArgumentError, match="--api-key"):
        ServerSettings(host="0.0.0.0")
    ServerSettings(host="0.0.0.0", api_key="secret")
    ServerSettings(host="0.0.0.0", open_to_all=True)
    ServerSettings(host="::1")


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AssertionError, match="no address"), serving("--port", str(taken.getsockname()[1])):
            pass


def test_a_model_that_is_not_there_ends_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="no address"), serving("-m", "/nowhere.gguf"):
        pass
    assert re.fullmatch(r"colibri: /nowhere.gguf: no such file.*\n", capfd.readouterr().err)


def test_an_empty_key_is_no_key(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="no address"), serving(environment={"COLIBRI_API_KEY": ""}):
        pass
    assert "api_key: found an empty text" in capfd.readouterr().err


def test_health_is_answered_while_the_model_loads() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen: list[tuple[int, str]] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(f"http://127.0.0.1:{port}/health")
                seen.append((answer.status_code, answer.json()["status"]))
            time.sleep(0.02)

    watcher = threading.Thread(target=look)
    watcher.start()
    with serving("--port", str(port)) as server:
        server.wait(lambda: (200, "ok") in seen)
        done.set()
        watcher.join()
    assert seen[0] == (503, "loading")
