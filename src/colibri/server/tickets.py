"""The sequences that an engine has to compute, and where their outputs go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from colibri.server import protocol

MOST_WAITING = 256  # tokens that wait for their client before a sequence stands still


@dataclass(slots=True, eq=False)
class Ticket:
    """One sequence. waiting: tokens that its client has not taken. held: it stands still until they are."""

    request: int
    outputs: asyncio.Queue[protocol.Output]
    done: bool = False
    waiting: int = 0
    held: bool = False


class Tickets:
    """All sequences that wait or run. Belongs to the event loop's thread; `send` reaches the engine, if it is there."""

    def __init__(self, send: Callable[[protocol.Command], None]) -> None:
        self.on_output: Callable[[Ticket, protocol.Output], None] = lambda ticket, output: None
        self._send = send
        self._tickets: dict[int, Ticket] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._tickets)

    def submit(self, command: protocol.Submit, outputs: asyncio.Queue[protocol.Output]) -> Ticket:
        """Queue a sequence, whose outputs go to the queue; its request number is given here."""
        ticket = Ticket(self._next, outputs)
        self._next += 1
        self._tickets[ticket.request] = ticket
        self._send(replace(command, request=ticket.request))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for this ticket any more; harmless when it is done."""
        if self._tickets.pop(ticket.request, None) is not None:
            self._send(protocol.Cancel(ticket.request))
        ticket.done = True

    def pass_on(self, output: protocol.Output) -> None:
        """Give an output to who waits for it, and hold the sequence when too much was not taken."""
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
            self._hold(ticket, True)

    def taken(self, ticket: Ticket, output: protocol.Output) -> None:
        """An output goes to its client: when most are taken, the sequence goes on."""
        ticket.waiting -= len(output.tokens)
        if ticket.waiting < MOST_WAITING // 4:
            self._hold(ticket, False)

    def _hold(self, ticket: Ticket, held: bool) -> None:
        if ticket.request in self._tickets and ticket.held != held:
            self._send(protocol.Hold(ticket.request, held))
            ticket.held = held

    def lose(self) -> None:
        """Every request in flight gets its end."""
        for ticket in self._tickets.values():
            ticket.done = True
            ticket.outputs.put_nowait(protocol.Output(ticket.request, finish="lost"))
        self._tickets.clear()
