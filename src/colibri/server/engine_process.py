"""One engine process: its socket, a thread that reads from it and one that writes to it."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from colibri.config import LoadOptions
from colibri.server import protocol
from colibri.server.heartbeat import Watchdog

END_S = 5.0  # for an engine to end by itself before it is killed


class EngineProcess:
    """Started when it is made. `receive` is called by the reading thread, with None at the end of the process."""

    def __init__(
        self, options: LoadOptions, hang_s: float, receive: Callable[[EngineProcess, protocol.Event | None], None]
    ) -> None:
        """Raises OSError or RuntimeError when it cannot be started."""
        self.started = time.monotonic()
        self.watchdog = Watchdog(hang_s)
        self.failure: str | None = None
        self._receive = receive
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        package = str(Path(__file__).absolute().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [environment.get("PYTHONPATH")])])
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "colibri.server.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._connection = Connection(ours.detach())
        self._commands: queue.SimpleQueue[protocol.Command | None] = queue.SimpleQueue()
        for target in (self._read, self._write):
            threading.Thread(target=target, name=f"engine-{target.__name__}", daemon=True).start()
        self.send(protocol.Start(protocol.VERSION, options))

    def send(self, command: protocol.Command) -> None:
        """Queue a command; one that cannot be delivered is dropped, as the reader notices the end."""
        self._commands.put(command)

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._receive(self, self._connection.recv())
        self._commands.put(None)
        self.process.wait()
        self._receive(self, None)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (command := self._commands.get()) is not None:
                self._connection.send(command)

    def end(self) -> None:
        """Wait for the process to end; kill it when it takes too long."""
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
