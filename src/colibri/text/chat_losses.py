"""Whether a prompt holds what was sent: a chat template may leave out, without a word, what it does not know.

What is there word for word is there. For the rest, which a template may trim, quote or escape, and for names, which
may be in a prompt by chance, the same conversation is rendered with marks in their places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from colibri.errors import ArgumentError
from colibri.text.chat_spellings import Message, Spelling, is_result

Render = Callable[[Spelling], str]


def what_is_lost(spelling: Spelling, text: str, render: Render) -> str | None:
    """What was sent and is not in `text`, in words; None when all is there."""
    if not spelling.tools and not any(_marked(message) for message in spelling.messages) and _said(spelling, text):
        return None
    marks = _Marks()
    marked = Spelling(
        [marks.message(index, message) for index, message in enumerate(spelling.messages)],
        [marks.tool(tool) for tool in spelling.tools],
    )
    try:
        shown = render(marked).lower()
    except ArgumentError:  # the template looks at what is said: then only the words themselves can be looked for
        missing = [what for what, words in marks.words.values() if words.strip() not in text]
        return missing[0] if missing else None
    return next((what for mark, (what, _) in marks.words.items() if mark not in shown), None)


def _marked(message: Message) -> bool:
    return bool(message.get("tool_calls")) or is_result(message)


def _said(spelling: Spelling, text: str) -> bool:
    """Whether all is there word for word; it mostly comes in order, so each search begins where the last one ended."""
    place = 0
    for message in spelling.messages:
        for part in _texts(message.get("content")):
            words = part.strip()
            found = text.find(words, place)
            if found < 0 and words not in text:
                return False
            place = max(place, found)
    return True


def _texts(content: Any) -> list[str]:
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return [part["text"] for part in parts]


class _Marks:
    """Replaces texts and names by marks, and knows what each stands for."""

    def __init__(self) -> None:
        self.words: dict[str, tuple[str, str]] = {}

    def _mark(self, what: str, words: str) -> str:
        mark = f"mark{len(self.words):06d}x"
        self.words[mark] = what, words
        return mark

    def message(self, index: int, message: Message) -> Message:
        """A message with marks; what is said beside calls may be left out, as some families do it."""
        where = f"messages[{index}]: found "
        if message.get("tool_calls"):
            return {**message, "tool_calls": [self._call(where, call) for call in message["tool_calls"]]}
        content = message.get("content")
        what = f"{where}a message of role {message['role']!r}"
        if isinstance(content, list):
            parts = [{**part, "text": self._mark(what, part["text"])} for part in content if part["text"].strip()]
            return {**message, "content": parts}
        return {**message, "content": self._mark(what, content)} if content and content.strip() else message

    def _call(self, where: str, call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function", call)
        changed = {**function, "name": self._mark(f"{where}a call of {function['name']!r}", function["name"])}
        return {**call, "function": changed} if "function" in call else {**call, **changed}

    def tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        """A tool with a mark for its name."""
        function = tool.get("function", tool)
        changed = {**function, "name": self._mark("tools: found a function", str(function.get("name")))}
        return {**tool, "function": changed} if "function" in tool else {**tool, **changed}
