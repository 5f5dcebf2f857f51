"""The thread pool's protocol by its model: every order of the steps of the caller and its workers, and of a fork."""

from pathlib import Path

import pytest

from tests.helpers.interleavings import ProtocolError
from tests.helpers.pool_protocol import (
    STEPS,
    Pool,
    Size,
    Step,
    Steps,
    Successors,
    Thread,
    Word,
    after_fork,
    answered,
    check,
    look_for_sleepers,
    start_of,
)

ROOT = Path(__file__).resolve().parents[2]
TWO = Size(threads=2, cpus=2, items=2)
THREE = Size(threads=3, cpus=2, items=2)  # more threads than processors: some are left to sleep
LIFE = ("share", "set_threads", "run", "share", "set_threads")


@pytest.mark.parametrize(
    ("size", "program"),
    [
        (TWO, LIFE),
        (TWO, ("set_threads", "share", "share", "run", "run", "set_threads")),
        (TWO._replace(cpus=1), LIFE),
        (THREE._replace(cpus=3), ("share", "set_threads")),
        (THREE, ("share", "set_threads")),
        (THREE, ("run", "set_threads")),
    ],
)
def test_every_order_of_steps_ends_well(size: Size, program: tuple[str, ...]) -> None:
    assert len(check(size, [start_of(size, program)])) > 1000


def test_the_child_of_a_fork_has_a_pool_that_works() -> None:
    forked = {after_fork(pool) for pool, _ in check(TWO, [start_of(TWO, LIFE)])}
    assert len(forked) > 10
    check(TWO, [start_of(TWO, ("share", "run", "set_threads"), pool) for pool in forked])


def test_steps_are_those_of_the_code() -> None:
    code = {line.strip() for line in (ROOT / "native/pool.c").read_text().splitlines()}
    for name, step in STEPS.items():
        for statement in step.statement.splitlines():
            assert any(statement.strip() in line for line in code), f"{name}: {statement}"


# ---- what the search finds, so that a protocol that passes says something --------------------------------------------


def stop_flag_up(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool._replace(old_stop=True), me._replace(at="raise number")


def raise_number(size: Size, pool: Pool, me: Thread) -> Successors:
    word = pool.word._replace(number=pool.word.number + 1)
    yield pool._replace(word=word), me._replace(at="sleepers?", then="join workers")


def stop_flag_down(size: Size, pool: Pool, me: Thread) -> Successors:
    if not pool.running:
        yield pool._replace(old_stop=False), me._replace(at="next")


def look_at_stop_flag(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool, me._replace(at="end" if pool.old_stop else "join region")


STOP_BY_A_FLAG: Steps = STEPS | {
    "stop": Step("atomic_store(&pool.stop, true);", stop_flag_up),
    "raise number": Step("atomic_fetch_add(&pool.state, REGION);", raise_number),
    "join workers": Step("atomic_store(&pool.stop, false);", stop_flag_down),
    "answer": Step("if (atomic_load(&pool.stop)) return NULL;", look_at_stop_flag),
    "join region": Step("uint64_t state = atomic_load(&pool.state);", STEPS["answer"].act),
}


def test_a_stop_flag_apart_from_the_word_is_lost() -> None:
    """What the pool did once: the worker sees no stop, then takes the number that the stop has raised as seen."""
    with pytest.raises(ProtocolError, match="hangs") as found:
        check(TWO, [start_of(TWO, ("share", "set_threads"))], STOP_BY_A_FLAG)
    steps = str(found.value).splitlines()
    assert steps.index("1: answer") < steps.index("0: stop")  # nothing else can happen from here on:
    assert steps[-1] == "0: raise number" and "1: join region" not in steps


def look_before_publishing(size: Size, pool: Pool, me: Thread) -> Successors:
    """A plain store, which a load may pass."""
    for after, caller in look_for_sleepers(size, pool, me._replace(then="call")):
        yield after, caller._replace(at="publish late", todo=(caller.at, *me.todo))


def publish_late(size: Size, pool: Pool, me: Thread) -> Successors:
    word = Word(pool.word.number + 1, open=True)
    yield pool._replace(word=word), me._replace(at=me.todo[0], todo=me.todo[1:])


def close_at_once(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool._replace(word=pool.word._replace(open=False)), me._replace(at="returned")


def join_without_comparing(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool._replace(word=me.word._replace(joined=me.word.joined + 1)), me._replace(at="call", word=Word())


def report_to_nobody(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool, me._replace(at="spin")


def take_by_two_accesses(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool, me._replace(at="store", joined=pool.ranges[(me.id + me.turn) % size.threads])


def store_next(size: Size, pool: Pool, me: Thread) -> Successors:
    of = (me.id + me.turn) % size.threads
    ranges = (*pool.ranges[:of], me.joined, *pool.ranges[of + 1 :])
    yield from STEPS["take"].act(size, pool._replace(ranges=ranges), me._replace(joined=0))


def answer_open_regions_only(size: Size, pool: Pool, me: Thread) -> Successors:
    yield answered(pool, me) if pool.word.open else (pool, me._replace(at="spin", seen=pool.word.number))


MISTAKES: dict[str, tuple[str, dict[str, Step]]] = {
    "sleepers before the word": (
        "hangs", {"publish": Step("", look_before_publishing), "publish late": Step("", publish_late)},
    ),
    "no wait for those who joined": ("is in region 1 while 2 is set up", {"close": Step("", close_at_once)}),
    "a join that does not compare": ("is in region 1 while 2 is set up", {"join": Step("", join_without_comparing)}),
    "a report that wakes nobody": ("hangs", {"caller sleeps?": Step("", report_to_nobody)}),
    "items taken by a load and a store": (
        "items were done", {"take": Step("", take_by_two_accesses), "store": Step("", store_next)},
    ),
    "a stop taken for a closed region": ("hangs", {"answer": Step("", answer_open_regions_only)}),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake: str) -> None:
    message, steps = MISTAKES[mistake]
    with pytest.raises(ProtocolError, match=message):
        check(TWO, [start_of(TWO, ("share", "run", "set_threads"))], STEPS | steps)


def test_a_fork_that_keeps_the_mutex_is_found() -> None:
    reached = check(TWO, [start_of(TWO, LIFE)])
    forked = {after_fork(pool)._replace(sleep_lock=pool.sleep_lock) for pool, _ in reached}
    with pytest.raises(ProtocolError, match="hangs"):
        check(TWO, [start_of(TWO, ("share", "run", "set_threads"), pool) for pool in forked])
