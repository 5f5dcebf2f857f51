"""Which format a model writes its calls in: the one that its chat template teaches.

A format is a line here and a reader in a module of its own. The first whose marks are all in the template is the one;
formats that share a mark stand in the order from the more to the less particular.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from colibri.text.chat import ChatPrompt
from colibri.text.formats.answers import AnswerReader, ThoughtThenAnswer
from colibri.text.formats.calls import long_id, nine_letters
from colibri.text.formats.gemma import BEGIN as GEMMA, END as GEMMA_END, QUOTE, GemmaReader
from colibri.text.formats.harmony import FINAL, MARKS, HarmonyReader
from colibri.text.formats.hermes import GraniteReader, HermesReader, MistralReader, PlainReader
from colibri.text.formats.marked import DEEPSEEK, KIMI, MarkedReader
from colibri.text.formats.pairs import CODER, GLM, MINIMAX, PairsReader
from colibri.text.formats.python_calls import MARKS as PYTHON_MARKS, PythonReader
from colibri.text.formats.reasoning import ReasoningSplitter, thoughts_of
from colibri.text.formats.tagged import CallReader, Tools


@dataclass(frozen=True, slots=True)
class Format:
    """How calls are written. marks: what a template that teaches it holds. new_id: ids that the template takes back.

    written: marks that answers hold, where they are others.
    """

    name: str
    marks: tuple[str, ...]
    reader: Callable[[Tools, Callable[[], str]], CallReader]
    new_id: Callable[[], str] = long_id
    written: tuple[str, ...] = ()


FORMATS = (
    Format("kimi", (KIMI.section, KIMI.begin), partial(MarkedReader, KIMI)),
    Format("deepseek", (DEEPSEEK.section, DEEPSEEK.begin), partial(MarkedReader, DEEPSEEK)),
    Format("minimax", ("<minimax:tool_call>", "<invoke name="), partial(PairsReader, MINIMAX)),
    Format("glm", ("<tool_call>", "<arg_key>"), partial(PairsReader, GLM)),
    Format("coder", ("<tool_call>", "<function=", "<parameter="), partial(PairsReader, CODER)),
    Format("mistral", ("[TOOL_CALLS]",), MistralReader, nine_letters),
    Format("gemma", (GEMMA, QUOTE), GemmaReader, written=(GEMMA_END,)),
    Format("granite", ("<|tool_call|>",), GraniteReader),
    Format("hermes", ("<tool_call>",), HermesReader),
    Format("python", ("<|tool_list_start|>",), PythonReader, written=PYTHON_MARKS),
    Format("python-2.5", ("<|im_start|>", "List of tools: ["), PythonReader, written=PYTHON_MARKS),
)
PLAIN = Format("json", (), PlainReader)


def format_of(template: str | None) -> Format:
    """How the model that a chat template belongs to writes its calls."""
    return next((each for each in FORMATS if template and all(mark in template for mark in each.marks)), PLAIN)


def speaks_harmony(template: str) -> bool:
    """Whether the model that a chat template belongs to answers on channels."""
    return "<|channel|>" in template and "<|message|>" in template


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answer to a prompt is read. marks: texts that must be seen, also where they are control tokens.

    suffix: what the prompt must end with.
    """

    reader: Callable[[], AnswerReader]
    marks: tuple[str, ...] = ()
    suffix: str = ""


def reading_of(prompt: ChatPrompt, tools: Tools, *, forced: bool) -> Reading:
    """How to read what follows a prompt in which `tools` were offered. forced: a grammar makes the answer JSON."""
    harmony = speaks_harmony(prompt.template)
    if harmony and not forced:
        return Reading(HarmonyReader, MARKS)
    calls = PLAIN if forced or not prompt.taught else format_of(prompt.template)
    thoughts = None if forced or harmony else thoughts_of(prompt.template)
    inside = thoughts is not None and thoughts.begun(prompt.text)

    def reader() -> AnswerReader:
        splitter = ReasoningSplitter(thoughts, inside=inside)
        return ThoughtThenAnswer(splitter, calls.reader(tools, calls.new_id) if tools else None)

    marks = calls.marks + calls.written if tools else ()
    if thoughts is not None:
        marks += thoughts.open, thoughts.close
    return Reading(reader, marks, FINAL if harmony else "")
