"""Calls in a model's text, thoughts and answers: the same however the text is cut, and nothing is ever lost."""

# ruff: noqa: E501, RUF001 (formats as models write them)
from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from colibri.server.constraints import forced_schema
from colibri.text.chat import ChatPrompt
from colibri.text.formats import FORMATS, PLAIN, Delta, Format, format_of, reading_of
from colibri.text.formats.calls import Call, Piece, calls_in
from colibri.text.formats.harmony import HarmonyReader
from colibri.text.formats.reasoning import THOUGHTS, ReasoningSplitter, Thoughts, thoughts_of
from colibri.text.formats.tagged import CallReader
from colibri.text.formats.typed import typed

NAMED: dict[str, Format] = {each.name: each for each in (*FORMATS, PLAIN)}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "w",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"}, "days": {"type": "integer"}, "at": {"$ref": "#/$defs/place"},
                    "warm": {"type": "boolean"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "$defs": {"place": {"type": "object"}},
            },
        },
    }
]  # fmt: skip
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
CODER = "<tool_call>\n<function=w>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
GLM = "<tool_call>w\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
MINIMAX = '<minimax:tool_call>\n<invoke name="w">\n<parameter name="city">Paris</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>'
KIMI = '<|tool_calls_section_begin|><|tool_call_begin|>functions.w:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'
V3 = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>w\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
V31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>w<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
PARIS = ("w", '{"city": "Paris", "days": 3}')
ONLY = ("w", '{"city": "Paris"}')
Expected = list[str | tuple[str, str]]
TEXTS: list[tuple[str, str, Expected]] = [
    ("hermes", "Hello.", ["Hello."]),
    ("hermes", HERMES, [("weather", '{"city": "Köln"}')]),
    ("hermes", f"Let me see.\n{HERMES}\n{HERMES}\n", ["Let me see.\n", *2 * [("weather", '{"city": "Köln"}')]]),
    ("hermes", f"{HERMES} and more", [("weather", '{"city": "Köln"}'), " and more"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}', [("a", "{}")]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}</tool_ca', [("a", "{}")]),
    ("hermes", '<tool_call>{"name": "a", "argu', ['<tool_call>{"name": "a", "argu']),
    ("hermes", "<tool_call>nonsense</tool_call> x", ["<tool_call>nonsense</tool_call> x"]),
    ("hermes", "a < b <tool_cal", ["a < b <tool_cal"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', [("a", '{"x": 1}')]),
    ("hermes", '<tool_call>{"name": "a", "arguments": null}</tool_call>', [("a", "{}")]),
    ("hermes", '<tool_call>{"name": "a", "arguments": 3}</tool_call>',
     ['<tool_call>{"name": "a", "arguments": 3}</tool_call>']),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": "</tool_call> \\" <tool_call>"}}</tool_call>.',
     [("a", '{"x": "</tool_call> \\" <tool_call>"}'), "."]),
    ("hermes", '<tool_call>{{"name": "a", "arguments": {"x": 1}}}</tool_call>', [("a", '{"x": 1}')]),
    ("hermes", '<tool_call>{{"name": "a", "arguments": {"x": 1}}</tool_call>!', [("a", '{"x": 1}'), "!"]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": "1\n2"}}</tool_call>', [("a", '{"x": "1\\n2"}')]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}\n{"name": "b", "arguments": {}}\n</tool_call>',
     [("a", "{}"), ("b", "{}")]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}</tool_call>\n' + HERMES,
     ['<tool_call>{"name": "a", "arguments": {}</tool_call>\n', ("weather", '{"city": "Köln"}')]),
    ("python", '<|tool_call_start|>[w(city="Paris", days=3)]<|tool_call_end|>It is sunny.', [PARIS, "It is sunny."]),
    ("python", 'So: <|tool_call_start|>[a(), b.c(x=[-1, None, true], y={"k": "</|>\\d"})]<|tool_call_end|>',
     ["So: ", ("a", "{}"), ("b.c", '{"x": [-1, null, true], "y": {"k": "</|>\\\\d"}}')]),
    ("python", '<|tool_call_start|>w(city="Paris")<|tool_call_e', [ONLY]),
    ("python", '<|tool_call_start|>[w(city="Par', ['<|tool_call_start|>[w(city="Par']),
    *(("python", f"<|tool_call_start|>[{call}]<|tool_call_end|>.", [f"<|tool_call_start|>[{call}]<|tool_call_end|>."])
      for call in ("a(1)", "a(x=b)", "a(x=1e999)", "a(x=b'')", "a(x=f())", "a(**{})", "a", "a()()", "a(x={1: 2})",
                   "a(x=" + "[" * 300 + "]" * 300 + ")", "a(x='\\ud800')", "a(x=-'b')", "a(x=1)(", "")),
    ("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]',
     [("a", '{"x": 1}'), ("b", "{}")]),
    ("mistral", 'First. [TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}', ["First. ", ("a", '{"x": 1}'), ("b", "{}")]),
    ("mistral", '[TOOL_CALLS]a[CALL_ID]abcDEF123[ARGS]{"x": "[TOOL_CALLS]"}', [("a", '{"x": "[TOOL_CALLS]"}')]),
    ("mistral", "[TOOL_CALLS][{", ["[TOOL_CALLS][{"]),
    ("gemma", '<|tool_call>call:w{city:<|"|>Paris<|"|>,days:3}<tool_call|>', [PARIS]),
    ("gemma", 'Hm.<|tool_call>call:w{city:<|"|>Paris<|"|>,days:3}<tool_call|><|tool_call>call:x{}<tool_call|>',
     ["Hm.", PARIS, ("x", "{}")]),
    ("gemma", '<|tool_call>call:a{x:<|"|>a "b": {<tool_call|>, true\n<|"|>,<|"|>k y<|"|>:[1,-2.5e3,{z:null}],t:true}<tool_call|>.',
     [("a", '{"x": "a \\"b\\": {<tool_call|>, true\\n", "k y": [1, -2500.0, {"z": null}], "t": true}'), "."]),
    ("gemma", '<|tool_call>call:a{"x":"y: z"}', [("a", '{"x": "y: z"}')]),
    ("gemma", '<|tool_call>call:a{url:<|"|>http://x:8/<|"|>}<tool_c', [("a", '{"url": "http://x:8/"}')]),
    *(("gemma", f"<|tool_call>{call}<tool_call|>", [f"<|tool_call>{call}<tool_call|>"])
      for call in ("call:a", "call:a{x:}", "call:a{x:1", 'call:a{x:<|"|>b}', "a{}", "call:a{x:NaN}", "call:a{x:word}", "call:a[1]",
                   "call:a{x:" + "[" * 3000 + "]" * 3000 + "}", "")),
    ("granite", '<|tool_call|>[{"name": "a", "arguments": {}}]', [("a", "{}")]),
    ("coder", CODER, [PARIS]),
    ("coder", f"Hm.\n{CODER}\n{CODER}", ["Hm.\n", PARIS, PARIS]),
    ("coder", CODER.removeprefix("<tool_call>\n"), [PARIS]),
    ("coder", CODER.removesuffix("\n</tool_call>"), [PARIS]),
    ("coder", CODER[:60], [CODER[:60]]),
    ("coder", CODER.replace("Paris", "</parameter> in </function> text"),
     [("w", '{"city": "</parameter> in </function> text", "days": 3}')]),
    ("coder", "<tool_call>\n<function=x>\n</function>\n</tool_call>.", [("x", "{}"), "."]),
    ("coder", "<function=w>is a tag", ["<function=w>is a tag"]),
    ("coder", HERMES, [("weather", '{"city": "Köln"}')]),
    ("glm", GLM, [PARIS]),
    ("glm", GLM.replace("\n", ""), [PARIS]),
    ("glm", f"{GLM}\n{GLM}", [PARIS, PARIS]),
    ("glm", "<tool_call>x\n</tool_call>", [("x", "{}")]),
    ("minimax", MINIMAX, [PARIS]),
    ("minimax", MINIMAX.replace("</minimax", '<invoke name="x">\n</invoke>\n</minimax'), [PARIS, ("x", "{}")]),
    ("kimi", KIMI, [ONLY]),
    ("kimi", KIMI[:-60], [KIMI[:-60]]),
    ("deepseek", f"Hm. {V3}", ["Hm. ", ONLY]),
    ("deepseek", V31, [ONLY]),
    ("deepseek", V31.replace("<｜tool▁calls▁end｜>", "") + V31[V31.index("<｜tool▁call▁b"):], [ONLY, ONLY]),
    ("json", '{"name": "a", "parameters": {"x": [1, 2]}}', [("a", '{"x": [1, 2]}')]),
    ("json", '```json\n[{"name": "a", "arguments": {}}]\n```', [("a", "{}")]),
    ("json", '{"tool_calls": [{"function": {"name": "a", "arguments": {}}}]}', [("a", "{}")]),
    ("json", '{"name": "a", "arguments": {}} and words', [("a", "{}"), " and words"]),
    ("json", '{"answer": 42}', ['{"answer": 42}']),
    ("json", '{"name": "a"', ['{"name": "a"']),
    ("json", "Plain words {really}", ["Plain words {really}"]),
    ("json", f"Words, then {HERMES}", ["Words, then ", ("weather", '{"city": "Köln"}')]),
    ("json", "", []),
]  # fmt: skip


