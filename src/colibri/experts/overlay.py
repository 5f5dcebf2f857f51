"""Watching the overlay folder of a model: which experts were replaced or taken back since the last look."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import ColibriError
from colibri.experts.reading import ExpertFile
from colibri.experts.store import ExpertStore
from colibri.experts.swap import expert_files, overlay_folder, read_replacement
from colibri.weights.file_reader import Identity
from colibri.weights.tensor_info import Expert

SETTLED_NS = 100_000_000  # a folder changed this lately may change again without its time stamp telling

log = logging.getLogger("colibri")


@dataclass(frozen=True, slots=True)
class Replacement:
    """What to use for `expert` from now on: the open, checked file and where each layer's matrices are.

    No layers: the model's own.
    """

    expert: int
    file: ExpertFile | None
    layers: dict[int, Expert]


class Overlay:
    """The replaced experts of one model. A look costs one system call while nothing changes."""

    def __init__(self, store: ExpertStore) -> None:
        self._store = store
        self._folder = overlay_folder(store.path)
        self._seen: int | None = None
        self._known: dict[int, Identity] = {}  # also of files that were refused
        self._used: set[int] = set()

    def changes(self) -> Iterator[Replacement]:
        """What changed since the last call. A file that does not fit is refused with a warning and changes nothing."""
        try:
            changed = os.stat(self._folder).st_mtime_ns
        except OSError:
            changed = -1
        if changed == self._seen:
            return
        self._seen = changed if time.time_ns() - changed > SETTLED_NS else None
        files = expert_files(self._folder) if changed >= 0 else {}
        for expert in [number for number in self._known if number not in files]:
            del self._known[expert]
            if expert in self._used:
                self._used.remove(expert)
                yield Replacement(expert, None, {})
        for expert, path in files.items():
            if (replacement := self._look(expert, path)) is not None:
                yield replacement

    def _look(self, expert: int, path: Path) -> Replacement | None:
        try:
            file = ExpertFile(path)
            if self._known.get(expert) == file.identity:
                return None
            self._known[expert] = file.identity
            if not 0 <= expert < self._store.experts:
                log.warning("%s: this model has experts 0 to %d; the file is not used", path, self._store.experts - 1)
                return None
            layers = read_replacement(self._store, path)
            if ExpertFile(path).identity != file.identity:
                del self._known[expert]  # replaced again meanwhile: the next look takes it
                self._seen = None
                return None
        except ColibriError as error:
            if path.exists():
                log.warning("%s; the expert in use stays", error)
            else:
                self._seen = None  # taken back meanwhile: the next look sees it
            return None
        self._used.add(expert)
        return Replacement(expert, file, layers)
