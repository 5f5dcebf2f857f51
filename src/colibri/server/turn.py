"""One answer for an API other than OpenAI's chats: its request as a chat, the answer in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from colibri.server.admission import Outputs
from colibri.server.chat import Choice, Plan, begin
from colibri.server.problems import json_response, validation_problem
from colibri.server.protocol import Output
from colibri.server.replies import Usage
from colibri.server.schema import ChatRequest
from colibri.server.service import Service
from colibri.server.streaming import EventStream, Wire, stream, unless_left
from colibri.text.formats import Call, Delta

Kind = Literal["thought", "text", "call"]


@dataclass(slots=True)
class Part:
    """A stretch of an answer that is of one kind."""

    kind: Kind
    text: str = ""
    call: Call | None = None


class Turn(ABC):
    """An answer as it grows; a kind of API says how its beginning, its parts and its end are written."""

    def __init__(self, service: Service, plan: Plan) -> None:
        self.service = service
        self.parts: list[Part] = []
        self.choice = Choice(plan)
        self._usage = Usage([len(plan.ids)], 1)

    @property
    def usage(self) -> dict[str, Any]:
        """Counts, as OpenAI's chats have them."""
        return self._usage.as_dict()

    def take(self, index: int, output: Output) -> list[dict[str, Any]]:
        """The objects of a stream for one output."""
        self._usage.take(index, output)
        deltas = self.choice.take(output)
        self._usage.reasoning += len(output.tokens) if deltas and all(delta.reasoning for delta in deltas) else 0
        return [made for delta in deltas for made in self._grow(delta)]

    def _grow(self, delta: Delta) -> list[dict[str, Any]]:
        kind: Kind = "call" if delta.call is not None else "thought" if delta.reasoning else "text"
        made: list[dict[str, Any]] = []
        if kind == "call" or not self.parts or self.parts[-1].kind != kind:
            made += self.close()
            self.parts.append(Part(kind, call=delta.call))
            made += self.open_part(self.parts[-1])
        text = delta.call.arguments if delta.call is not None else delta.reasoning or delta.content
        self.parts[-1].text += text
        return made + self.grow_part(self.parts[-1], text)

    def close(self) -> list[dict[str, Any]]:
        """The last part is whole."""
        return self.close_part(self.parts[-1]) if self.parts else []

    def begin(self) -> list[dict[str, Any]]:
        """What comes before the first part."""
        return []

    def open_part(self, part: Part) -> list[dict[str, Any]]:
        """A part begins."""
        return []

    @abstractmethod
    def grow_part(self, part: Part, text: str) -> list[dict[str, Any]]:
        """A part has this more; a call comes whole."""

    def close_part(self, part: Part) -> list[dict[str, Any]]:
        """A part is whole."""
        return []

    @abstractmethod
    def end(self) -> list[dict[str, Any]]:
        """What comes after the last part."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer that is not streamed."""


def chat_request(fields: dict[str, Any]) -> ChatRequest:
    """A chat of fields, of which those that are None are left out. Raises ApiError for what is malformed."""
    try:
        return ChatRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise validation_problem(error.errors()) from None


async def answer(
    service: Service, request: Request, body: ChatRequest, make: Callable[[Plan], Turn], wire: Wire
) -> Response:
    """Run a chat; the answer as an API writes it, streamed where the chat asks for it."""
    plan, outputs = await begin(service, body)
    turn = make(plan)
    if body.stream:
        return EventStream(stream(outputs, turn, service.settings.keep_alive_s, wire), outputs, wire)
    return await unless_left(request, _whole(outputs, turn))


async def _whole(outputs: Outputs, turn: Turn) -> Response:
    with outputs:
        async for index, output in outputs.all():
            turn.take(index, output)
    return json_response(turn.whole())
