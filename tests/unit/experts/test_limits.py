"""Slots in use never exceed the limit, also while it is lowered, with many threads; leased experts stay."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from expert_files import CHOSEN, EXPERTS, LAYERS, check_slot, ids_of, is_leased, live_slots, run_step

from colibri import ops
from colibri.experts.residency import Residency

Make = Callable[..., Residency]


def limit(residency: Residency, slots: int) -> None:
    """The same limit for every layout."""
    residency.set_limits(dict.fromkeys(residency.store.layouts.values(), slots))


def live(residency: Residency) -> list[int]:
    """Slots in use of each layout."""
    return list(live_slots(residency).values())


def test_lowering_gives_up_what_is_not_leased(make_residency: Make) -> None:
    residency = make_residency()
    for layer in range(LAYERS):
        run_step(residency, layer, [[0, 1, 2, 3], [4, 5, 6, 7]])
    limit(residency, 3)
    assert live(residency) == [3, 3]
    run_step(residency, 2, [[8, 9, 10, 11]])
    assert live(residency) == [3, 3]


def test_a_leased_part_stays_until_it_ends(make_residency: Make) -> None:
    residency = make_residency()
    run_step(residency, 0, [[0, 1, 2, 3]])
    parts = iter(residency.handles(0, ids_of([[0, 1, 2, 3]])))
    next(parts)
    limit(residency, 1)
    for expert in range(CHOSEN):
        check_slot(residency, 0, expert)
    assert max(live(residency)) == CHOSEN
    parts.close()  # type: ignore[attr-defined]
    assert max(live(residency)) == 1


def test_a_part_of_a_complete_layer_stays_until_it_ends(make_residency: Make) -> None:
    residency = make_residency()
    run_step(residency, 0, [list(range(start, start + 4)) for start in range(0, EXPERTS, 4)])
    parts = iter(residency.handles(0, ids_of([[0, 1, 2, 3]])))
    assert next(parts)[1] is None
    limit(residency, 2)
    check_slot(residency, 0, 3)
    del parts
    assert max(live(residency)) == 2


def test_surplus_memory_returns_to_the_system(make_residency: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    residency = make_residency()
    for layer in range(LAYERS):
        run_step(residency, layer, [list(range(start, start + 4)) for start in range(0, EXPERTS, 4)])
    limit(residency, 1)
    for layer in range(LAYERS):
        run_step(residency, layer, [[0, 1, 2, 3]])
    limit(residency, EXPERTS * LAYERS)
    for layer in range(LAYERS):
        run_step(residency, layer, [list(range(start, start + 4)) for start in range(0, EXPERTS, 4)])


class Watch:
    """Checks, at every slot handed out, that the limit had room."""

    def __init__(self, residency: Residency) -> None:
        self.failures: list[str] = []
        for pool in residency._here.pools.values():
            take = pool.take

            def watched(pool: object = pool, take: Callable[[], object] = take) -> object:
                slot = take()
                if slot is not None and pool.live > pool.limit:  # type: ignore[attr-defined]
                    self.failures.append(f"{pool.live} slots above the limit of {pool.limit}")  # type: ignore[attr-defined]
                return slot

            pool.take = watched  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("seed", range(6))
def test_limits_change_under_threads(make_residency: Make, seed: int) -> None:
    residency = make_residency(24)
    watch = Watch(residency)
    failures: list[BaseException] = []
    done = threading.Event()

    def work(number: int) -> None:
        rng = np.random.default_rng(1000 * seed + number)
        try:
            for _ in range(12):
                for layer in range(LAYERS):
                    run_step(residency, layer, [rng.permutation(EXPERTS)[:CHOSEN].tolist() for _ in range(2)])
        except BaseException as error:
            failures.append(error)

    def control() -> None:
        rng = np.random.default_rng(seed)
        while not done.wait(0.002):
            limit(residency, int(rng.integers(1, 25)))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    controller = threading.Thread(target=control)
    for thread in (*workers, controller):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    controller.join()
    if failures:
        raise failures[0]
    assert not watch.failures, watch.failures[0]
    assert not is_leased(residency)
    limit(residency, 2)
    assert max(live(residency)) <= 2


def test_the_same_results_whatever_the_slots(make_residency: Make) -> None:
    """The arithmetic of a layer in parts equals that of one part, bit for bit."""
    rng = np.random.default_rng(3)
    rows = [rng.permutation(EXPERTS)[:CHOSEN].tolist() for _ in range(5)]
    x = ops.tensor("F32", (5, 64))
    x.numpy()[:] = rng.normal(size=(5, 64))
    results = []
    for slots in (None, 40, 3, 1):
        residency = make_residency(slots)
        slots_out = ops.tensor("F32", (5 * CHOSEN, 64))
        ids = ids_of(rows)
        for _ in range(2):
            for table, only in residency.handles(1, ids):
                ops.moe(slots_out, x, table, ids, only=only)
        results.append(slots_out.numpy().copy())
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
