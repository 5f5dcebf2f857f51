"""What the routes share: the engine, the tokenizer, admission, and the outputs of a request."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from colibri.engine.model import model_path
from colibri.errors import ColibriError
from colibri.machine import resident_bytes
from colibri.models.registry import open_checkpoint
from colibri.server.access_log import Access, current
from colibri.server.fields import Fields
from colibri.server.in_flight import InFlight
from colibri.server.live import Live
from colibri.server.metrics import Metrics
from colibri.server.problems import ApiError, bad_request, context_exceeded, engine_lost
from colibri.server.prompt_logits import report_bytes
from colibri.server.protocol import Output, Ready, Stats, Submit
from colibri.server.response_store import ResponseStore
from colibri.server.settings import ServerSettings
from colibri.server.supervisor import Supervisor
from colibri.server.tickets import Ticket
from colibri.text import Tokenizer, load_tokenizer

CONNECTIONS_BYTES = 32 << 20  # what this process may grow by for connections, requests and answers
REPORTS_BYTES = 64 << 20  # beyond that, for what all requests want to know of their prompts' tokens
DEFAULT_REQUEST_S = 2.0  # guess of a request's time before any has ended
MAX_RETRY_S = 60
POLL_S = 0.02  # between looks at whether all requests have ended

log = logging.getLogger("colibri.server")


@dataclass(slots=True)
class _Clock:
    """When a ticket's tokens came."""

    submitted: float = field(default_factory=time.monotonic)
    last: float = 0.0
    access: Access | None = field(default_factory=current.get)


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
        self._clocks: dict[int, _Clock] = {}
        self._reports = 0  # bytes
        self._request_s = DEFAULT_REQUEST_S
        self._restarts = 0
        self._reloading: asyncio.Task[None] | None = None
        self.supervisor.tickets.on_output = self._note
        self.supervisor.on_stats = self._take_stats
        self.supervisor.on_state = lambda: self.live.health(self.health()[1])

    async def start(self) -> Ready:
        """Load the tokenizer here and then the model there. Raises ColibriError or RuntimeError.

        With --ram the engine gets what this process leaves of it, which is known once the tokenizer is there.
        """
        self.tokenizer = await asyncio.to_thread(self._load_tokenizer)
        beside = resident_bytes() + CONNECTIONS_BYTES + REPORTS_BYTES
        self.supervisor.options = replace(self.settings.load, beside=beside)
        self.supervisor.start()
        ready = await self.supervisor.wait_ready()
        self._loaded(ready)
        self._reloading = asyncio.create_task(self._reload())
        return ready

    def _loaded(self, ready: Ready) -> None:
        if self.settings.model_name is None:
            self.name = "-".join(str(ready.model["name"]).lower().split()) or "colibri"
        self.live.model(ready, self.name)

    async def _reload(self) -> None:
        """Load the model anew whenever that is wanted, and requests in flight have ended; those that come wait."""
        while await self.reload_wanted.wait():
            self.reload_wanted.clear()
            try:
                tokenizer = await asyncio.to_thread(self._load_tokenizer)
            except ColibriError as error:
                log.error("the model is not loaded again: %s", error)
                continue
            log.info("the model is loaded again when %d requests have ended", len(self.supervisor.tickets))
            self.in_flight.pause()
            self.supervisor.on_state()
            while self.in_flight.count or len(self.supervisor.tickets):
                await asyncio.sleep(POLL_S)
            await self.supervisor.reload()
            if self.supervisor.ready is not None and self.supervisor.state == "ready":
                self.tokenizer = tokenizer
                self._loaded(self.supervisor.ready)
            self.in_flight.resume()
            self.supervisor.on_state()

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

    def _load_tokenizer(self) -> Tokenizer | None:
        checkpoint = open_checkpoint(model_path(self.settings.load.path))
        try:
            tokenizer = load_tokenizer(checkpoint.tokenizer_source, checkpoint.family.pre_tokenizers)
            tokenizer.encode("")
        except ColibriError:
            return None  # the engine says whether it runs without one
        return tokenizer

    # ---- the model -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> Ready:
        """What the engine said of the model. Raises ApiError while it is not there."""
        supervisor = self.supervisor
        if supervisor.ready is None or supervisor.state != "ready":
            raise ApiError(
                503, f"The engine is {supervisor.state}.", code="engine_unavailable", headers={"Retry-After": "2"}
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

    async def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Ids of a prompt, without holding up other requests. Raises ApiError when it cannot fit into the context."""
        await asyncio.to_thread(self.check_length, text)
        ids = await asyncio.to_thread(self.text.encode, text, add_special)
        if not ids and add_special and self.text.bos_id is not None:
            return [self.text.bos_id]
        return ids

    def check_length(self, text: str) -> None:
        """Raise ApiError for a prompt that is too long for the context however it is encoded, without encoding it."""
        context = self.ready.context
        least = self.text.least_tokens(text, context)
        if least > context:
            raise context_exceeded(least, context, estimate=True)

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """Raise ApiError for ids that the model does not know."""
        size = self.vocab_size
        for position, value in enumerate(ids):
            if value >= size:
                raise bad_request(f"{field}: token id {value} at position {position}, expected 0..{size - 1}", field)
        if not ids:
            raise bad_request(f"{field}: found no tokens, expected at least one", field)

    @property
    def vocab_size(self) -> int:
        """Ids that the model knows."""
        return int(self.ready.model["vocab_size"])

    # ---- requests ------------------------------------------------------------------------------------------------

    def admit(self, count: int, reports: int = 0) -> None:
        """Raise ApiError when `count` more sequences cannot be queued, or so many bytes of reports are not there."""
        if self.draining.is_set():
            raise ApiError(503, "The server is shutting down.", code="shutting_down", headers={"Connection": "close"})
        room = self.ready.sequences + self.settings.queue
        if count > room:
            raise bad_request(f"The request asks for {count} sequences; at most {room} fit into the queue.", "n")
        if reports > REPORTS_BYTES:
            raise bad_request(
                f"What the model expected at each position of the prompt takes {reports >> 20} MiB, of "
                f"{REPORTS_BYTES >> 20} MiB; ask for fewer of the likeliest tokens, or for fewer positions at once."
            )
        if len(self.supervisor.tickets) + count > room or self._reports + reports > REPORTS_BYTES:
            self.metrics.refused.inc()
            raise ApiError(
                429, f"The queue is full: {len(self.supervisor.tickets)} requests wait or run.",
                code="queue_full", headers={"Retry-After": str(self._retry_after())},
            )  # fmt: skip

    def _retry_after(self) -> int:
        """Seconds until about one place is free: how long requests take, over how many run at once."""
        return max(1, min(MAX_RETRY_S, math.ceil(self._request_s / max(1, self.ready.sequences))))

    def submit(self, commands: Sequence[Submit]) -> Outputs:
        """Queue sequences; their outputs, together. Raises ApiError when they are refused."""
        reports = sum(report_bytes(command, self.vocab_size) for command in commands)
        self.admit(len(commands), reports)
        outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._reports += reports
        if (access := current.get()) is not None:
            access.prompted(sum(len(command.ids) for command in commands))
        tickets = [self.supervisor.tickets.submit(command, outputs) for command in commands]
        self._clocks.update((ticket.request, _Clock()) for ticket in tickets)
        return Outputs(self, tickets, outputs, reports)

    def end(self, tickets: Sequence[Ticket], reports: int) -> None:
        """Nobody waits for these any more."""
        self._reports -= reports
        left = [ticket for ticket in tickets if not ticket.done]
        for ticket in tickets:  # those that were lost with their engine have a clock, too
            self._clocks.pop(ticket.request, None)
        for ticket in left:
            self.supervisor.tickets.cancel(ticket)
        if left:
            self.metrics.cancelled.inc()

    # ---- what the engine reports ---------------------------------------------------------------------------------

    def _note(self, ticket: Ticket, output: Output) -> None:
        clock = self._clocks.get(ticket.request)
        if clock is None:
            return
        now = time.monotonic()
        if clock.access is not None:
            clock.access.went_on(len(output.tokens), computed=output.prefilled > 0)
        if output.tokens:
            self.live.tokens(len(output.tokens))
            if not clock.last:
                self.metrics.first_token.observe(now - clock.submitted)
            else:
                for _ in output.tokens:
                    self.metrics.between_tokens.observe((now - clock.last) / len(output.tokens))
            clock.last = now
        if output.finish is not None:
            self._request_s += 0.2 * (now - clock.submitted - self._request_s)
            del self._clocks[ticket.request]

    def _take_stats(self, stats: Stats) -> None:
        if self.supervisor.restarts != self._restarts:
            self._restarts = self.supervisor.restarts
            self.metrics.restarted()
        self.metrics.take(stats, self.live.rate())
        self.live.take(stats)

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /health."""
        supervisor, watchdog = self.supervisor, self.supervisor.watchdog
        state: str = supervisor.state
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
                "state": supervisor.state, "restarts": supervisor.restarts, "pending": len(supervisor.tickets),
                "silent_s": 0.0 if watchdog is None else watchdog.silent_s,
            },
        }
        if supervisor.failure is not None:
            body["reason"] = supervisor.failure
        return 200 if state == "ready" else 503, body


