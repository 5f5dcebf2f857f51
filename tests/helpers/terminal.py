"""A program in a terminal of its own, and what its screen shows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pexpect
import pyte

PATIENCE_S = 60.0


class Terminal:
    """Runs a command in a pseudo-terminal of so many columns. plain: everything that it wrote, as it wrote it."""

    def __init__(
        self, command: Sequence[str], columns: int = 80, lines: int = 40, environment: Mapping[str, str] | None = None
    ) -> None:
        variables: Any = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
        self.program = pexpect.spawn(command[0], list(command[1:]), dimensions=(lines, columns), env=variables)
        self.screen = pyte.Screen(columns, lines)
        self.screen.write_process_input = self.program.send  # the terminal answers where its cursor is
        self._stream = pyte.ByteStream(self.screen)
        self.plain = b""

    @property
    def shown(self) -> list[str]:
        """The lines of the screen down to the last that is not empty."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip().splitlines()

    def wait(self, seen: Callable[[list[str]], bool]) -> list[str]:
        """The screen, once it is as `seen` wants it."""
        end = time.monotonic() + PATIENCE_S
        while not seen(self.shown):
            assert time.monotonic() < end, "\n".join(self.shown)
            self._read()
        return self.shown

    def ended(self) -> int | None:
        """The exit status, once the program ended."""
        end = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < end, "\n".join(self.shown)
        self.program.close()
        status: int | None = self.program.exitstatus
        return status

    def type(self, text: str) -> None:
        """Keys as the user hits them."""
        self.program.send(text)

    def _read(self) -> bool:
        try:
            data = self.program.read_nonblocking(1 << 16, timeout=0.05)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.plain += data
        self._stream.feed(data)
        return True
