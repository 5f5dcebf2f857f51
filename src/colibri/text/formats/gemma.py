"""Calls between marks with a quoting of their own (Gemma 4): call:NAME{key:<|"|>text<|"|>,other:[1,true]}."""

from __future__ import annotations

import json
import re
from typing import Final

from colibri.text.formats.calls import Call
from colibri.text.formats.reasoning import partial
from colibri.text.formats.tagged import Body, CallReader

BEGIN: Final = "<|tool_call>"
END: Final = "<tool_call|>"
QUOTE: Final = '<|"|>'
LONGEST: Final = 1 << 18  # characters of a call; more is text
_CALL = re.compile(r"\s*call:\s*([\w.-]+)\s*(\{.*\})\s*", re.DOTALL)
_PART = re.compile(
    r"""<\|"\|>(?P<text>.*?)<\|"\|>|"(?:[^"\\]|\\.)*"|(?P<key>[^\s{}\[\],:"<]+)(?=\s*:)|(?P<word>[A-Za-z]\w*)""",
    re.DOTALL,
)
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null", "True": "true", "False": "false",
          "None": "null"}  # fmt: skip


class GemmaReader(CallReader):
    """Quoted text is not escaped: the call ends with the first closing mark outside of it."""

    openings = (BEGIN,)

    def body(self, text: str, last: bool) -> Body | None:
        """As the base class has it."""
        end = text.find(END)
        while end >= 0 and text.count(QUOTE, 0, end) % 2:
            end = text.find(END, end + 1)
        if end < 0 and not last and len(text) <= LONGEST:
            return None
        source = text[:end] if end >= 0 else text[: len(text) - partial(text, END)]
        call = self._call(source)
        return Body() if call is None else Body([call], end + len(END) if end >= 0 else len(text))

    def _call(self, source: str) -> Call | None:
        found = _CALL.fullmatch(source) if len(source) <= LONGEST else None
        arguments = None if found is None else _as_json(found[2])
        return None if found is None or arguments is None else Call(found[1], arguments, self.new_id())


def _as_json(source: str) -> str | None:
    """The object as JSON text; None for anything else."""
    try:
        value = json.loads(_PART.sub(_part, source), strict=False, parse_constant=_refuse)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # halves of surrogate pairs are no text
    except (ValueError, RecursionError):
        return None
    return text if isinstance(value, dict) else None


def _part(found: re.Match[str]) -> str:
    if found["text"] is not None or found["key"] is not None:
        return json.dumps(found["text"] if found["text"] is not None else found["key"])
    return found[0] if found["word"] is None else _WORDS.get(found["word"], found["word"])


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON")
