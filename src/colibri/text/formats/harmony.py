"""Harmony, the format of gpt-oss: messages on the channels analysis, commentary and final, calls to a recipient.

    <|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}

https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from colibri.text.formats.answers import Delta
from colibri.text.formats.calls import Call, arguments_text
from colibri.text.formats.reasoning import partial

MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
FINAL = "<|channel|>final<|message|>"  # after the prompt: the answer begins at once
_MESSAGE = "<|message|>"
_ENDS = re.compile(r"<\|(?:end|call|return|start|channel)\|>")
_HEAD_BEGINS = (
    "<|channel|>",
    "<|start|>",
    "<|constrain|>",
    "<|message|>",
    "to=",
    "assistant",
    "commentary",
    "analysis",
)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


class HarmonyReader:
    """Reads what follows <|start|>assistant. A call that is no JSON object, and what has no head, is content."""

    def __init__(self) -> None:
        self._held = ""
        self._head: str | None = None  # of the message that is being read; None between messages
        self._fresh = True  # nothing of this message was passed on
        self._said: set[str] = set()  # the channels on which something was said before this message

    def feed(self, text: str) -> list[Delta]:
        """What is certain now."""
        self._held += text
        return list(self._deltas(last=False))

    def finish(self) -> list[Delta]:
        """The end of the text."""
        return list(self._deltas(last=True))

    def _deltas(self, last: bool) -> Iterator[Delta]:
        while self._held or (last and self._head is not None):
            if self._head is None and not self._take_head(last):
                if last:
                    yield Delta(content=self._held)
                    self._held = ""
                return
            assert self._head is not None
            end = _ENDS.search(self._held)
            if end is None and not last:
                yield from self._part()
                return
            body = self._held if end is None else self._held[: end.start()]
            yield from self._message(body)
            keep = 0 if end is None or end[0] in ("<|start|>", "<|channel|>") else len(end[0])
            self._held = "" if end is None else self._held[end.start() + keep :]
            self._head = None

    def _take_head(self, last: bool) -> bool:
        """Whether a message has begun; text without a head is one of its own."""
        begun = self._held.lstrip()
        known = any(begun.startswith(mark) or mark.startswith(begun) for mark in _HEAD_BEGINS)
        place = self._held.find(_MESSAGE)
        if not known:
            self._head = ""
        elif place >= 0:
            self._head, self._held = self._held[:place], self._held[place + len(_MESSAGE) :]
        else:
            return False
        self._fresh = True
        return True

    def _channel(self) -> str:
        found = _CHANNEL.search(self._head or "")
        return "reasoning" if found is not None and found[1] == "analysis" else "content"

    def _part(self) -> Iterator[Delta]:
        """What is certain of a message that goes on; a call is passed on whole."""
        if _RECIPIENT.search(self._head or ""):
            return
        keep = max(partial(self._held, mark) for mark in MARKS)
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(text) :]
        yield from self._say(text)

    def _message(self, body: str) -> Iterator[Delta]:
        recipient = _RECIPIENT.search(self._head or "")
        if recipient is None:
            yield from self._say(body)
            return
        arguments = arguments_text(body)
        if arguments is None:
            yield from self._say(f"{self._head}{_MESSAGE}{body}")
        else:
            yield Delta(call=Call(recipient[1], arguments))

    def _say(self, text: str) -> Iterator[Delta]:
        """Messages of one channel are paragraphs."""
        if not text:
            return
        channel = self._channel()
        text = f"\n\n{text}" if self._fresh and channel in self._said else text
        self._fresh = False
        self._said.add(channel)
        yield Delta(reasoning=text) if channel == "reasoning" else Delta(content=text)
