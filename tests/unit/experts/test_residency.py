"""Experts arrive on demand, whole and in the right slot, whatever the number of slots, threads and faults."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from expert_files import (
    CHOSEN,
    EXPERTS,
    LAYERS,
    check_slot,
    faulty_reader,
    ids_of,
    is_leased,
    live_slots,
    resident_ids,
    run_step,
)

from colibri.errors import FileError, MemoryBudgetError
from colibri.experts.residency import Residency

Make = Callable[..., Residency]


def test_first_step_reads_only_what_is_routed_to(make_residency: Make) -> None:
    residency = make_residency()
    run_step(residency, 0, [[1, 5, 9, 2]])
    assert residency.counters.misses == 4
    assert sum(live_slots(residency).values()) == 4
    assert residency.counters.bytes_read == 4 * residency.store.expert(0, 0).nbytes


def test_threads_that_the_system_refuses(make_residency: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def refuse_the_second(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_second)
    run_step(make_residency(), 0, [[1, 5, 9, 2]])
    with pytest.raises(MemoryBudgetError, match="refused a thread"):
        run_step(make_residency(), 0, [[1, 5, 9, 2]])


def test_resident_experts_come_in_one_part(make_residency: Make) -> None:
    residency = make_residency()
    run_step(residency, 1, [[1, 5, 9, 2]])
    parts = list(residency.handles(1, ids_of([[5, 1, 2, 9]])))
    assert [only for _, only in parts] == [None]
    assert residency.counters.hits == 4


def test_resident_part_comes_before_the_missing_one(make_residency: Make) -> None:
    residency = make_residency()
    run_step(residency, 1, [[1, 2, 3, 4]])
    parts = run_step(residency, 1, [[1, 2, 7, 8]])
    assert parts[0] == [1, 2]


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 16, 40])
def test_any_number_of_slots(make_residency: Make, slots: int) -> None:
    residency = make_residency(slots)
    rng = np.random.default_rng(slots)
    for _ in range(20):
        for layer in range(LAYERS):
            rows = [rng.permutation(EXPERTS)[:CHOSEN].tolist() for _ in range(rng.integers(1, 6))]
            run_step(residency, layer, rows)
    assert max(live_slots(residency).values()) <= slots
    assert not is_leased(residency)


def test_each_needed_expert_is_read_once_a_step(make_residency: Make) -> None:
    residency = make_residency(3)
    run_step(residency, 0, [list(range(start, start + 4)) for start in (0, 4, 8, 12)])
    assert residency.counters.misses == EXPERTS
    assert residency.counters.bytes_read == EXPERTS * residency.store.expert(0, 0).nbytes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slots", [2, 20])
def test_many_threads(make_residency: Make, slots: int, seed: int) -> None:
    residency = make_residency(slots)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(100 * seed + number)
        try:
            for _ in range(15):
                for layer in range(LAYERS):
                    run_step(residency, layer, [rng.permutation(EXPERTS)[:CHOSEN].tolist() for _ in range(2)])
                    assert max(live_slots(residency).values()) <= slots
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert not is_leased(residency)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("limit", [1, 999, 4096, 5000])
def test_short_reads_are_continued(make_residency: Make, limit: int, direct: bool) -> None:
    def short(descriptor: int, view: memoryview, offset: int) -> int:
        return os.preadv(descriptor, [view[: max(limit, 1)]], offset)

    residency = make_residency(reader=faulty_reader(short, direct))
    run_step(residency, 1, [[3, 4, 5, 6]])


def test_interrupted_reads_are_repeated(make_residency: Make) -> None:
    calls = iter(range(10**6))

    def interrupted(descriptor: int, view: memoryview, offset: int) -> int:
        if next(calls) % 2:
            raise InterruptedError
        return os.preadv(descriptor, [view], offset)

    run_step(make_residency(reader=faulty_reader(interrupted)), 0, [[3, 4, 5, 6]])


def test_an_unreadable_expert_fails_its_request_alone(make_residency: Make, model_path: Path) -> None:
    bad = True

    def failing(descriptor: int, view: memoryview, offset: int) -> int:
        info = residency.store.expert(0, 6).by_name["up"]
        if bad and info.offset < offset + len(view) and offset < info.offset + info.nbytes:
            raise OSError(errno.EIO, "Input/output error")
        return os.preadv(descriptor, [view], offset)

    residency = make_residency(reader=faulty_reader(failing))
    with pytest.raises(FileError, match=rf"{model_path}.*offset \d+.*Input/output error"):
        run_step(residency, 0, [[3, 6, 10, 11]])
    run_step(residency, 0, [[3, 12, 10, 14]])
    bad = False
    run_step(residency, 0, [[3, 6, 10, 11]])
    assert not is_leased(residency)


def test_a_file_truncated_while_running(make_residency: Make, model_path: Path) -> None:
    residency = make_residency()
    run_step(residency, 0, [[0, 1, 2, 3]])
    end = residency.store.expert(3, 0).by_name["gate"].offset + 100  # before the experts that are read
    os.truncate(model_path, end)
    with pytest.raises(FileError, match=rf"{model_path}: ends at byte {end}, .*truncated"):
        run_step(residency, 3, [[2, 3, 4, 5]])
    run_step(residency, 0, [[0, 1, 2, 3]])


@pytest.mark.parametrize("uncached", [False, True])
def test_a_file_written_to_while_running(make_residency: Make, model_path: Path, uncached: bool) -> None:
    residency = make_residency()
    residency.reader.assume_uncached = uncached
    run_step(residency, 0, [[0, 1, 2, 3]])
    with model_path.open("r+b") as file:
        file.seek(residency.store.expert(0, 5).by_name["down"].offset)
        file.write(b"other")
    with pytest.raises(FileError, match=rf"{model_path}: .*changed or replaced while in use"):
        run_step(residency, 0, [[0, 1, 4, 5]])
    run_step(residency, 0, [[0, 1, 2, 3]])


def test_a_file_replaced_before_the_first_expert_is_read(make_residency: Make, model_path: Path) -> None:
    residency = make_residency()
    kept = model_path.rename(model_path.with_name("kept"))
    model_path.write_bytes(bytes(kept.stat().st_size))
    list(residency.handles(0, ids_of([[0, 1, 2, 3]])))
    kept.rename(model_path)
    run_step(residency, 0, [[0, 1, 2, 3]])  # compares them with the file


def test_direct_reads_refused_at_the_read(make_residency: Make, caplog: pytest.LogCaptureFixture) -> None:
    def refusing(descriptor: int, view: memoryview, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.preadv(descriptor, [view], offset)

    residency = make_residency(reader=faulty_reader(refusing))
    residency.reader.assume_uncached = True
    run_step(residency, 0, [[0, 1, 2, 3]])
    assert "O_DIRECT" in caplog.text


def test_direct_reads_give_the_same_bytes(make_residency: Make) -> None:
    direct = []

    def noting(descriptor: int, view: memoryview, offset: int) -> int:
        direct.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        return os.preadv(descriptor, [view], offset)

    residency = make_residency(reader=faulty_reader(noting))
    residency.reader.assume_uncached = True
    for layer in range(LAYERS):
        run_step(residency, layer, [[0, 7, 14, 15]])
    assert any(direct)


def test_a_dropped_step_gives_its_leases_back(make_residency: Make) -> None:
    residency = make_residency(4)
    parts = iter(residency.handles(0, ids_of([[0, 1, 2, 3]])))
    next(parts)
    assert is_leased(residency)
    del parts
    assert not is_leased(residency)
    check_slot(residency, 0, resident_ids(residency, 0)[0])
