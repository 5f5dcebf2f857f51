"""Calls in a model's text, thoughts and answers: the same however the text is cut, and nothing is ever lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from colibri.server.chat_text import ChatText
from colibri.server.reasoning import ReasoningSplitter, opens_thinking, thinks
from colibri.server.tools import Call, Piece, Style, ToolParser, calls_in, forced_schema, style_of

HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TEXTS: list[tuple[Style, str, list[str | tuple[str, str]]]] = [
    ("hermes", "Hello.", ["Hello."]),
    ("hermes", HERMES, [("weather", '{"city": "Köln"}')]),
    ("hermes", f"Let me see.\n{HERMES}\n{HERMES}\n", ["Let me see.\n", *2 * [("weather", '{"city": "Köln"}')]]),
    ("hermes", f"{HERMES} and more", [("weather", '{"city": "Köln"}'), " and more"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}', [("a", "{}")]),
    ("hermes", '<tool_call>{"name": "a", "argu', ['<tool_call>{"name": "a", "argu']),
    ("hermes", "<tool_call>nonsense</tool_call> x", ["<tool_call>nonsense</tool_call> x"]),
    ("hermes", "a < b <tool_cal", ["a < b <tool_cal"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', [("a", '{"x": 1}')]),
    ("hermes", '<tool_call>{"name": "a", "arguments": null}</tool_call>', [("a", "{}")]),
    ("hermes", '<tool_call>{"name": "a", "arguments": 3}</tool_call>',
     ['<tool_call>{"name": "a", "arguments": 3}</tool_call>']),
    ("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]',
     [("a", '{"x": 1}'), ("b", "{}")]),
    ("mistral", 'First. [TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}', ["First. ", ("a", '{"x": 1}'), ("b", "{}")]),
    ("mistral", "[TOOL_CALLS][{", ["[TOOL_CALLS][{"]),
    ("json", '{"name": "a", "parameters": {"x": [1, 2]}}', [("a", '{"x": [1, 2]}')]),
    ("json", '```json\n[{"name": "a", "arguments": {}}]\n```', [("a", "{}")]),
    ("json", '{"tool_calls": [{"function": {"name": "a", "arguments": {}}}]}', [("a", "{}")]),
    ("json", '{"answer": 42}', ['{"answer": 42}']),
    ("json", '{"name": "a"', ['{"name": "a"']),
    ("json", "Plain words {really}", ["Plain words {really}"]),
    ("json", f"Words, then {HERMES}", ["Words, then ", ("weather", '{"city": "Köln"}')]),
    ("json", "", []),
]  # fmt: skip


def merged(pieces: list[Piece]) -> list[str | tuple[str, str]]:
    result: list[str | tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, Call):
            result.append((piece.name, piece.arguments))
        elif result and isinstance(result[-1], str):
            result[-1] += piece
        else:
            result.append(piece)
    return result


@pytest.mark.parametrize(("style", "text", "expected"), TEXTS)
def test_calls_are_found_however_the_text_is_cut(
    style: Style, text: str, expected: list[str | tuple[str, str]]
) -> None:
    for size in (1, 2, 3, 7, 1000):
        parser = ToolParser(style)
        pieces = [piece for start in range(0, len(text), size) for piece in parser.feed(text[start : start + size])]
        assert merged(pieces + parser.finish()) == expected


@given(
    st.sampled_from(["hermes", "mistral", "json"]),
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "{", "}", '"name"', "x", " ", "\n", "<", "["]
        )
    ),
)
def test_text_without_a_whole_call_comes_back_as_it_was(style: Style, parts: list[str]) -> None:
    text = "".join(parts)
    parser = ToolParser(style)
    pieces = [piece for letter in text for piece in parser.feed(letter)] + parser.finish()
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == text


@pytest.mark.parametrize("text", ["[]", "null", "[1]", '{"name": 3, "arguments": {}}', "[" * 100_000, '{"name": "a"}'])
def test_what_is_no_call(text: str) -> None:
    assert calls_in(text) == []


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("\n<think></think>Yes.", "", "Yes."),
        ("Yes. <think>no</think>", "", "Yes. <think>no</think>"),
        ("<think>never ends", "never ends", ""),
        ("<thin", "", "<thin"),
        ("<think>a </thin b</think>c", "a </thin b", "c"),
        ("", "", ""),
        ("\n\nYes.", "", "\n\nYes."),
    ],
)
def test_thought_and_answer(text: str, thought: str, answer: str) -> None:
    for size in (1, 2, 5, 100):
        splitter = ReasoningSplitter(enabled=True)
        found = [splitter.feed(text[start : start + size]) for start in range(0, len(text), size)]
        found.append(splitter.finish())
        assert ("".join(part for part, _ in found), "".join(part for _, part in found)) == (thought, answer)


def test_a_thought_that_the_prompt_began() -> None:
    assert opens_thinking("<|im_start|>assistant\n<think>\n")
    splitter = ReasoningSplitter(enabled=True, inside=True)
    assert splitter.feed("\nHm.\n</think>Yes.") == ("Hm.", "Yes.")


def test_a_model_that_does_not_think_says_everything() -> None:
    assert not thinks("{{ messages }}")
    text = ChatText(thinks=False, inside_thought=False, style=None)
    assert [delta.content for delta in text.feed("<think>a</think>b")] == ["<think>a</think>b"]


def test_a_call_after_a_thought() -> None:
    text = ChatText(thinks=True, inside_thought=False, style="hermes")
    deltas = [delta for letter in f"<think>Hm.</think>\n{HERMES}" for delta in text.feed(letter)] + text.finish()
    assert "".join(delta.reasoning for delta in deltas) == "Hm."
    assert [delta.call.name for delta in deltas if delta.call] == ["weather"]
    assert "".join(delta.content for delta in deltas) == ""


def test_styles_of_templates() -> None:
    assert style_of("... [TOOL_CALLS] ...") == "mistral"
    assert style_of("... <tool_call> ...") == "hermes"
    assert style_of("... tools ...") == style_of(None) == "json"


def test_the_schema_of_a_forced_call() -> None:
    tools = [{"function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]
    assert forced_schema(tools, "b")["properties"]["name"] == {"const": "b"}
    assert len(forced_schema(tools, None)["anyOf"]) == 2
    json.dumps(forced_schema(tools, None))
