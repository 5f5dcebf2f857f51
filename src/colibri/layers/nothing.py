"""The place of a mixer or a feed-forward part in a layer that has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from colibri.layers.build import Seen
from colibri.layers.workspace import Scratch


class Nothing:
    """Leaves rows as they are."""

    def __init__(self, *spec: Any) -> None:
        """Made like any other part."""

    @staticmethod
    def scratch(spec: None, hidden: int) -> Scratch:
        """It needs none."""
        return Scratch()

    def __call__(self, *step: Any) -> None:
        """Do nothing."""

    def inputs(self, *step: Any) -> Iterable[Seen]:
        """It has no weights."""
        return ()
