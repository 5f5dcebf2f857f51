"""A process that has loaded a model forks: the child answers as the parent, or says why it cannot; neither waits."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import colibri
from colibri import forking, ops
from colibri.config import SamplingParams
from colibri.engine.model import Model
from colibri.errors import ArgumentError

from .conftest import GOLDEN

Load = Callable[..., Model]
PATH = GOLDEN / "mixtral-window-f16"
PROMPT = [3, 7, 11, 2]
PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def ids_of(model: Model) -> list[int]:
    return [token.id for token in model.generate(PROMPT, PARAMS)]


def in_child(check: Callable[[], bool], seconds: int = 20) -> None:
    """Fork; the child must find `check` true, within so many seconds."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(seconds)
            status = int(not check())
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@contextmanager
def working(work: Callable[[], object]) -> Iterator[None]:
    """Another thread does it again and again, as the body runs."""
    begun, enough = threading.Event(), threading.Event()

    def repeat() -> None:
        while not enough.is_set():
            work()
            begun.set()

    thread = threading.Thread(target=repeat)
    thread.start()
    begun.wait(20)
    try:
        yield
    finally:
        enough.set()
        thread.join()


@pytest.mark.parametrize("used", [False, True])
def test_loaded_then_forked(load: Load, used: bool) -> None:
    expected = ids_of(load(PATH))
    model = load(PATH)
    if used:
        ids_of(model)
    in_child(lambda: ids_of(model) == expected)
    assert ids_of(model) == expected


def test_while_another_thread_generates(load: Load) -> None:
    model = load(PATH)
    expected = ids_of(model)
    with working(lambda: ids_of(model)):
        for _ in range(10):
            in_child(lambda: ids_of(model) == expected and model.engine.running == 0)
    assert ids_of(model) == expected


def test_while_experts_are_read(load: Load) -> None:
    """Slots for some of them, and a disk so slow that a fork meets the reads of a warm start and of a step."""
    expected = ids_of(load(PATH))
    model = load(PATH)
    read = model.experts.reader._read

    def slowly(descriptor: int, view: memoryview, offset: int) -> int:
        time.sleep(0.002)
        return read(descriptor, view, offset)

    model.experts.reader._read = slowly
    model.experts.set_limits(dict.fromkeys(model.experts.store.layout_counts(), 4))
    store = model.experts.store
    for _ in range(5):
        model.experts.warm(np.ones((store.layers, store.experts)))
        in_child(lambda: ids_of(model) == expected)
    with working(lambda: ids_of(model)):
        for _ in range(5):
            in_child(lambda: ids_of(model) == expected)
    assert ids_of(model) == expected


def test_a_generation_goes_on_in_both_processes(load: Load) -> None:
    model = load(PATH)
    expected = ids_of(model)
    generation = model.generate(PROMPT, PARAMS)
    begun = [next(generation).id for _ in range(5)]
    in_child(lambda: begun + [token.id for token in generation] == expected)
    assert begun + [token.id for token in generation] == expected


def test_a_generation_of_another_thread_ends_in_the_child(load: Load) -> None:
    model = load(PATH)
    made = []
    thread = threading.Thread(target=lambda: made.append(model.generate(PROMPT, PARAMS)))
    thread.start()
    thread.join()

    def refused() -> bool:
        with pytest.raises(ArgumentError, match="belongs to a thread"):
            next(made[0])
        return len(ids_of(model)) == 20

    in_child(refused)
    assert len(list(made[0])) == 20


def test_a_step_that_lasts_too_long_leaves_no_model(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "REST_SECONDS", 0.05)
    model = load(PATH)
    inside, enough = threading.Event(), threading.Event()

    def see(position: int, logits: object) -> None:
        inside.set()
        enough.wait(20)

    def refused() -> bool:
        for use in (lambda: model.infer(PROMPT), lambda: model.generate(PROMPT, PARAMS)):
            with pytest.raises(ArgumentError, match="forked in the middle of a step"):
                use()
        model.close()
        return gc.isenabled() and len(ids_of(colibri.load(PATH))) == 20

    thread = threading.Thread(target=model.infer_rows, args=(PROMPT, see))
    thread.start()
    inside.wait(20)
    in_child(refused)
    enough.set()
    thread.join()
    assert len(ids_of(model)) == 20


def test_from_within_a_step(load: Load) -> None:
    """What is told of logits may fork: the thread is in the child, too, and ends its step there."""
    model = load(PATH)
    expected = ids_of(model)
    child = -1

    def see(position: int, logits: object) -> None:
        nonlocal child
        child = os.fork() if child < 0 else child

    model.infer_rows(PROMPT, see)
    if not child:
        signal.alarm(20)
        os._exit(int(ids_of(model) != expected))
    assert os.waitpid(child, 0)[1] == 0
    assert ids_of(model) == expected


def test_threads_of_the_child_are_its_own(load: Load) -> None:
    model = load(PATH, threads=2)
    expected = ids_of(model)

    def other_threads() -> bool:
        ops.set_threads(3)
        return ids_of(model) == expected

    with working(lambda: ids_of(model)):
        in_child(other_threads)


def answer(_: int) -> list[int]:
    return ids_of(SHARED["model"])


SHARED: dict[str, Model] = {}


def test_multiprocessing(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(PATH)
    expected = ids_of(model)
    monkeypatch.setitem(SHARED, "model", model)
    with working(lambda: ids_of(model)), multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(answer, range(6), chunksize=1).get(60) == [expected] * 6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


APPLICATION = """
import threading
import colibri

model = colibri.load({path!r})
params = colibri.SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)

def ids():
    return [token.id for token in model.generate({prompt!r}, params)]

def busy():
    while True:
        ids()

threading.Thread(target=busy, daemon=True).start()  # in the master: gunicorn forks its workers meanwhile

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [repr(ids()).encode()]
"""


def test_gunicorn_preload(load: Load, tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "application.py").write_text(APPLICATION.format(path=str(PATH), prompt=PROMPT))
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "2", "-b", address, "application:app"]
    where = os.pathsep.join([str(tmp_path), str(Path(colibri.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": where})
    try:
        answers = [fetch(f"http://{address}/", server) for _ in range(6)]
    finally:
        server.terminate()
        server.wait(20)
    assert answers == [repr(ids_of(load(PATH)))] * 6


def fetch(url: str, server: subprocess.Popen[bytes], seconds: float = 20) -> str:
    """What it answers, as soon as it listens."""
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=seconds) as response:
                body: bytes = response.read()
                return body.decode()
        except OSError:
            assert server.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)


def test_while_another_thread_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child would wait for ever for the thread that imports it."""
    (tmp_path / "slow_to_import.py").write_text("import time\nwhile_imported = time.sleep(0.5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forking, "IMPORTED_LATE", ("slow_to_import",))
    thread = threading.Thread(target=importlib.import_module, args=("slow_to_import",))
    thread.start()
    while "slow_to_import" not in sys.modules:
        time.sleep(0.01)
    in_child(lambda: hasattr(importlib.import_module("slow_to_import"), "while_imported"))
    thread.join()
    del sys.modules["slow_to_import"]