THINK: Thoughts = THOUGHTS[0]


def reader(name: str) -> CallReader:
    return NAMED[name].reader(TOOLS, NAMED[name].new_id)


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


@pytest.mark.parametrize(("name", "text", "expected"), TEXTS)
def test_calls_are_found_however_the_text_is_cut(name: str, text: str, expected: Expected) -> None:
    for size in (1, 2, 3, 7, 1000):
        parser = reader(name)
        pieces = [piece for start in range(0, len(text), size) for piece in parser.feed(text[start : start + size])]
        assert merged(pieces + parser.finish()) == expected, size


MARKS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "{", "}", '"name"', "x", " ", "\n", "<", "[", "<function=",
    "<function=a>", "<parameter=b>", "</parameter>", "<arg_key>", "</arg_value>", "<minimax:tool_call>", "<invoke name=",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<｜tool▁calls▁begin｜>", "<|tool_call|>", "```json", "\\",
    "<|tool_call_start|>", "<|tool_call_end|>", "a(", "<|tool_call>", "<tool_call|>", '<|"|>', "call:a{",
]  # fmt: skip


@given(st.sampled_from(sorted(NAMED)), st.lists(st.sampled_from(MARKS)))
def test_text_without_a_whole_call_comes_back_as_it_was(name: str, parts: list[str]) -> None:
    text = "".join(parts)
    parser, whole = reader(name), reader(name)
    pieces = [piece for letter in text for piece in parser.feed(letter)] + parser.finish()
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == text
    assert merged(pieces) == merged(whole.feed(text) + whole.finish())


@given(st.sampled_from(TEXTS), st.data())
def test_a_stream_says_what_the_whole_says(case: tuple[str, str, Expected], data: st.DataObject) -> None:
    name, text, _ = case
    cut = data.draw(st.integers(0, len(text)))
    places = sorted(data.draw(st.lists(st.integers(0, cut), max_size=9)))
    parser, whole = reader(name), reader(name)
    pieces = [
        piece for start, end in zip([0, *places], [*places, cut], strict=True) for piece in parser.feed(text[start:end])
    ]
    assert merged(pieces + parser.finish()) == merged(whole.feed(text[:cut]) + whole.finish())


def test_long_arguments_take_time_in_proportion() -> None:
    source = 'if (a[0]) { b(\\"x\\"); } ' * 4000
    text = f'<tool_call>{{"name": "w", "arguments": {{"city": "{source}"}}}}</tool_call>'
    parser, started = reader("hermes"), time.process_time()
    pieces = [piece for start in range(0, len(text), 4) for piece in parser.feed(text[start : start + 4])]
    assert time.process_time() - started < 5
    assert [piece.name for piece in pieces if isinstance(piece, Call)] == ["w"]


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
        splitter = ReasoningSplitter(THINK)
        found = [splitter.feed(text[start : start + size]) for start in range(0, len(text), size)]
        found.append(splitter.finish())
        assert ("".join(part for part, _ in found), "".join(part for _, part in found)) == (thought, answer)


def test_a_thought_that_the_prompt_began() -> None:
    assert THINK.begun("<|im_start|>assistant\n<think>\n")
    splitter = ReasoningSplitter(THINK, inside=True)
    assert splitter.feed("\nHm.\n</think>Yes.") == ("Hm.", "Yes.")


def read(template: str, text: str, *, prompt: str = "", tools: Any = TOOLS, taught: bool = True) -> list[Delta]:
    answer = reading_of(ChatPrompt(prompt, template, taught), tools, forced=False).reader()
    return [delta for letter in text for delta in answer.feed(letter)] + answer.finish()


def said(deltas: list[Delta]) -> tuple[str, str, list[tuple[str, str]]]:
    calls = [(delta.call.name, delta.call.arguments) for delta in deltas if delta.call is not None]
    return "".join(delta.reasoning for delta in deltas), "".join(delta.content for delta in deltas), calls


def test_a_model_that_does_not_think_says_everything() -> None:
    assert thoughts_of("{{ messages }}") is None
    assert said(read("{{ messages }}", "<think>a</think>b", tools=[])) == ("", "<think>a</think>b", [])


GEMMA = r"{{- '<|turn>model\n' -}}{%- if not enable_thinking -%}{{- '<|channel>thought\n<channel|>' -}}{%- endif -%}"


@pytest.mark.parametrize(("text", "thought", "answer"), [
    ("<|channel>thought\nHm.\n\nYes.\n<channel|>Two.", "Hm.\n\nYes.", "Two."),
    ("<|channel>thought\n<channel|>Two.", "", "Two."),
    ("Two.", "", "Two."),
    ("<|channel>other", "", "<|channel>other"),
])  # fmt: skip
def test_a_thought_that_says_it_is_one(text: str, thought: str, answer: str) -> None:
    marks = thoughts_of(GEMMA)
    assert marks is not None and not marks.begun("<|turn>model\n<|channel>thought\n<channel|>")
    for cut in range(1, len(text) + 1):
        splitter = ReasoningSplitter(marks)
        pieces = [splitter.feed(text[at : at + cut]) for at in range(0, len(text), cut)]
        assert tuple("".join(parts) for parts in zip(*pieces, splitter.finish(), strict=True)) == (thought, answer)


def test_a_call_after_a_thought() -> None:
    template = "<think></think><tool_call>"
    weather = ("weather", '{"city": "Köln"}')
    assert said(read(template, f"<think>Hm.</think>\n{HERMES}")) == ("Hm.", "", [weather])
    assert said(read(template, f"Hm.</think>\n{HERMES}", prompt="<think>\n")) == ("Hm.", "", [weather])
    magistral = "[THINK][/THINK][TOOL_CALLS]"
    assert said(read(magistral, '[THINK]Hm.[/THINK][TOOL_CALLS]w[ARGS]{"city": "Paris"}')) == ("Hm.", "", [ONLY])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... [TOOL_CALLS] ...", "mistral"),
        ("... <tool_call> ...", "hermes"),
        ("<tool_call>\n<function=NAME>\n<parameter=KEY>", "coder"),
        ("<tool_call>{name}\n<arg_key>{k}</arg_key>\n<arg_value>", "glm"),
        ('<minimax:tool_call><invoke name="x">', "minimax"),
        ("List of tools: <|tool_list_start|>[", "python"),
        ("<|im_start|>List of tools: [", "python-2.5"),
        ('<|tool_call>call: ... <|"|> ... <tool_call|>', "gemma"),
        ("... tools ...", "json"),
        (None, "json"),
    ],
)
def test_the_format_is_what_the_template_teaches(template: str | None, name: str) -> None:
    assert format_of(template).name == name


def test_marks_of_answers_are_seen_where_the_template_has_others() -> None:
    template = "<think></think>List of tools: <|tool_list_start|>["
    prompt = ChatPrompt(template=template, text="", taught=True)
    marks = reading_of(prompt, TOOLS, forced=False).marks
    assert {"<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"} <= set(marks)
    assert "<|tool_call_start|>" not in reading_of(prompt, [], forced=False).marks


def test_a_template_that_was_not_used_for_tools_teaches_nothing() -> None:
    text = '{"name": "w", "arguments": {"city": "Paris"}}'
    assert said(read("[TOOL_CALLS]", text, taught=False)) == ("", "", [ONLY])


def test_mistral_gives_ids_that_its_templates_take() -> None:
    (call,) = (piece for piece in reader("mistral").feed("[TOOL_CALLS]a[ARGS]{}") if isinstance(piece, Call))
    assert len(call.id) == 9 and call.id.isalnum()
    (kimi,) = (piece for piece in reader("kimi").feed(KIMI) if isinstance(piece, Call))
    assert kimi.id == "functions.w:0"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("3", "city", "3"), ("3", "days", 3), ("3.0", "days", 3), ("three", "days", "three"), ("True", "warm", True),
        ('{"x": [1]}', "at", {"x": [1]}), ("null", "note", None), ("nil", "note", "nil"), ("7", "note", "7"),
        ("[1]", "unknown", "[1]"), ("[" * 100_000, "at", "[" * 100_000), ("NaN", "days", "NaN"),
    ],
)  # fmt: skip
def test_values_get_the_types_of_the_schema(text: str, name: str, value: Any) -> None:
    found = typed(text, name, TOOLS[0]["function"]["parameters"])
    assert found == value and type(found) is type(value)


HARMONY = "<|start|><|channel|><|message|>"
HARMONY_TEXTS: list[tuple[str, tuple[str, str, list[tuple[str, str]]]]] = [
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
     ("Hm.", "Yes.", [])),
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.w "
     '<|constrain|>json<|message|>{"city": "Paris"}<|call|>', ("Hm.", "", [ONLY])),
    (' to=functions.w<|channel|>commentary json<|message|>{"city": "Paris"}', ("", "", [ONLY])),
    ("<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>commentary to=functions.w"
     '<|message|>{"city": "Paris"}<|call|>', ("", "Let me look.", [ONLY])),
    ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>",
     ("a\n\nb", "", [])),
    ("<|channel|>final<|message|>a < b <|mess", ("", "a < b <|mess", [])),
    ("Without a head.", ("", "Without a head.", [])),
    ("<|channel|>commentary to=functions.w<|message|>{\"city\": \"Pa",
     ("", '<|channel|>commentary to=functions.w<|message|>{"city": "Pa', [])),
    ("<|channel|>fin", ("", "<|channel|>fin", [])),
    ("", ("", "", [])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), HARMONY_TEXTS)
def test_harmony(text: str, expected: tuple[str, str, list[tuple[str, str]]]) -> None:
    assert said(read(HARMONY, text)) == expected
    for size in (2, 5, 1000):
        answer = HarmonyReader()
        deltas = [delta for start in range(0, len(text), size) for delta in answer.feed(text[start : start + size])]
        assert said(deltas + answer.finish()) == expected


def test_harmony_is_seen_and_a_forced_answer_is_on_its_channel() -> None:
    free = reading_of(ChatPrompt("", HARMONY, True), [], forced=False)
    assert "<|channel|>" in free.marks and not free.suffix
    forced = reading_of(ChatPrompt("", HARMONY, True), TOOLS, forced=True)
    assert forced.suffix == "<|channel|>final<|message|>"
    answer = forced.reader()
    assert said(answer.feed('{"name": "w", "arguments": {"city": "Paris"}}') + answer.finish()) == ("", "", [ONLY])


def test_the_schema_of_a_forced_call() -> None:
    tools = [{"function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]
    assert forced_schema(tools, "b")["properties"]["name"] == {"const": "b"}
    assert len(forced_schema(tools, None)["anyOf"]) == 2
    json.dumps(forced_schema(tools, None))
