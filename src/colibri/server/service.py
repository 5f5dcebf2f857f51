"""What the routes share: the engine, the tokenizer and the queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from colibri.engine.model import model_path
from colibri.errors import ColibriError
from colibri.machine import resident_bytes
from colibri.models.registry import open_checkpoint
from colibri.server.admission import REPORTS_BYTES, Admission, Outputs
from colibri.server.fields import Fields
from colibri.server.live import Live
from colibri.server.metrics import Metrics
from colibri.server.problems import ApiError, bad_request
from colibri.server.protocol import Ready, Stats, Submit
from colibri.server.reload import InFlight, reload_when_wanted
from colibri.server.response_store import ResponseStore
from colibri.server.settings import ServerSettings
from colibri.server.supervisor import Supervisor
from colibri.text import Tokenizer, load_tokenizer

CONNECTIONS_BYTES = 32 << 20  # what this process may grow by for connections, requests and answers


def tokenizer_of(path: Path | None) -> Tokenizer | None:
    """The tokenizer of a model, None where it has none that can be used. Raises ColibriError when it cannot be read."""
    checkpoint = open_checkpoint(model_path(path))
    try:
        tokenizer = load_tokenizer(checkpoint.tokenizer_source, checkpoint.family.pre_tokenizers)
        tokenizer.encode("")
    except ColibriError:
        return None  # the engine says whether it runs without one
    return tokenizer


class Service:
    """One model, served."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.supervisor = Supervisor(settings.load, settings.hang_s)
        self.metrics = Metrics()
        self.fields = Fields(settings.strict)
        self.responses = ResponseStore()
        self.live = Live(self.supervisor)
        self.draining = asyncio.Event()
        self.in_flight = InFlight()
        self.reload_wanted = asyncio.Event()
        self.created = int(time.time())
        self.tokenizer: Tokenizer | None = None
        self.name = settings.model_name or "colibri"
        self._admission = Admission(self.supervisor.tickets, self.metrics, self.live, settings.queue)
        self._restarts = 0
        self._reloading: asyncio.Task[None] | None = None
        self.supervisor.on_stats = self._take_stats
        self.supervisor.status.on_change = lambda: self.live.health(self.health()[1])

    async def start(self) -> Ready:
        """Load the tokenizer here and then the model there. Raises ColibriError or RuntimeError.

        With --ram the engine gets what this process leaves of it, which is known once the tokenizer is there.
        """
        read_tokenizer = partial(tokenizer_of, self.settings.load.path)
        self.tokenizer = await asyncio.to_thread(read_tokenizer)
        beside = resident_bytes() + CONNECTIONS_BYTES + REPORTS_BYTES
        self.supervisor.options = replace(self.settings.load, beside=beside)
        self.supervisor.start()
        ready = await self.supervisor.wait_ready()
        self._loaded(ready, self.tokenizer)
        reloading = reload_when_wanted(
            self.reload_wanted, self.in_flight, self.supervisor, read_tokenizer, self._loaded
        )  # fmt: skip
        self._reloading = asyncio.create_task(reloading)
        return ready

    def _loaded(self, ready: Ready, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        if self.settings.model_name is None:
            self.name = "-".join(str(ready.model["name"]).lower().split()) or "colibri"
        self.live.model(ready, self.name)

    async def stop(self) -> None:
        """End the engine."""
        self.drain()
        if self._reloading is not None:
            self._reloading.cancel()
        await self.supervisor.stop()

    def drain(self) -> None:
        """Take no new requests; those that wait are told so."""
        self.draining.set()
        self.in_flight.resume()

    # ---- the model -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> Ready:
        """What the engine said of the model. Raises ApiError while it is not there."""
        supervisor = self.supervisor
        if supervisor.ready is None or supervisor.status.now != "ready":
            raise ApiError(
                503, f"The engine is {supervisor.status.now}.", code="engine_unavailable", headers={"Retry-After": "2"}
            )
        return supervisor.ready

    def check_model(self, name: str | None) -> None:
        """Raise ApiError unless the request is for this model, whose name may be known only once it is loaded."""
        if name is not None and name != self.name and self.ready:
            raise ApiError(
                404, f"The model {name!r} is not served here; {self.name!r} is.", param="model", code="model_not_found"
            )

    @property
    def text(self) -> Tokenizer:
        """The tokenizer. Raises ApiError where the checkpoint has none."""
        if self.tokenizer is None:
            raise bad_request("This model has no tokenizer: give token ids to /v1/completions or /infer.")
        return self.tokenizer

    @property
    def vocab_size(self) -> int:
        """Ids that the model knows."""
        return int(self.ready.model["vocab_size"])

    # ---- requests ------------------------------------------------------------------------------------------------

    def submit(self, commands: Sequence[Submit]) -> Outputs:
        """Queue sequences; their outputs, together. Raises ApiError when they are refused."""
        if self.draining.is_set():
            raise ApiError(503, "The server is shutting down.", code="shutting_down", headers={"Connection": "close"})
        return self._admission.submit(commands, self.ready)

    # ---- what the engine reports ---------------------------------------------------------------------------------

    def _take_stats(self, stats: Stats) -> None:
        if self.supervisor.restarts != self._restarts:
            self._restarts = self.supervisor.restarts
            self.metrics.restarted()
        self.metrics.take(stats, self.live.rate())
        self.live.take(stats)

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /health."""
        supervisor, watchdog = self.supervisor, self.supervisor.watchdog
        state: str = supervisor.status.now
        if self.draining.is_set():
            state = "draining"
        elif self.in_flight.paused:
            state = "reloading"
        elif state == "ready" and watchdog is not None and watchdog.stalled:
            state = "stalled"
        body: dict[str, Any] = {
            "status": "ok" if state == "ready" else state,
            "model": self.name,
            "engine": {
                "state": supervisor.status.now, "restarts": supervisor.restarts, "pending": len(supervisor.tickets),
                "silent_s": 0.0 if watchdog is None else watchdog.silent_s,
            },
        }
        if supervisor.failure is not None:
            body["reason"] = supervisor.failure
        return 200 if state == "ready" else 503, body
