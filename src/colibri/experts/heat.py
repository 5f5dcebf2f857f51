"""Learning: how often a model's experts were chosen, kept between runs in the user's cache directory.

Used to begin with the experts that were needed before. The file belongs to one fingerprint; what does not fit is
ignored, and nothing is ever written beside the model.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

LEAST_TOKENS = 32  # fewer are not worth a file
OLD_WEIGHT = 0.5  # what earlier runs count beside the latest, so that habits can change
log = logging.getLogger("colibri")


def cache_directory() -> Path | None:
    """Where the user's programs keep what they can do without; None for a user without a home.

    Source: the XDG Base Directory Specification, by which a relative XDG_CACHE_HOME is ignored.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "colibri"
    try:
        return Path.home() / ".cache" / "colibri"
    except RuntimeError:  # no HOME, and an id that the system has no user for, as containers give
        return None


class Heat:
    """The heat of one model: counts (layers, experts), float64."""

    def __init__(self, fingerprint: str, directory: Path | None = None) -> None:
        self._fingerprint = fingerprint
        directory = directory or cache_directory()
        self._path = None if directory is None else directory / "heat" / f"{fingerprint[:32]}.npz"

    def read(self, shape: tuple[int, int]) -> NDArray[np.float64] | None:
        """What earlier runs left, or None when there is nothing of this model and shape."""
        if self._path is None:
            return None
        try:
            with np.load(self._path, allow_pickle=False) as stored:
                counts, owner = stored["counts"], str(stored["fingerprint"])
        except (OSError, KeyError, ValueError, EOFError, BadZipFile):
            return None
        if owner != self._fingerprint or counts.shape != shape or counts.dtype != np.float64:
            return None
        return counts if np.isfinite(counts).all() and counts.min() >= 0 else None

    def add(self, counts: NDArray[np.int64]) -> None:
        """Add a run's routing counts. A cache directory that cannot be written is no error."""
        if self._path is None:
            log.info("routing heat is not kept: this user has no home directory; XDG_CACHE_HOME can name one")
            return
        if counts.sum(axis=1).max() < LEAST_TOKENS:
            return
        run = counts / max(1, counts.sum())
        old = self.read((counts.shape[0], counts.shape[1]))
        mixed = run if old is None else run + OLD_WEIGHT * old
        temporary = self._path.with_suffix(f".{os.getpid()}.npz")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(temporary, counts=mixed / mixed.sum(), fingerprint=np.array(self._fingerprint))
            os.replace(temporary, self._path)
        except OSError as error:
            log.info("%s: routing heat is not kept: %s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
