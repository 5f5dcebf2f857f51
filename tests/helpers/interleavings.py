"""Every order of the steps of several threads: what can be reached, and whether the end can be from everywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

State = TypeVar("State", bound=Hashable)
Came = Mapping[State, tuple[State, str] | None]


class ProtocolError(Exception):
    """Something that must not happen, and the shortest way there."""


def search(
    starts: Iterable[State], successors: Callable[[State], Iterable[tuple[str, State]]], ended: Callable[[State], bool]
) -> set[State]:
    """All states that can be reached, by named steps.

    Raises ProtocolError where a step does, and for a state from which no order of steps leads to the end: a deadlock,
    or threads that go round for ever.
    """
    came: dict[State, tuple[State, str] | None] = dict.fromkeys(starts)
    before: dict[State, list[State]] = {}
    queue = deque(came)
    while queue:
        state = queue.popleft()
        try:
            for what, following in successors(state):
                before.setdefault(following, []).append(state)
                if following not in came:
                    came[following] = state, what
                    queue.append(following)
        except ProtocolError as error:
            raise ProtocolError(f"{error}\n{_way(state, came)}") from None
    lost = came.keys() - _reaching([state for state in came if ended(state)], before)
    for state in came:  # in the order of distance
        if state in lost:
            raise ProtocolError(f"hangs: nothing leads to the end from here\n{_way(state, came)}")
    return set(came)


def _reaching(ends: list[State], before: Mapping[State, list[State]]) -> set[State]:
    found, todo = set(ends), ends
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in found:
                found.add(state)
                todo.append(state)
    return found


def _way(state: State, came: Came[State]) -> str:
    steps = []
    while (last := came[state]) is not None:
        state, what = last
        steps.append(what)
    return "\n".join(reversed(steps))
