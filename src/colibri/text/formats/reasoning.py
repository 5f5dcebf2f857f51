"""Thinking apart from the answer, in a stream of text: <think>...</think> at its beginning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The marks around a thought. label: what says behind the first, in every answer, that this is a thought."""

    open: str
    close: str
    label: str = ""

    @property
    def opening(self) -> str:
        """What a thought begins with."""
        return self.open + self.label

    def begun(self, prompt: str) -> bool:
        """Whether the prompt ends inside a thought, as templates do that begin one for the model."""
        return prompt.rstrip().endswith(self.opening)


THOUGHTS = (
    Thoughts("<think>", "</think>"),
    Thoughts("[THINK]", "[/THINK]"),
    Thoughts("<|channel>", "<channel|>", "thought"),  # Gemma 4
)


def thoughts_of(template: str | None) -> Thoughts | None:
    """How the model that a chat template belongs to thinks; None for one that does not."""
    return next((marks for marks in THOUGHTS if template and (marks.open in template or marks.close in template)), None)


def partial(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`, not the whole of it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


class ReasoningSplitter:
    """Feed text, get (thought, answer) pieces; the result does not depend on how the text is cut."""

    def __init__(self, marks: Thoughts | None, *, inside: bool = False) -> None:
        self._marks = marks or THOUGHTS[0]
        self._state = "answer" if marks is None else "thought" if inside else "start"
        self._held = ""
        self._trim = inside and marks is not None  # line ends after a marker belong to neither side

    def feed(self, text: str) -> tuple[str, str]:
        """What is certain now."""
        self._held += text
        thought = answer = ""
        if self._state == "start":
            begun, opening = self._held.lstrip(), self._marks.opening
            if begun.startswith(opening):
                self._held, self._state, self._trim = begun[len(opening) :], "thought", True
            elif opening.startswith(begun):  # nothing yet, or a part of the marker
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
        place = text.find(self._marks.close)
        if place >= 0:
            self._held, self._state, self._trim = text[place + len(self._marks.close) :], "answer", True
            return text[:place].rstrip("\n")
        # Line ends may turn out to stand before the marker, where they are dropped.
        keep = partial(text, self._marks.close)
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
