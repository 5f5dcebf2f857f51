"""Calls as JSON: in tags (Hermes, Qwen), behind a mark (Mistral), or bare, as the whole of a reply."""

from __future__ import annotations

import re
from collections.abc import Iterator

from colibri.text.formats.calls import Call, Piece, arguments_text, calls_in
from colibri.text.formats.tagged import Body, CallReader, closes, skip_space


class _JsonReader(CallReader):
    """JSON values, one after another."""

    def values(self, text: str, place: int, last: bool) -> tuple[list[Call], int] | None:
        """The calls of the values from `place` on, and the place behind them; None while one goes on."""
        calls: list[Call] = []
        while True:
            start = skip_space(text, place)
            if start == len(text) and not last:
                return None
            if text[start : start + 1] not in ("{", "["):
                return calls, place
            end = self.json_end(text, start)
            if end is None and not last:
                return None
            whole = end is not None and end >= 0
            stop = end if whole and end is not None else self._ends[start].place
            doubled = text.startswith("{{", start)  # of which the outer brace may never be closed
            found = calls_in(text[start:stop], self.new_id) if whole or doubled else []
            if not found:
                return calls, place
            calls += found
            place = stop


class HermesReader(_JsonReader):
    """<tool_call>{"name": .., "arguments": {..}}</tool_call>, several objects in one tag, too."""

    openings = ("<tool_call>",)
    closing = "</tool_call>"

    def body(self, text: str, last: bool) -> Body | None:
        """As the base class has it."""
        if not text.strip() and not last:
            return None
        found = self.values(text, 0, last)
        if found is None:
            return None
        calls, place = found
        if not calls:
            return Body()
        end = closes(text, skip_space(text, place), self.closing, last)
        return None if end is None else Body(calls, place if end < 0 else end)


class GraniteReader(HermesReader):
    """<|tool_call|>[{..}]: as far as the list goes (Granite 3)."""

    openings = ("<|tool_call|>",)
    closing = ""


class MistralReader(_JsonReader):
    """[TOOL_CALLS][{..}, {..}], or [TOOL_CALLS]name[ARGS]{..} of newer models."""

    openings = ("[TOOL_CALLS]",)
    _ARGUMENTS = "[ARGS]"
    _HEAD = re.compile(r"\s*([\w.-]{1,128})\s*(?:\[CALL_ID\][\w-]*\s*)?\[ARGS\]")
    _BEGUN = re.compile(r"\s*[\w.-]{0,128}\s*(?:\[[A-Z_]{0,7}(?:\][\w-]*\s*(?:\[[A-Z]{0,4})?)?)?")

    def body(self, text: str, last: bool) -> Body | None:
        """As the base class has it."""
        head = self._HEAD.match(text)
        if head is not None:
            return self._named(head[1], text, head.end(), last)
        if text.lstrip()[:1] in ("[", "{"):
            found = self.values(text, 0, last)
            return None if found is None else Body(found[0], found[1])
        begun = self._BEGUN.fullmatch(text)
        return None if begun is not None and not last else Body()

    def _named(self, name: str, text: str, place: int, last: bool) -> Body | None:
        start = skip_space(text, place)
        end = self.json_end(text, start) if text[start : start + 1] in ("{", "") else -1
        if end is None:
            return Body() if last else None
        arguments = arguments_text(text[start:end]) if end > 0 else None
        return Body() if arguments is None else Body([Call(name, arguments, self.new_id())], end)


class PlainReader(_JsonReader):
    """A reply that is nothing but JSON, fenced or not (Llama, and models that were told so in words).

    In a reply that begins otherwise only tags can still be calls.
    """

    _FENCE = "```json"

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._tagged: HermesReader | None = None
        self._whole = ""

    def _pieces(self, last: bool) -> Iterator[Piece]:
        if self._tagged is None:
            found = self.body(self._held, last)
            if found is None:
                return
            yield from found.calls
            self._held = self._held[found.used :]
            self._tagged = HermesReader(self.tools, self.new_id)
            self._tagged._after_call = bool(found.calls)
        held, self._held = self._held, ""
        yield from self._tagged.feed(held)
        if last:
            yield from self._tagged.finish()

    def body(self, text: str, last: bool) -> Body | None:
        """The calls that a reply begins with."""
        place = skip_space(text, 0)
        if place == len(text) or (not last and self._FENCE.startswith(text[place:])):
            return Body() if last else None
        fenced = text.startswith(self._FENCE, place)
        found = self.values(text, place + fenced * len(self._FENCE), last)
        if found is None:
            return None
        calls, place = found
        if not calls:
            return Body()
        after = skip_space(text, place)
        end = closes(text, after, "```", last) if fenced else -1 if text[after : after + 1] or last else None
        return None if end is None else Body(calls, place if end < 0 else end)
