"""The engine process as the web server sees it: started, spoken to, and started again when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from colibri.config import LoadOptions
from colibri.server import protocol
from colibri.server.heartbeat import BEAT_S, Watchdog

State = Literal["loading", "ready", "restarting", "failed", "stopped"]

FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 30.0
STABLE_S = 60.0  # an engine that ran this long starts again at once
MOST_WAITING = 256  # tokens that wait for their client before a sequence stands still
END_S = 5.0  # for an engine to end by itself before it is killed

log = logging.getLogger("colibri.server")


@dataclass(slots=True, eq=False)
class Ticket:
    """One sequence in the engine, and where its outputs go."""

    request: int
    outputs: asyncio.Queue[protocol.Output]
    done: bool = False
    waiting: int = 0  # tokens that its client has not taken
    held: bool = False


class _Incarnation:
    """One process with its socket, a thread that reads from it and one that writes to it."""

    def __init__(
        self, options: LoadOptions, hang_s: float, receive: Callable[[_Incarnation, protocol.Event | None], None]
    ) -> None:
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


class Supervisor:
    """Keeps an engine running and gives out tickets. All methods belong to the event loop's thread."""

    def __init__(self, options: LoadOptions, hang_s: float) -> None:
        self.options = options
        self._hang_s = hang_s
        self.state: State = "loading"
        self.ready: protocol.Ready | None = None
        self.stats: protocol.Stats | None = None
        self.restarts = 0
        self.failure: str | None = None
        self.on_state: Callable[[], None] = lambda: None
        self.on_stats: Callable[[protocol.Stats], None] = lambda stats: None
        self.on_output: Callable[[Ticket, protocol.Output], None] = lambda ticket, output: None
        self._engine: _Incarnation | None = None
        self._tickets: dict[int, Ticket] = {}
        self._next = 1
        self._backoff = FIRST_BACKOFF_S
        self._changed = asyncio.Event()
        self._watching = False
        self._ticking: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """Sequences that wait or run."""
        return len(self._tickets)

    @property
    def silent_s(self) -> float:
        """Seconds since the engine last got anywhere."""
        return 0.0 if self._engine is None else self._engine.watchdog.silent_s

    @property
    def stalled(self) -> bool:
        """Whether the engine has been silent for longer than usual."""
        return self._engine is not None and self._engine.watchdog.stalled

    def start(self) -> None:
        """Start the process; `wait_ready` tells how it went. Raises OSError or RuntimeError when it cannot be."""
        loop = asyncio.get_running_loop()
        if self._ticking is None:
            self._ticking = loop.create_task(self._tick())

        def receive(engine: _Incarnation, event: protocol.Event | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(self._heard, engine, event)

        self._engine = _Incarnation(self.options, self._hang_s, receive)

    async def wait_ready(self) -> protocol.Ready:
        """The model, once it is loaded. Raises RuntimeError with the reason when it cannot be."""
        while self.state in ("loading", "restarting"):
            await self._changed.wait()
            self._changed.clear()
        if self.ready is None or self.state != "ready":
            raise RuntimeError(self.failure or "the engine did not start")
        return self.ready

    def submit(self, command: protocol.Submit, outputs: asyncio.Queue[protocol.Output]) -> Ticket:
        """Queue a sequence, whose outputs go to the queue; its request number is given here."""
        assert self._engine is not None
        ticket = Ticket(self._next, outputs)
        self._next += 1
        self._tickets[ticket.request] = ticket
        self._engine.send(replace(command, request=ticket.request))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for this ticket any more; harmless when it is done."""
        if self._tickets.pop(ticket.request, None) is not None and self._engine is not None:
            self._engine.send(protocol.Cancel(ticket.request))
        ticket.done = True

    def hold(self, ticket: Ticket, held: bool) -> None:
        """Let a sequence stand still, or go on."""
        if ticket.request in self._tickets and ticket.held != held and self._engine is not None:
            self._engine.send(protocol.Hold(ticket.request, held))
            ticket.held = held

    def watch_experts(self, watching: bool) -> None:
        """Ask for routing counts, or no more."""
        self._watching = watching
        if self._engine is not None:
            self._engine.send(protocol.Watch(watching))

    async def stop(self) -> None:
        """End the process; what still runs is lost."""
        self._set("stopped")
        for task in (self._ticking, self._restarting):
            if task is not None:
                task.cancel()
        if self._engine is not None:
            self._engine.send(protocol.Stop())
            await asyncio.to_thread(self._engine.end)
        self._lose()

    # ---- what the process says -----------------------------------------------------------------------------------

    def _heard(self, engine: _Incarnation, event: protocol.Event | None) -> None:
        if engine is not self._engine or self.state == "stopped":
            return
        if event is None:
            self._died(engine)
            return
        engine.watchdog.heard(event)
        match event:
            case protocol.Step(outputs):
                for output in outputs:
                    self._pass_on(output)
            case protocol.Stats():
                self.stats = event
                self.on_stats(event)
            case protocol.Ready():
                if self.restarts:
                    took = time.monotonic() - engine.started
                    log.warning("the engine is ready again, %.1f s after it was started", took)
                self.ready, self.failure = event, None
                if self._watching:
                    engine.send(protocol.Watch(True))
                self._set("ready")
            case protocol.Hello(version):
                if version != protocol.VERSION:
                    ours = protocol.VERSION
                    engine.failure = f"the engine speaks version {version} of the messages, the web server {ours}"
                    engine.process.kill()
            case protocol.Failed(_, message):
                engine.failure = message

    def _pass_on(self, output: protocol.Output) -> None:
        ticket = self._tickets.get(output.request)
        if ticket is None:
            return
        if output.finish is not None:
            ticket.done = True
            del self._tickets[output.request]
        self.on_output(ticket, output)
        ticket.outputs.put_nowait(output)
        ticket.waiting += len(output.tokens)
        if ticket.waiting > MOST_WAITING:
            self.hold(ticket, True)

    # ---- its end, and the next one -----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Count the seconds without news; an engine that hangs is killed, which ends it as any death does."""
        while True:
            await asyncio.sleep(BEAT_S)
            engine = self._engine
            if self.state in ("loading", "ready", "restarting") and engine is not None and engine.watchdog.tick():
                self._hangs(engine)

    def _hangs(self, engine: _Incarnation) -> None:
        self.failure = engine.failure = f"the engine got nowhere for {self._hang_s:g} s and was killed"
        log.error("%s", self.failure)
        engine.watchdog.silent_s = 0.0  # it may take a while to die
        engine.process.kill()
        self._lose()
        if self.ready is not None:
            self._set("restarting")

    def _died(self, engine: _Incarnation) -> None:
        self._lose()
        self.stats = None
        self._engine = None
        self.failure = engine.failure or f"the engine ended with status {engine.process.returncode}"
        if self.ready is None:  # it never ran: starting again would fail again
            self._set("failed")
            return
        if time.monotonic() - engine.started > STABLE_S:
            self._backoff = FIRST_BACKOFF_S
        log.error("%s; restarting in %.1f s", self.failure, self._backoff)
        self.restarts += 1
        self._again()

    def _again(self) -> None:
        self._set("restarting")
        self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        await asyncio.sleep(self._backoff)
        self._backoff = min(2 * self._backoff, LAST_BACKOFF_S)
        try:
            self.start()
        except (OSError, RuntimeError) as error:  # the system has no room for a process now
            self.failure = f"the engine cannot be started: {error}"
            log.error("%s; trying again in %.1f s", self.failure, self._backoff)
            self._again()

    def _lose(self) -> None:
        """Every request in flight gets its end."""
        for ticket in self._tickets.values():
            ticket.done = True
            ticket.outputs.put_nowait(protocol.Output(ticket.request, finish="lost"))
        self._tickets.clear()

    def _set(self, state: State) -> None:
        self.state = state
        self._changed.set()
        self.on_state()
