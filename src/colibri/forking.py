"""Before a fork, what threads work on comes to rest: the child has the forking thread only, and memory as it was then.

gunicorn --preload, multiprocessing's fork and subprocess with a preexec_fn come this way. A fork by other code than
Python's does not.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging  # noqa: F401  its hooks must be the older ones, which run later: what comes to rest may have to log
import os
import sys
import threading
import time
import weakref
from typing import Protocol

REST_SECONDS = 10.0  # longer than a step, a few reads and all else that is waited for
IMPORTED_LATE = ("colibri", "jinja2", "numpy")  # packages of which some modules are imported when they are first needed


class Follower(Protocol):
    """Something that threads share and that a fork would find in the middle of a change."""

    def before_fork(self, until: float) -> None:
        """Come to rest and stay so, until `after_fork`; not waiting beyond this time of time.monotonic."""

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the child, without what belonged to other threads."""


_followers: weakref.WeakValueDictionary[int, Follower] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_one_fork = threading.Lock()
_resting: list[Follower] = []


def follow(follower: Follower) -> None:
    """Tell it of every fork, before all that was made earlier: what uses something is made after it."""
    _followers[next(_numbers)] = follower


def _before() -> None:
    _one_fork.acquire()
    until = time.monotonic() + REST_SECONDS
    for reference in reversed(_followers.valuerefs()):
        if (follower := reference()) is not None:
            _resting.append(follower)
            follower.before_fork(until)
    _finish_imports()


def _finish_imports() -> None:
    """A module that another thread is in the middle of importing could never be imported in the child."""
    for name, module in list(sys.modules.items()):
        unfinished = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if unfinished and name.partition(".")[0] in IMPORTED_LATE:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _after(*, child: bool) -> None:
    try:
        while _resting:
            _resting.pop().after_fork(child=child)
    finally:
        _one_fork.release()


os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(child=False), after_in_child=lambda: _after(child=True)
)
