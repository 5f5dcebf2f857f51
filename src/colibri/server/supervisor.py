"""The engine process as the web server sees it: started, spoken to, and started again when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Literal

from colibri.config import LoadOptions
from colibri.server import protocol
from colibri.server.engine_process import EngineProcess
from colibri.server.heartbeat import BEAT_S, Watchdog
from colibri.server.tickets import Tickets

State = Literal["loading", "ready", "reloading", "restarting", "failed", "stopped"]

FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 30.0
PATIENCE_S = 30.0  # for an engine that died while it was to be replaced
STABLE_S = 60.0  # an engine that ran this long starts again at once

log = logging.getLogger("colibri.server")


class Status:
    """What an engine does, for those who wait until it does something else."""

    def __init__(self) -> None:
        self.now: State = "loading"
        self.on_change: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()

    def set(self, state: State) -> None:
        """It does this from now on."""
        self.now = state
        self._changed.set()
        self.on_change()

    async def leaves(self, *states: State) -> None:
        """Wait until it does none of these."""
        while self.now in states:
            await self._changed.wait()
            self._changed.clear()


class Supervisor:
    """Keeps an engine running for its tickets. All methods belong to the event loop's thread."""

    def __init__(self, options: LoadOptions, hang_s: float) -> None:
        self.options = options
        self._hang_s = hang_s
        self.status = Status()
        self.ready: protocol.Ready | None = None
        self.stats: protocol.Stats | None = None
        self.restarts = 0
        self.failure: str | None = None
        self.on_stats: Callable[[protocol.Stats], None] = lambda stats: None
        self.tickets = Tickets(self._send)
        self._engine: EngineProcess | None = None
        self._backoff = FIRST_BACKOFF_S
        self._watching = False
        self._ticking: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    @property
    def watchdog(self) -> Watchdog | None:
        """How long the engine has got nowhere, while there is one."""
        return None if self._engine is None else self._engine.watchdog

    def _send(self, command: protocol.Command) -> None:
        if self._engine is not None:
            self._engine.send(command)

    def start(self) -> None:
        """Start the process; `wait_ready` tells how it went. Raises OSError or RuntimeError when it cannot be."""
        loop = asyncio.get_running_loop()
        if self._ticking is None:
            self._ticking = loop.create_task(self._tick())

        def receive(engine: EngineProcess, event: protocol.Event | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(self._heard, engine, event)

        self._engine = EngineProcess(self.options, self._hang_s, receive)

    async def wait_ready(self) -> protocol.Ready:
        """The model, once it is loaded. Raises RuntimeError with the reason when it cannot be."""
        await self.status.leaves("loading", "restarting")
        if self.ready is None or self.status.now != "ready":
            raise RuntimeError(self.failure or "the engine did not start")
        return self.ready

    async def reload(self) -> None:
        """Replace an engine without tickets by another, which loads what the model's files are now.

        Returns when it has; or when it has died, and the next one, too, is not there after a while.
        """
        engine = self._engine
        if self.status.now == "ready" and engine is not None:  # otherwise the next one loads what is there anyway
            self._engine, self.stats = None, None
            self.status.set("reloading")
            engine.send(protocol.Stop())
            await asyncio.to_thread(engine.end)
            self._restarting = asyncio.get_running_loop().create_task(self._restart(0))
            await self.status.leaves("reloading")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self.status.leaves("restarting")

    def watch_experts(self, watching: bool) -> None:
        """Ask for routing counts, or no more."""
        self._watching = watching
        self._send(protocol.Watch(watching))

    async def stop(self) -> None:
        """End the process; what still runs is lost."""
        self.status.set("stopped")
        for task in (self._ticking, self._restarting):
            if task is not None:
                task.cancel()
        if self._engine is not None:
            self._engine.send(protocol.Stop())
            await asyncio.to_thread(self._engine.end)
        self.tickets.lose()

    # ---- what the process says -----------------------------------------------------------------------------------

    def _heard(self, engine: EngineProcess, event: protocol.Event | None) -> None:
        if engine is not self._engine or self.status.now == "stopped":
            return
        if event is None:
            self._died(engine)
            return
        engine.watchdog.heard(event)
        match event:
            case protocol.Step(outputs):
                for output in outputs:
                    self.tickets.pass_on(output)
            case protocol.Stats():
                self.stats = event
                self.on_stats(event)
            case protocol.Ready():
                if self.status.now != "loading":
                    took = time.monotonic() - engine.started
                    log.warning("the engine is ready again, %.1f s after it was started", took)
                self.ready, self.failure = event, None
                if self._watching:
                    engine.send(protocol.Watch(True))
                self.status.set("ready")
            case protocol.Hello(version):
                if version != protocol.VERSION:
                    ours = protocol.VERSION
                    engine.failure = f"the engine speaks version {version} of the messages, the web server {ours}"
                    engine.process.kill()
            case protocol.Failed(_, message):
                engine.failure = message

    # ---- its end, and the next one -----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Count the seconds without news; an engine that hangs is killed, which ends it as any death does."""
        while True:
            await asyncio.sleep(BEAT_S)
            engine = self._engine
            if self.status.now in ("failed", "stopped") or engine is None or not engine.watchdog.tick():
                continue
            self.failure = engine.failure = f"the engine got nowhere for {self._hang_s:g} s and was killed"
            log.error("%s", self.failure)
            engine.watchdog.silent_s = 0.0  # it may take a while to die
            engine.process.kill()
            self.tickets.lose()
            if self.ready is not None:
                self.status.set("restarting")

    def _died(self, engine: EngineProcess) -> None:
        self.tickets.lose()
        self.stats = None
        self._engine = None
        self.failure = engine.failure or f"the engine ended with status {engine.process.returncode}"
        if self.ready is None:  # it never ran: starting again would fail again
            self.status.set("failed")
            return
        if time.monotonic() - engine.started > STABLE_S:
            self._backoff = FIRST_BACKOFF_S
        log.error("%s; restarting in %.1f s", self.failure, self._backoff)
        self.restarts += 1
        self.status.set("restarting")
        self._restarting = asyncio.get_running_loop().create_task(self._restart(self._backoff))
        self._backoff = min(2 * self._backoff, LAST_BACKOFF_S)

    async def _restart(self, wait_s: float) -> None:
        while True:
            await asyncio.sleep(wait_s)
            try:
                return self.start()
            except (OSError, RuntimeError) as error:  # the system has no room for a process now
                self.failure = f"the engine cannot be started: {error}"
                wait_s, self._backoff = self._backoff, min(2 * self._backoff, LAST_BACKOFF_S)
                log.error("%s; trying again in %.1f s", self.failure, wait_s)
