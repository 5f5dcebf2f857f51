"""The lock around a step: it knows who has it, outlives a fork, and lets nobody in after the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from colibri import forking
from colibri.errors import ArgumentError

FORKED = (
    "the process was forked in the middle of a step of another thread, which left this copy of the model half changed; "
    "load it in the child, or fork while nothing is generated"
)


class StepLock:
    """Used in a with statement, which raises ArgumentError once `refusal` says why nobody may enter.

    A fork waits for the step that another thread is in. `forked` is called in the child, with whether that step had
    come to its end.
    """

    def __init__(self, forked: Callable[[bool], None]) -> None:
        self.refusal = ""
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._forked = forked
        self._rests = self._whole = False
        forking.follow(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()
        if self.refusal:
            self.release()
            raise ArgumentError(self.refusal)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Enter if nobody is there and somebody may."""
        if self.refusal or not self._lock.acquire(blocking=False):
            return False
        self._owner = threading.get_ident()
        return True

    def release(self) -> None:
        """Leave."""
        self._owner = None
        self._lock.release()

    def before_fork(self, until: float) -> None:
        """Wait for another thread's step. In the middle of its own, a thread finds all as it left it."""
        mine = self._owner == threading.get_ident()
        self._rests = not mine and self._lock.acquire(timeout=max(0.0, until - time.monotonic()))
        self._whole = mine or self._rests

    def after_fork(self, *, child: bool) -> None:
        """Let others in again; in the child of a fork that did not wait long enough, nobody."""
        if self._rests:
            self._rests = False
            self._lock.release()
        if not child:
            return
        if not self._whole:
            self._lock, self.refusal = threading.Lock(), self.refusal or FORKED
        self._forked(self._whole)
