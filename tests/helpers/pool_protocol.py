"""What the threads of native/pool.c do, step by step.

A step is one access to memory that threads share, and names the statement that it stands for; the test looks for these
in the file. The mutex is taken with the first access that needs it and given back with the last, since nobody can tell
an order in which they are apart (Lipton, "Reduction", 1975). Order is sequentially consistent here, as the atomics that
decide are in C; that nothing else depends on order is for the thread sanitizer. Conditions wake nobody without a
signal, so that a lost one is a thread that sleeps for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tests.helpers.interleavings import ProtocolError, search

CALLER = 0


class Word(NamedTuple):
    """`state`, read and written as one."""

    number: int = 0
    joined: int = 0
    open: bool = False
    stop: bool = False


class Pool(NamedTuple):
    """What the threads share. wake, done: who waits on the conditions. items: how often each was done in a region."""

    word: Word = Word()
    finished: int = 0
    sleepers: int = 0
    caller_sleeps: bool = False
    sleep_lock: int | None = None
    wake: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    first: int = 0
    function: int = 0  # the number of the region that it was set for
    ranges: tuple[int, ...] = ()
    running: frozenset[int] = frozenset()
    items: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    old_stop: bool = False  # a flag apart from the word, as it was once


FRESH = Pool()


class Thread(NamedTuple):
    """One thread: its next step and its local variables. `todo` is the caller's program, `then` where it returns to."""

    id: int
    at: str
    seen: int = 0
    word: Word = Word()
    turn: int = 0  # of the ranges that pool_take goes through
    joined: int = 0
    todo: tuple[str, ...] = ()
    everyone: bool = False
    then: str = ""


class Size(NamedTuple):
    """Threads, of which one is the caller; processors for them; items of a region, at most one a thread."""

    threads: int
    cpus: int
    items: int


Successors = Iterator[tuple[Pool, Thread]]
Act = Callable[[Size, Pool, Thread], Successors]


class Step(NamedTuple):
    """statement: lines of native/pool.c; none for what only the model has."""

    statement: str
    act: Act


Steps = Mapping[str, Step]


STEPS: dict[str, Step] = {}


def step(name: str, statement: str, steps: dict[str, Step] = STEPS) -> Callable[[Act], Act]:
    """What a thread at `name` does next. Nothing is yielded by one that must wait."""

    def enter(act: Act) -> Act:
        steps[name] = Step(statement, act)
        return act

    return enter


def free(pool: Pool) -> bool:
    """Whether the mutex can be taken."""
    return pool.sleep_lock is None


def signals(waiting: frozenset[int], count: int) -> Iterator[frozenset[int]]:
    """Who may still wait after so many signals: the system chooses."""
    if not waiting or not count:
        yield waiting
        return
    for woken in waiting:
        yield from signals(waiting - {woken}, count - 1)


# ---- workers ---------------------------------------------------------------------------------------------------------


@step("begin", "unsigned seen = pool.first;")
def begin(size: Size, pool: Pool, me: Thread) -> Successors:
    """A thread that was created."""
    if me.id in pool.running:
        yield pool, Thread(me.id, "spin", seen=pool.first)


@step("spin", "if (!wait_awake(is_new_region, seen)) sleep_until_new_region(seen);")
def spin(size: Size, pool: Pool, me: Thread) -> Successors:
    """It may see the region, or lose patience at any time."""
    if pool.word.number != me.seen:
        yield pool, me._replace(at="answer")
    yield pool, me._replace(at="sleep")


@step("sleep", "atomic_fetch_add(&pool.sleepers, 1);")
def sleep(size: Size, pool: Pool, me: Thread) -> Successors:
    if free(pool):
        yield pool._replace(sleep_lock=me.id, sleepers=pool.sleepers + 1), me._replace(at="sleep check")


@step("sleep check", "while (region_number() == seen) pthread_cond_wait(&pool.wake, &pool.sleep_lock);")
def sleep_check(size: Size, pool: Pool, me: Thread) -> Successors:
    if pool.word.number == me.seen:
        yield pool._replace(sleep_lock=None, wake=pool.wake | {me.id}), me._replace(at="asleep")
    else:
        yield pool._replace(sleep_lock=me.id), me._replace(at="awake")


@step("asleep", "")
def asleep(size: Size, pool: Pool, me: Thread) -> Successors:
    if me.id not in pool.wake and free(pool):
        yield from sleep_check(size, pool, me)


