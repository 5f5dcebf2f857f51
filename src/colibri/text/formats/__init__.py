"""How models write their answers: thoughts, tool calls, channels."""

from colibri.text.formats.answers import AnswerReader, Delta
from colibri.text.formats.calls import Call
from colibri.text.formats.table import FORMATS, PLAIN, Format, Reading, format_of, reading_of

__all__ = [
    "FORMATS",
    "PLAIN",
    "AnswerReader",
    "Call",
    "Delta",
    "Format",
    "Reading",
    "format_of",
    "reading_of",
]
