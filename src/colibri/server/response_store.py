"""Responses that later ones may go on from, the latest ones, in memory."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from colibri.server.problems import ApiError

MAX_RESPONSES = 1024
MAX_CHARACTERS = 16 << 20  # of all of them as JSON


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, and the conversation with it as messages of a chat."""

    turns: list[dict[str, Any]]
    response: dict[str, Any]


class ResponseStore:
    """Forgets the one that nobody asked for the longest."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Stored, int]] = OrderedDict()
        self._characters = 0

    def keep(self, identity: str, stored: Stored) -> None:
        """Remember a response."""
        size = len(json.dumps((stored.turns, stored.response)))
        self._kept[identity] = stored, size
        self._characters += size
        while self._kept and (len(self._kept) > MAX_RESPONSES or self._characters > MAX_CHARACTERS):
            self._characters -= self._kept.popitem(last=False)[1][1]

    def find(self, identity: str) -> Stored:
        """A response. Raises ApiError when it is not there (any more)."""
        if identity not in self._kept:
            raise ApiError(
                404, f"The response {identity[:80]!r} is not here: it was not stored, or it was long ago.",
                param="previous_response_id", code="previous_response_not_found",
            )  # fmt: skip
        self._kept.move_to_end(identity)
        return self._kept[identity][0]

    def turns(self, identity: str) -> list[dict[str, Any]]:
        """The conversation up to a response and with it."""
        return self.find(identity).turns

    def forget(self, identity: str) -> None:
        """Raises ApiError when it is not there."""
        self.find(identity)
        self._characters -= self._kept.pop(identity)[1]
