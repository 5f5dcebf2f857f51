"""A real server in its own process, with the embedded model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from colibri.engine.model import model_path

from .browser import Page, make_browser

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
START_S = 60
END_S = 20
POLL_S = 0.05


@dataclass
class Server:
    """A running `colibri serve`."""

    process: subprocess.Popen[str]
    url: str
    line: str
    headers: dict[str, str] = field(default_factory=dict)

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, headers=self.headers, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, **options)

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    def metric(self, name: str) -> float:
        match = re.search(rf"^{name} (\S+)$", self.get("/metrics").text, re.MULTILINE)
        assert match is not None, name
        return float(match[1])

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(
            int(pid) for pid in children if b"colibri.server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[int]:
        """The engine does nothing within the block, so that what runs does not end by itself; its process id."""
        pid = self.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def wait(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Until the condition holds; fails when it does not in time, not counting when the test stood still."""
        for _ in range(round(seconds / POLL_S)):
            if condition():
                return
            time.sleep(POLL_S)
        pytest.fail("it did not happen in time")

    def idle(self) -> bool:
        """Whether nothing waits or runs, in the web server and in the engine."""
        pending = self.get("/health").json()["engine"]["pending"]
        return pending == 0 and self.metric("colibri_sequences_running") == 0

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextlib.contextmanager
def serving(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """`colibri serve` with these arguments, on a free port, until the block ends."""
    command = [sys.executable, "-m", "colibri.cli", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        match = re.search(r"http://\S+", line)
        assert match is not None, f"no address in {line!r}"
        yield Server(process, match[0], line)
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
        process.stdout.close()


@pytest.fixture
def removable(tmp_path: Path) -> Path:
    """A name of the embedded model: without it no engine starts again, however slow a test is."""
    link = tmp_path / "model.gguf"
    link.symlink_to(model_path(None))
    return link


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests that leave it as they found it."""
    with serving("--sequences", "8", "--chunk", "128") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = make_browser()
    yield driver
    driver.quit()


@pytest.fixture
def page(server: Server, browser: Any) -> Page:
    """The page, as a browser that was never here has it."""
    return Page(browser).open(server.url).connected()
