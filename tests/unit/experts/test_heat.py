"""Heat is kept for one model, mixed over runs, and warms free slots only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from expert_files import CHOSEN, EXPERTS, LAYERS, check_slot, is_leased, is_reading, live_slots, resident_ids, run_step

from colibri.experts.heat import LEAST_TOKENS, Heat, cache_directory
from colibri.experts.residency import Residency

Make = Callable[..., Residency]
COUNTS = np.arange(12).reshape(3, 4) + LEAST_TOKENS


def test_kept_and_mixed(tmp_path: Path) -> None:
    heat = Heat("f" * 64, tmp_path)
    assert heat.read((3, 4)) is None
    heat.add(COUNTS)
    first = heat.read((3, 4))
    assert first is not None
    np.testing.assert_allclose(first, COUNTS / COUNTS.sum())
    heat.add(np.full((3, 4), 100))
    second = heat.read((3, 4))
    assert second is not None
    assert np.ptp(second) < np.ptp(first)


def test_what_does_not_fit_is_ignored(tmp_path: Path) -> None:
    Heat("a" * 64, tmp_path).add(COUNTS)
    assert Heat("a" * 64, tmp_path).read((3, 5)) is None
    assert Heat("a" * 32 + "b" * 32, tmp_path).read((3, 4)) is None
    file = next(tmp_path.rglob("*.npz"))
    for damage in (b"", b"nonsense", file.read_bytes()[:100]):
        file.write_bytes(damage)
        assert Heat("a" * 64, tmp_path).read((3, 4)) is None
    Heat("c" * 64, tmp_path).add(np.zeros((3, 4), np.int64))
    assert Heat("c" * 64, tmp_path).read((3, 4)) is None


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "heat").write_text("a file in the way")
    Heat("a" * 64, tmp_path).add(COUNTS)


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "colibri"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/cache", "."):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_directory() == tmp_path / ".cache" / "colibri"


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run under ids that the system has no user for, and set no HOME."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert cache_directory() is None
    heat = Heat("a" * 64)
    heat.add(COUNTS)
    assert heat.read((3, 4)) is None


def settle(residency: Residency) -> None:
    deadline = time.monotonic() + 10
    while is_reading(residency) and time.monotonic() < deadline:
        time.sleep(0.001)


def test_a_warm_start_fills_free_slots_with_the_hottest(make_residency: Make) -> None:
    residency = make_residency(6)
    run_step(residency, 0, [[0, 1, 2, 3]])
    heat = np.zeros((LAYERS, EXPERTS))
    heat[2, :5] = 9, 8, 7, 6, 5
    heat[1, 4] = 1
    residency.warm(heat)
    settle(residency)
    assert resident_ids(residency, 0) == [0, 1, 2, 3]
    assert resident_ids(residency, 2) == [0, 1]
    assert resident_ids(residency, 1) == [4]
    check_slot(residency, 2, 1)
    for layer in range(LAYERS):
        run_step(residency, layer, [list(range(CHOSEN))])


def test_a_warm_start_ends_in_time(make_residency: Make) -> None:
    residency = make_residency(64)
    residency.warm(np.ones((LAYERS, EXPERTS)), seconds=0.0)
    settle(residency)
    assert sum(live_slots(residency).values()) == 0


def test_steps_during_a_warm_start(make_residency: Make) -> None:
    residency = make_residency(20)
    residency.warm(np.random.default_rng(0).random((LAYERS, EXPERTS)))
    for layer in range(LAYERS):
        run_step(residency, layer, [[0, 5, 10, 15], [1, 2, 3, 4]])
    settle(residency)
    assert max(live_slots(residency).values()) <= 20
    assert not is_leased(residency)


def test_learned_by_one_run_and_used_by_the_next(make_residency: Make, tmp_path: Path) -> None:
    first = make_residency(8)
    first.learn(Heat("d" * 64, tmp_path))
    chosen = np.array([[[layer, 5, 6, 7]] for layer in range(LAYERS)], np.int32)  # (layers, 1, k)
    for _ in range(LEAST_TOKENS):
        first.routing.record(chosen)
        first.routing.record(np.array([[[layer, 5, 6, 7]] for layer in range(LAYERS)], np.int32))
    first.close()
    second = make_residency(8)
    second.learn(Heat("d" * 64, tmp_path))
    settle(second)
    assert [resident_ids(second, layer) for layer in range(LAYERS)] == [[layer, 5, 6, 7] for layer in range(LAYERS)]
