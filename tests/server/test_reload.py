"""SIGHUP: the model is loaded again, what runs ends normally, and what comes meanwhile is answered."""

from __future__ import annotations

import os
import pty
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .conftest import GOLDEN, Server, serving
from .test_operation import ENDLESS, open_stream

SHORT = {**ENDLESS, "max_tokens": 5}


def hang_up(server: Server) -> None:
    server.process.send_signal(signal.SIGHUP)


def status(server: Server) -> str:
    return str(server.get("/health").json()["status"])


def replaced(server: Server, engine: int) -> Callable[[], bool]:
    return lambda: status(server) == "ok" and server.engine_pid() != engine


def test_streams_end_normally_and_new_requests_wait() -> None:
    with serving() as server, server.client() as client, ThreadPoolExecutor(1) as clients:
        engine, expected = server.engine_pid(), server.post("/v1/completions", SHORT).json()["choices"][0]["text"]
        lines = open_stream(client, ENDLESS).iter_lines()
        next(lines)
        with server.standing_still():
            hang_up(server)
            server.wait(lambda: status(server) == "reloading")
            waiting = clients.submit(server.post, "/v1/completions", SHORT)
            server.wait(lambda: server.metric("colibri_engine_up") == 1)
            assert server.get("/health").json()["engine"]["pending"] == 1
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert waiting.result().json()["choices"][0]["text"] == expected
        assert server.engine_pid() != engine
        assert server.get("/health").json()["engine"]["restarts"] == 0
        assert not os.path.exists(f"/proc/{engine}")


def test_no_request_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    """Several clients all the time, and a signal again and again, also while another is obeyed.

    None of it counts as a death, after which engines start later and later.
    """
    with serving() as server, ThreadPoolExecutor(6) as clients:
        ended = threading.Event()

        def keeps_asking(seed: int) -> list[int]:
            found: list[int] = []
            while not ended.is_set():
                found.append(server.post("/v1/completions", {**ENDLESS, "max_tokens": 40, "seed": seed}).status_code)
            return found

        asking = [clients.submit(keeps_asking, seed) for seed in range(6)]
        for _ in range(3):
            engine = server.engine_pid()
            hang_up(server)
            server.wait(lambda: status(server) != "ok")
            hang_up(server)
            server.wait(replaced(server, engine))
        ended.set()
        assert {code for each in asking for code in each.result()} == {200}
        os.kill(server.engine_pid(), signal.SIGKILL)
        server.wait(lambda: "restarting in 0.5 s" in capfd.readouterr().err)


def test_another_model_under_the_same_name(removable: Path) -> None:
    with serving("-m", str(removable)) as server:
        engine, before = server.engine_pid(), server.get("/v1/models").json()["data"][0]["id"]
        other = removable.with_name("other")
        other.symlink_to(GOLDEN / "qwen3_moe-gqa-f32")
        other.rename(removable)
        hang_up(server)
        server.wait(replaced(server, engine))
        assert server.get("/v1/models").json()["data"][0]["id"] != before
        assert server.post("/v1/completions", {**SHORT, "model": before}).status_code == 404
        assert server.post("/v1/completions", SHORT).status_code == 200


def test_a_model_that_is_gone_is_not_loaded(removable: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving("-m", str(removable)) as server:
        engine = server.engine_pid()
        removable.unlink()
        hang_up(server)
        server.wait(lambda: "not loaded again" in capfd.readouterr().err)
        assert status(server) == "ok"
        assert server.engine_pid() == engine
        assert server.post("/v1/completions", SHORT).status_code == 200


def test_an_engine_that_is_killed_while_requests_wait() -> None:
    with serving() as server, server.client() as client, ThreadPoolExecutor(1) as clients:
        lines = open_stream(client, ENDLESS).iter_lines()
        next(lines)
        with server.standing_still() as engine:
            hang_up(server)
            server.wait(lambda: status(server) == "reloading")
            waiting = clients.submit(server.post, "/v1/completions", SHORT)
            server.wait(lambda: server.get("/health").json()["engine"]["pending"] == 1)
            os.kill(engine, signal.SIGKILL)
        assert any("engine_lost" in line for line in lines)
        assert waiting.result().status_code == 200
        server.wait(lambda: status(server) == "ok")


def test_the_end_while_requests_wait() -> None:
    with serving("--drain", "5") as server, server.client() as client, ThreadPoolExecutor(1) as clients:
        lines = open_stream(client, ENDLESS).iter_lines()
        next(lines)
        with server.standing_still():
            hang_up(server)
            server.wait(lambda: status(server) == "reloading")
            waiting = clients.submit(client.post, "/v1/completions", json=SHORT)
            time.sleep(0.5)  # for it to arrive
            server.process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        assert waiting.result().json()["error"]["code"] == "shutting_down"
        assert server.process.wait(20) == 0


def test_a_server_ends_with_its_terminal() -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-m", "colibri.cli", "serve", "--port", "0"])
    said = b""
    while b"http://" not in said:
        said += os.read(terminal, 1000)
    os.kill(pid, signal.SIGHUP)  # while the terminal is there
    while b"loaded again" not in said:
        said += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
