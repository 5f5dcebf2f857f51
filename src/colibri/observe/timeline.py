"""When each step, layer and read of an expert began and how long it took, as Perfetto and Chrome open it (`--trace`).

The file is the JSON of the Trace Event Format: complete events ("X") in microseconds since the beginning. Threads are
told apart: who steps, and who reads experts. https://ui.perfetto.dev opens it; nothing is sent anywhere.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from colibri.engine.model import Model
from colibri.errors import FileError
from colibri.layers.build import Mixer
from colibri.layers.workspace import Rows

HELD = 50_000  # events in memory before they are written

Event = tuple[str, float, float, int, dict[str, Any]]  # name, start and end in seconds, thread, arguments


class Timeline:
    """Collects what happens in a model: a tap of its decoder, a listener of its engine and of its readers."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._began = time.perf_counter()
        self._events: list[Event] = []
        self._threads: dict[int, int] = {}
        self._lock = threading.Lock()
        self._first = True
        self._at = 0.0  # the end of the layer before, or the start of the step
        file.write("[")

    def __call__(self, name: str, start: float, **arguments: Any) -> None:
        """Something that began at `start`, of time.perf_counter, has ended."""
        self._events.append((name, start, time.perf_counter(), threading.get_ident(), arguments))
        if len(self._events) >= HELD:
            self.flush()

    def begin(self, rows: Rows) -> None:
        """Called by the decoder when a step begins."""
        self._at = time.perf_counter()

    def mixed(self, layer: int, mixer: Mixer, rows: Rows) -> None:
        """Called by the decoder after a layer's mixer."""
        self(type(mixer).__name__, self._at, layer=layer, rows=rows.count)
        self._at = time.perf_counter()

    def fed_forward(self, layer: int, rows: Rows) -> None:
        """Called by the decoder after a layer's experts."""
        chosen = rows.chosen_array[layer]
        experts = sorted(set(chosen[chosen >= 0].tolist()))
        self("experts" if experts else "feed forward", self._at, layer=layer, rows=rows.count, experts=experts)
        self._at = time.perf_counter()

    def flush(self) -> None:
        """Write what was collected."""
        with self._lock:
            events, self._events = self._events, []
            for name, start, end, thread, arguments in events:
                self._write(
                    {"name": name, "ph": "X", "ts": self._micros(start), "dur": round(1e6 * (end - start), 1),
                     "pid": 1, "tid": self._number(thread), "args": arguments}
                )  # fmt: skip
            self._file.flush()

    def close(self) -> None:
        """Write the rest and the end."""
        self.flush()
        self._file.write("]\n")
        self._file.flush()

    def _micros(self, moment: float) -> float:
        return round(1e6 * (moment - self._began), 1)

    def _number(self, thread: int) -> int:
        """A small number for a thread, whose name is written when it is seen first."""
        number = self._threads.get(thread)
        if number is None:
            number = self._threads[thread] = len(self._threads) + 1
            names = {each.ident: each.name for each in threading.enumerate()}
            name = names.get(thread, f"thread {number}")
            name = "steps" if name == "MainThread" else name
            self._write({"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}})
        return number

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(("\n" if self._first else ",\n") + json.dumps(event))
        self._first = False


@contextmanager
def traced(model: Model, path: Path | None) -> Iterator[None]:
    """Write what the model does meanwhile to a file; without one, nothing. Raises FileError if it cannot be written."""
    if path is None:
        yield
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    with file:
        timeline = Timeline(file)
        model.watch(timeline)
        model.listen(timeline)
        try:
            yield
        finally:
            model.watch(None)
            model.listen(None)
            timeline.close()