@step("awake", "atomic_fetch_sub(&pool.sleepers, 1);")
def awake(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool._replace(sleep_lock=None, sleepers=pool.sleepers - 1), me._replace(at="answer")


def answered(pool: Pool, me: Thread) -> tuple[Pool, Thread]:
    """The body of answer's loop, on the word that was read last."""
    me = me._replace(seen=pool.word.number, word=Word())
    if pool.word.stop:
        return pool, me._replace(at="end")
    return pool, me._replace(at="join", word=pool.word) if pool.word.open else me._replace(at="spin")


@step("answer", "uint64_t state = atomic_load(&pool.state);")
def answer(size: Size, pool: Pool, me: Thread) -> Successors:
    yield answered(pool, me)


@step("join", "} while (!atomic_compare_exchange_weak(&pool.state, &state, state + JOIN));")
def join(size: Size, pool: Pool, me: Thread) -> Successors:
    if pool.word != me.word:
        yield answered(pool, me)
    else:
        yield pool._replace(word=pool.word._replace(joined=pool.word.joined + 1)), me._replace(at="call", word=Word())


@step("call", "pool.function(pool.context, thread, pool.threads);")
def call(size: Size, pool: Pool, me: Thread) -> Successors:
    calls = tuple(count + (thread == me.id) for thread, count in enumerate(pool.calls))
    yield pool._replace(calls=calls), me._replace(at="look", turn=0, then="own done" if me.id == CALLER else "report")


@step("look", "left = end - atomic_load_explicit(&ranges[t].next, memory_order_relaxed);")
def look(size: Size, pool: Pool, me: Thread) -> Successors:
    """Its own range first, then the others': one item each."""
    require_its_own(pool, me)
    if me.turn == size.threads:
        yield pool, me._replace(at=me.then, turn=0, then="")
    elif pool.ranges[(me.id + me.turn) % size.threads]:
        yield pool, me._replace(turn=me.turn + 1)
    else:
        yield pool, me._replace(at="take")


@step("take", "const int first = atomic_fetch_add_explicit(&ranges[t].next, count, memory_order_relaxed);")
def take(size: Size, pool: Pool, me: Thread) -> Successors:
    """One that was first does the item and looks at the same range again."""
    require_its_own(pool, me)
    of = (me.id + me.turn) % size.threads
    ranges = tuple(following + (number == of) for number, following in enumerate(pool.ranges))
    items = tuple(count + (number == of and not pool.ranges[of]) for number, count in enumerate(pool.items))
    won = not pool.ranges[of]
    yield pool._replace(ranges=ranges, items=items), me._replace(at="look", turn=0 if won else me.turn + 1)


def require_its_own(pool: Pool, me: Thread) -> None:
    if me.id != CALLER and pool.function != me.seen:
        raise ProtocolError(f"thread {me.id} is in region {me.seen} while {pool.function} is set up")


@step("report", "atomic_fetch_add(&pool.finished, 1);")
def report(size: Size, pool: Pool, me: Thread) -> Successors:
    require_its_own(pool, me)
    yield pool._replace(finished=pool.finished + 1), me._replace(at="caller sleeps?")


@step("caller sleeps?", "if (!atomic_load(&pool.caller_sleeps)) return;")
def caller_sleeps(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool, me._replace(at="signal" if pool.caller_sleeps else "spin")


@step("signal", "pthread_cond_signal(&pool.done);")
def signal(size: Size, pool: Pool, me: Thread) -> Successors:
    if free(pool):
        yield pool._replace(done=frozenset()), me._replace(at="spin")


@step("end", "if (call == STOPPED) return NULL;")
def end(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool._replace(running=pool.running - {me.id}), Thread(me.id, "begin")


# ---- the caller ------------------------------------------------------------------------------------------------------


@step("next", "")
def next_of_program(size: Size, pool: Pool, me: Thread) -> Successors:
    """share and run are regions; set_threads stops the workers, which start again with the next region."""
    if not me.todo:
        return
    what, todo = me.todo[0], me.todo[1:]
    if what == "set_threads":
        yield pool, me._replace(at="stop" if pool.running else "next", todo=todo)
    else:
        started = pool._replace(first=pool.word.number) if not pool.running else pool
        yield started, me._replace(at="start", todo=todo, everyone=what == "run")


@step("start", "pthread_create(&pool.worker[pool.started]")
def start(size: Size, pool: Pool, me: Thread) -> Successors:
    missing = [worker for worker in range(1, size.threads) if worker not in pool.running]
    if missing:
        yield pool._replace(running=pool.running | {missing[0]}), me
    else:
        yield pool, me._replace(at="set up")


@step(
    "set up",
    """ranges[t].end = (int)((int64_t)count * (t + 1) / pool.threads);
    pool.function = function;
    atomic_store_explicit(&pool.finished, 0, memory_order_relaxed);""",
)
def set_up(size: Size, pool: Pool, me: Thread) -> Successors:
    """The last ranges have an item, the others none."""
    nothing, empty = (0,) * size.threads, size.threads - size.items
    ranges = tuple(int(number < empty) for number in range(size.threads))
    ready = pool._replace(ranges=ranges, items=ranges, calls=nothing, function=pool.word.number + 1, finished=0)
    yield ready, me._replace(at="publish")


@step("publish", "publish(OPEN);")
def publish(size: Size, pool: Pool, me: Thread) -> Successors:
    word = Word(pool.word.number + 1, open=True)
    yield pool._replace(word=word), me._replace(at="sleepers?", then="call")


@step("sleepers?", "int sleepers = atomic_load(&pool.sleepers);")
def look_for_sleepers(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool, me._replace(at="wake", joined=pool.sleepers) if pool.sleepers else me._replace(at=me.then)


@step("wake", "if (wanted >= sleepers) pthread_cond_broadcast(&pool.wake);")
def wake(size: Size, pool: Pool, me: Thread) -> Successors:
    """As many as there are processors, unless all are needed."""
    if not free(pool):
        return
    everyone = me.everyone or me.then != "call" or size.threads <= size.cpus
    wanted = size.threads - 1 if everyone else size.cpus - 1
    for waiting in set(signals(pool.wake, len(pool.wake) if wanted >= me.joined else wanted)):
        yield pool._replace(wake=waiting), me._replace(at=me.then, joined=0)


@step("own done", "if (everyone) wait_for_all((unsigned)pool.threads - 1);")
def own_done(size: Size, pool: Pool, me: Thread) -> Successors:
    if me.everyone:
        yield pool, me._replace(at="wait", joined=size.threads - 1, then="close")
    else:
        yield pool, me._replace(at="close")


@step("close", "uint64_t last = atomic_fetch_and(&pool.state, ~OPEN);")
def close(size: Size, pool: Pool, me: Thread) -> Successors:
    closed = pool._replace(word=pool.word._replace(open=False))
    if me.everyone:
        yield closed, me._replace(at="returned")
    else:
        yield closed, me._replace(at="wait", joined=pool.word.joined, then="returned")


@step("wait", "if (!wait_awake(is_finished, joined)) sleep_until_finished(joined);")
def wait(size: Size, pool: Pool, me: Thread) -> Successors:
    if pool.finished == me.joined:
        yield pool, me._replace(at=me.then, joined=0)
    yield pool, me._replace(at="sleep until finished")


@step("sleep until finished", "atomic_exchange(&pool.caller_sleeps, true);")
def sleep_until_finished(size: Size, pool: Pool, me: Thread) -> Successors:
    if free(pool):
        yield pool._replace(sleep_lock=me.id, caller_sleeps=True), me._replace(at="wait check")


@step("wait check", "while (atomic_load(&pool.finished) != joined) pthread_cond_wait(&pool.done, &pool.sleep_lock);")
def wait_check(size: Size, pool: Pool, me: Thread) -> Successors:
    if pool.finished == me.joined:
        yield pool._replace(sleep_lock=me.id), me._replace(at="caller awake")
    else:
        yield pool._replace(sleep_lock=None, done=pool.done | {me.id}), me._replace(at="caller asleep")


@step("caller asleep", "")
def caller_asleep(size: Size, pool: Pool, me: Thread) -> Successors:
    if me.id not in pool.done and free(pool):
        yield from wait_check(size, pool, me)


@step("caller awake", "atomic_store(&pool.caller_sleeps, false);")
def caller_awake(size: Size, pool: Pool, me: Thread) -> Successors:
    yield pool._replace(sleep_lock=None, caller_sleeps=False), me._replace(at=me.then, joined=0)


@step("returned", "")
def returned(size: Size, pool: Pool, me: Thread) -> Successors:
    """What the caller of a region relies on."""
    if set(pool.items) != {1}:
        raise ProtocolError(f"items were done {pool.items} times")
    if me.everyone and set(pool.calls) != {1}:
        raise ProtocolError(f"threads were called {pool.calls} times")
    yield pool._replace(items=(), calls=()), me._replace(at="next")


@step("stop", "publish(STOP);")
def stop(size: Size, pool: Pool, me: Thread) -> Successors:
    word = Word(pool.word.number + 1, stop=True)
    yield pool._replace(word=word), me._replace(at="sleepers?", then="join workers")


@step("join workers", "for (int i = 0; i < pool.started; i++) pthread_join(pool.worker[i], NULL);")
def join_workers(size: Size, pool: Pool, me: Thread) -> Successors:
    if not pool.running:
        yield pool, me._replace(at="next")


# ---- the search ------------------------------------------------------------------------------------------------------

State = tuple[Pool, tuple[Thread, ...]]


def start_of(size: Size, program: tuple[str, ...], pool: Pool = FRESH) -> State:
    """No worker runs yet."""
    workers = tuple(Thread(number, "begin") for number in range(1, size.threads))
    return pool, (Thread(CALLER, "next", todo=program), *workers)


def after_fork(pool: Pool) -> Pool:
    """What the child of a fork finds: what after_fork of pool.c does not set is as it was."""
    return pool._replace(
        sleep_lock=None, wake=frozenset(), done=frozenset(), word=Word(), sleepers=0, caller_sleeps=False,
        running=frozenset(),
    )  # fmt: skip


def check(size: Size, starts: list[State], steps: Steps = STEPS) -> set[State]:
    """All states of the pool; raises ProtocolError."""

    def successors(state: State) -> Iterator[tuple[str, State]]:
        pool, threads = state
        for number, thread in enumerate(threads):
            for after, me in steps[thread.at].act(size, pool, thread):
                yield f"{number}: {thread.at}", (after, (*threads[:number], me, *threads[number + 1 :]))

    return search(starts, successors, lambda state: state[1][CALLER].at == "next" and not state[1][CALLER].todo)
