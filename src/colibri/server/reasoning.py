"""Thinking apart from the answer, in a stream of text: <think>...</think> at its beginning."""

from __future__ import annotations

OPEN = "<think>"
CLOSE = "</think>"


def thinks(template: str | None) -> bool:
    """Whether a chat template belongs to a model that thinks."""
    return template is not None and (CLOSE in template or OPEN in template)


def opens_thinking(prompt: str) -> bool:
    """Whether the prompt ends inside a thought, as templates do that begin one for the model."""
    return prompt.rstrip().endswith(OPEN)


def partial(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`, not the whole of it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


class ReasoningSplitter:
    """Feed text, get (thought, answer) pieces; the result does not depend on how the text is cut."""

    def __init__(self, *, enabled: bool, inside: bool = False) -> None:
        self._state = "answer" if not enabled and not inside else "thought" if inside else "start"
        self._held = ""
        self._trim = inside  # line ends after a marker belong to neither side

    def feed(self, text: str) -> tuple[str, str]:
        """What is certain now."""
        self._held += text
        thought = answer = ""
        if self._state == "start":
            begun = self._held.lstrip()
            if begun.startswith(OPEN):
                self._held, self._state, self._trim = begun[len(OPEN) :], "thought", True
            elif OPEN.startswith(begun):  # nothing yet, or a part of the marker
                return "", ""
            else:
                self._state = "answer"
        if self._state == "thought":
            thought = self._thought()
        if self._state == "answer":
            answer = self._trimmed()
            self._held = ""
        return thought, answer

    def finish(self) -> tuple[str, str]:
        """The end of the text: what was held back."""
        rest, self._held = self._held, ""
        return (rest, "") if self._state == "thought" else ("", rest)

    def _thought(self) -> str:
        text = self._held = self._trimmed()
        place = text.find(CLOSE)
        if place >= 0:
            self._held, self._state, self._trim = text[place + len(CLOSE) :], "answer", True
            return text[:place].rstrip("\n")
        # Line ends may turn out to stand before the marker, where they are dropped.
        keep = partial(text, CLOSE)
        stripped = text[: len(text) - keep].rstrip("\n")
        self._held = text[len(stripped) :]
        return stripped

    def _trimmed(self) -> str:
        if not self._trim:
            return self._held
        text = self._held.lstrip("\n")
        if text:
            self._trim = False
        return text
