"""The queue of an engine: which requests are let in, when their tokens come, and who takes them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from colibri.server.access_log import Access, current
from colibri.server.live import Live
from colibri.server.metrics import Metrics
from colibri.server.problems import ApiError, bad_request, engine_lost
from colibri.server.prompt_logits import report_bytes
from colibri.server.protocol import Output, Ready, Submit
from colibri.server.tickets import Ticket, Tickets

REPORTS_BYTES = 64 << 20  # for what all requests want to know of their prompts' tokens
DEFAULT_REQUEST_S = 2.0  # guess of a request's time before any has ended
MAX_RETRY_S = 60


@dataclass(slots=True)
class _Clock:
    """When a ticket's tokens came."""

    submitted: float = field(default_factory=time.monotonic)
    last: float = 0.0
    access: Access | None = field(default_factory=current.get)


class Admission:
    """Lets sequences in, as many as fit into the queue, and counts what they take."""

    def __init__(self, tickets: Tickets, metrics: Metrics, live: Live, queue: int) -> None:
        """queue: sequences that may wait beyond those that run."""
        self._tickets = tickets
        self._metrics = metrics
        self._live = live
        self._queue = queue
        self._clocks: dict[int, _Clock] = {}
        self._reports = 0  # bytes
        self._request_s = DEFAULT_REQUEST_S
        tickets.on_output = self._note

    def submit(self, commands: Sequence[Submit], ready: Ready) -> Outputs:
        """Queue sequences; their outputs, together. Raises ApiError when they are refused."""
        reports = sum(report_bytes(command, int(ready.model["vocab_size"])) for command in commands)
        self._admit(ready, len(commands), reports)
        outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._reports += reports
        if (access := current.get()) is not None:
            access.prompted(sum(len(command.ids) for command in commands))
        tickets = [self._tickets.submit(command, outputs) for command in commands]
        self._clocks.update((ticket.request, _Clock()) for ticket in tickets)
        return Outputs(self, tickets, outputs, reports)

    def taken(self, ticket: Ticket, output: Output) -> None:
        """An output goes to its client."""
        self._tickets.taken(ticket, output)

    def end(self, tickets: Sequence[Ticket], reports: int) -> None:
        """Nobody waits for these any more."""
        self._reports -= reports
        left = [ticket for ticket in tickets if not ticket.done]
        for ticket in tickets:  # those that were lost with their engine have a clock, too
            self._clocks.pop(ticket.request, None)
        for ticket in left:
            self._tickets.cancel(ticket)
        if left:
            self._metrics.cancelled.inc()

    def _admit(self, ready: Ready, count: int, reports: int) -> None:
        """Raise ApiError when `count` more sequences cannot be queued, or so many bytes of reports are not there."""
        room = ready.sequences + self._queue
        if count > room:
            raise bad_request(f"The request asks for {count} sequences; at most {room} fit into the queue.", "n")
        if reports > REPORTS_BYTES:
            raise bad_request(
                f"What the model expected at each position of the prompt takes {reports >> 20} MiB, of "
                f"{REPORTS_BYTES >> 20} MiB; ask for fewer of the likeliest tokens, or for fewer positions at once."
            )
        if len(self._tickets) + count > room or self._reports + reports > REPORTS_BYTES:
            self._metrics.refused.inc()
            raise ApiError(
                429, f"The queue is full: {len(self._tickets)} requests wait or run.",
                code="queue_full", headers={"Retry-After": str(self._retry_after(ready))},
            )  # fmt: skip

    def _retry_after(self, ready: Ready) -> int:
        """Seconds until about one place is free: how long requests take, over how many run at once."""
        return max(1, min(MAX_RETRY_S, math.ceil(self._request_s / max(1, ready.sequences))))

    def _note(self, ticket: Ticket, output: Output) -> None:
        clock = self._clocks.get(ticket.request)
        if clock is None:
            return
        now = time.monotonic()
        if clock.access is not None:
            clock.access.went_on(len(output.tokens), computed=output.prefilled > 0)
        if output.tokens:
            self._live.tokens(len(output.tokens))
            if not clock.last:
                self._metrics.first_token.observe(now - clock.submitted)
            else:
                for _ in output.tokens:
                    self._metrics.between_tokens.observe((now - clock.last) / len(output.tokens))
            clock.last = now
        if output.finish is not None:
            self._request_s += 0.2 * (now - clock.submitted - self._request_s)
            del self._clocks[ticket.request]


class Outputs:
    """The outputs of one HTTP request's sequences, for a with statement, whose end cancels what still runs."""

    def __init__(
        self, admission: Admission, tickets: Sequence[Ticket], queue: asyncio.Queue[Output], reports: int = 0
    ) -> None:
        self._admission = admission
        self._reports = reports  # bytes, of the admission's
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
        self._admission.taken(self._tickets[self._index[output.request]], output)
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
        self._admission.end(self._tickets, self._reports)