class Outputs:
    """The outputs of one HTTP request's sequences, for a with statement, whose end cancels what still runs."""

    def __init__(
        self, service: Service, tickets: Sequence[Ticket], queue: asyncio.Queue[Output], reports: int = 0
    ) -> None:
        self._service = service
        self._reports = reports  # bytes, of the service's
        self._tickets = tickets
        self._queue = queue
        self._index = {ticket.request: index for index, ticket in enumerate(tickets)}

    def __len__(self) -> int:
        return len(self._tickets)

    async def next(self, timeout: float | None = None) -> tuple[int, Output] | None:
        """Which sequence, and what it got. None after `timeout` seconds of silence. Raises ApiError for lost ones."""
        try:
            async with asyncio.timeout(timeout):  # wait_for of Python 3.11 loses a cancellation that comes with an item
                output = await self._queue.get()
        except TimeoutError:
            return None
        self._service.supervisor.tickets.taken(self._tickets[self._index[output.request]], output)
        if output.finish == "lost":
            raise engine_lost()
        if output.error is not None:
            raise bad_request(output.error) if output.bad_request else ApiError(500, output.error, code="engine_error")
        return self._index[output.request], output

    async def all(self) -> AsyncIterator[tuple[int, Output]]:
        """Every output until all sequences have ended."""
        left = len(self._tickets)
        while left:
            found = await self.next()
            assert found is not None
            left -= found[1].finish is not None
            yield found

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, *_: object) -> None:
        self._service.end(self._tickets, self._reports)
