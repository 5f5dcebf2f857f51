"""Reading ahead is bounded, spares what is in use or worth more, and never changes what a step gets."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

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
    is_reading,
    live_slots,
    resident_ids,
    run_step,
)

from colibri.experts.policy import MOST_SEQUENCES
from colibri.experts.prefetch import (
    KEPT_STEPS,
    LEAST_SLOTS,
    MOST_OUTSTANDING,
    TRIAL_PERIODS,
    TRIAL_STEPS,
    WASTE_START,
    Trial,
)
from colibri.experts.residency import Residency

Make = Callable[..., Residency]


def settle(residency: Residency) -> None:
    """Wait until nothing is being read."""
    deadline = time.monotonic() + 10
    while is_reading(residency) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not is_reading(residency)


def test_read_ahead_and_used(make_residency: Make) -> None:
    residency = make_residency(30)
    residency.prefetch(1, [3, 5])
    settle(residency)
    check_slot(residency, 1, 3)
    run_step(residency, 1, [[3, 5, 6, 7]])
    counters = residency.counters
    assert (counters.prefetched, counters.prefetch_used, counters.hits, counters.misses) == (2, 2, 2, 2)
    residency.prefetch(1, [3, 5])
    assert residency.counters.prefetched == 2


def test_few_at_once_and_little_in_vain(make_residency: Make) -> None:
    residency = make_residency(60)
    for layer in range(LAYERS):
        residency.prefetch(layer, range(EXPERTS))
        settle(residency)
        assert residency.counters.prefetched <= min(WASTE_START, (layer + 1) * MOST_OUTSTANDING)
    assert residency.counters.prefetched == WASTE_START
    for layer in range(LAYERS):
        run_step(residency, layer, [[12, 13, 14, 15]])
    residency.prefetch(0, [4])
    assert residency.counters.prefetched <= WASTE_START + 1 + 0.1 * residency.counters.misses


def test_leased_and_more_valuable_experts_stay(make_residency: Make) -> None:
    residency = make_residency(CHOSEN)
    for _ in range(5):
        run_step(residency, 0, [[0, 1, 2, 3]])
    residency.prefetch(2, [4, 5])  # never needed so far, in a layer of the same layout
    settle(residency)
    assert resident_ids(residency, 0) == [0, 1, 2, 3]
    parts = iter(residency.handles(0, ids_of([[0, 1, 2, 3]])))
    next(parts)
    residency.prefetch(2, range(EXPERTS))
    settle(residency)
    assert resident_ids(residency, 0) == [0, 1, 2, 3]


def test_what_is_expected_and_here_stays(make_residency: Make) -> None:
    residency = make_residency(CHOSEN)
    for _ in range(5):
        run_step(residency, 0, [[0, 1, 2, 3]])
    run_step(residency, 2, [[1, 5, 6, 7]])
    residency.prefetch(2, [1])
    run_step(residency, 0, [[4, 5, 6]])
    assert resident_ids(residency, 2) == [1]
    run_step(residency, 2, [[1, 5, 6, 7]])
    run_step(residency, 0, [[4, 5, 6]])
    assert resident_ids(residency, 2) == [7]  # the first of equals goes: nothing is expected any more


def test_few_slots_are_not_for_what_comes_later(make_residency: Make) -> None:
    assert make_residency(LEAST_SLOTS).reads_ahead(MOST_SEQUENCES)
    assert not make_residency(LEAST_SLOTS).reads_ahead(MOST_SEQUENCES + 1)
    assert not make_residency(LEAST_SLOTS - 1).reads_ahead(1)
    assert not make_residency().reads_ahead(1)  # all fit


def test_a_failed_read_ahead_harms_nobody(make_residency: Make) -> None:
    bad = True

    def failing(descriptor: int, view: memoryview, offset: int) -> int:
        if bad:
            raise OSError(errno.EIO, "Input/output error")
        return os.preadv(descriptor, [view], offset)

    residency = make_residency(30, reader=faulty_reader(failing))
    residency.prefetch(0, [1, 2])
    settle(residency)
    bad = False
    run_step(residency, 0, [[1, 2, 3, 4]])
    assert residency.counters.prefetch_used == 0


@pytest.mark.parametrize("seed", range(3))
def test_guesses_of_any_quality_change_nothing(make_residency: Make, seed: int) -> None:
    residency = make_residency(12)
    rng = np.random.default_rng(seed)
    for _ in range(30):
        for layer in range(LAYERS):
            rows = [rng.permutation(EXPERTS)[:CHOSEN].tolist()]
            run_step(residency, layer, rows)
            residency.prefetch((layer + 1) % LAYERS, rng.permutation(EXPERTS)[: rng.integers(0, 8)].tolist())
    counters = residency.counters
    assert counters.prefetched - counters.prefetch_used <= WASTE_START + 1 + 0.1 * counters.misses
    assert max(live_slots(residency).values()) <= 12
    settle(residency)
    assert not is_leased(residency)


def times(trial: Trial, with_it: float, without: float, steps: int) -> list[bool]:
    """Run steps that take so long; what each of them did."""
    modes = []
    for _ in range(steps):
        modes.append(trial.reading_ahead)
        trial.step(with_it if trial.reading_ahead else without)
    return modes


@pytest.mark.parametrize(("with_it", "without", "kept"), [(1.0, 1.1, True), (1.1, 1.0, False)])
def test_what_is_faster_is_kept(with_it: float, without: float, kept: bool) -> None:
    trial = Trial()
    first = times(trial, with_it, without, TRIAL_STEPS * TRIAL_PERIODS)
    assert sum(first) == len(first) / 2
    assert set(times(trial, with_it, without, KEPT_STEPS)) == {kept}
    assert set(times(trial, with_it, without, TRIAL_STEPS * TRIAL_PERIODS)) == {True, False}
