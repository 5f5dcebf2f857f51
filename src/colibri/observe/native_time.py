"""How much of a step is spent in native code; the rest is Python's."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from colibri import ops


class NativeTime:
    """In a with statement: `seconds` grows by the time that ops take, called as `ops.NAME`.

    Each call takes about 0.2 microseconds more while it is watched, which counts as Python's.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._originals: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> NativeTime:
        native = type(ops.matmul)
        for name, function in list(vars(ops).items()):
            if isinstance(function, native):
                self._originals[name] = function
                setattr(ops, name, self._watched(function))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, function in self._originals.items():
            setattr(ops, name, function)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def call(*arguments: Any, **named: Any) -> Any:
            start = clock()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += clock() - start
                self.calls += 1

        return call
