"""In a decode step nothing is collected, nothing is opened or read, and memory does not grow."""

from __future__ import annotations

import gc
import os
import resource
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import colibri
from colibri.config import SamplingParams
from colibri.engine.generation import Generation
from colibri.engine.model import Model

MODEL = Path(__file__).resolve().parents[2] / "golden" / "qwen3_moe-quantized" / "model.gguf"
STEPS = 200
PYTHON_ARENA = 1 << 20  # what the interpreter maps when ids and routing counts no longer fit
PARAMS = SamplingParams(max_tokens=STEPS + 50, temperature=0.8, seed=1, ignore_eos=True)


@pytest.fixture
def model() -> Iterator[Model]:
    """A model all of whose experts are in memory."""
    with colibri.load(MODEL) as loaded:
        loaded.infer([token % loaded.spec.vocab_size for token in range(200)])
        yield loaded


@pytest.fixture
def generation(model: Model) -> Iterator[Generation]:
    """One that has begun: what a first step makes is there."""
    with model.generate([1, 2, 3], PARAMS) as started:
        for _ in range(20):
            model.engine.step()
        assert started.finish_reason is None
        yield started


def open_files() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if number_is_open(number)}


def number_is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


def io_counters() -> dict[str, int]:
    text = Path("/proc/self/io").read_text()
    return {name: int(value) for name, value in (line.split(": ") for line in text.splitlines())}


_watching: list[list[str]] = []  # an audit hook stays for good


def _note_opening(event: str, arguments: tuple[Any, ...]) -> None:
    for names in _watching if event == "open" else ():
        names.append(str(arguments[0]))


sys.addaudithook(_note_opening)


@contextmanager
def opened() -> Iterator[list[str]]:
    """The files that Python opens meanwhile, those that it closes again, too."""
    names: list[str] = []
    _watching.append(names)
    try:
        yield names
    finally:
        _watching.remove(names)


def mapped_bytes() -> int:
    """Address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_no_collection_inside_a_step(
    model: Model, generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[str] = []
    inside = False
    compute = model.engine._step

    def step() -> None:
        nonlocal inside
        inside = True
        compute()
        inside = False

    def watch(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and inside:
            collected.append(f"generation {info['generation']}")

    monkeypatch.setattr(model.engine, "_step", step)
    thresholds = gc.get_threshold()
    gc.callbacks.append(watch)
    gc.set_threshold(1, 1, 1)  # as eager as can be
    try:
        for _ in range(STEPS):
            model.engine.step()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(watch)
    assert not collected
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(model: Model, generation: Generation) -> None:
    gc.disable()
    try:
        model.engine.step()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_traced_memory_does_not_grow(model: Model, generation: Generation) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(20):
            model.engine.step()
        generation._sequence.output.clear()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(STEPS):
            model.engine.step()
            generation._sequence.output.clear()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # ids and routing counts of the tokens are kept, nothing else
    trace = STEPS * 2 * len(model.spec.layers) * model.spec.experts_per_token
    assert after - before < trace + 64 * STEPS + 20_000
    assert peak - before < trace + 64 * STEPS + 20_000 + 64 * model.spec.vocab_size


def test_nothing_is_read_or_opened(model: Model, generation: Generation) -> None:
    files, before = open_files(), io_counters()
    own = io_counters()["rchar"] - before["rchar"]  # what reading the counters reads
    before = io_counters()
    with opened() as names:
        for _ in range(STEPS):
            model.engine.step()
    after = io_counters()
    assert after["rchar"] - before["rchar"] == own
    assert after["wchar"] == before["wchar"]
    assert after["syscr"] - before["syscr"] <= 3
    assert open_files() == files
    assert not names


def test_no_memory_is_taken_from_the_system(model: Model, generation: Generation) -> None:
    """Native code, too: no mapping grows, and hardly a page is touched for the first time."""
    mapped, faults = mapped_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(STEPS):
        model.engine.step()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < STEPS / 2
    assert mapped_bytes() - mapped <= PYTHON_ARENA
