"""What models of several formats say becomes thoughts, text and calls, whole and streamed, and goes back to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from parrot import CHATML, write_parrot

from .conftest import serving

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]  # fmt: skip
CODER = "{% if tools %}{{ tools | tojson }}<tool_call>\n<function=NAME>\n<parameter=KEY>{% endif %}" + CHATML
CODER_SAYS = ["Let me look.\n", "<tool_call>", "\n<function=weather>\n<parameter=city>", "\nParis\n", "</parameter>",
              "\n<parameter=days>\n3\n</parameter>", "\n</function>", "\n</tool_call>"]  # fmt: skip
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ tools | tojson }}[INST]{{ m.content }}[/INST]\n"
    "{% elif m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids of nine') }}{% endif %}{{ c.function.name }}{{ c.id }}"
    "{% endfor %}{% else %}{{ m.content }}{{ m.tool_call_id }}{% endif %}\n{% endfor %}"
)
MISTRAL_SAYS = ["[TOOL_CALLS]", '[{"name": "weather", ', '"arguments": {"city": "Paris", "days": 3}}]']
HARMONY = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|start|>{{ m.role }}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    "{# <|channel|> #}"
)
HARMONY_SAYS = [
    "<|channel|>", "analysis", "<|message|>", "They ask.", "<|end|>", "<|start|>", "assistant to=functions.weather ",
    "<|constrain|>", "json", "<|mess", 'age|>{"city": "Paris", ', '"days": 3}', "<|call|>",
]  # fmt: skip
HARMONY_CONTROL = tuple(text for text in HARMONY_SAYS if text.startswith("<|") and text.endswith("|>"))
CALL = ("weather", {"city": "Paris", "days": 3})


@pytest.fixture
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    script, template, special, starter = request.param
    model = write_parrot(tmp_path / "parrot.gguf", script, template, special=special, starter=starter)
    with serving("-m", str(model)) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made


def ask(client: openai.OpenAI, messages: list[Any], **options: Any) -> tuple[str, str, list[Any], str | None, Any]:
    """Thought, text, calls, and why it ended; the same whole and streamed."""
    given: dict[str, Any] = {"model": "parrot", "messages": messages, "temperature": 0, **options}
    whole = client.chat.completions.create(**given).choices[0]
    chunks = list(client.chat.completions.create(**given, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    thought = getattr(whole.message, "reasoning_content", None) or ""
    assert "".join(delta.content or "" for delta in deltas) == (whole.message.content or "")
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == thought
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in whole.message.tool_calls or []]
    streamed = [call.function for delta in deltas for call in delta.tool_calls or []]
    assert [(function.name, json.loads(function.arguments)) for function in streamed] == calls
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    return thought, whole.message.content or "", calls, whole.finish_reason, whole.message


@pytest.mark.parametrize("client", [(CODER_SAYS, CODER, (), "\n")], indirect=True)
def test_a_template_that_teaches_names_and_values(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "Weather?"}]
    assert ask(client, question, tools=TOOLS)[:4] == ("", "Let me look.\n", [CALL], "tool_calls")
    assert ask(client, question)[:4] == ("", "".join(CODER_SAYS), [], "stop")


@pytest.mark.parametrize("client", [(MISTRAL_SAYS, MISTRAL, ("[TOOL_CALLS]",), "\n")], indirect=True)
def test_a_call_comes_back_with_the_id_that_was_given_out(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "Weather?"}]
    *_, calls, finish, message = ask(client, question, tools=TOOLS)
    assert (calls, finish) == ([CALL], "tool_calls")
    for identity in (message.tool_calls[0].id, "call_1"):
        call = {**message.tool_calls[0].model_dump(), "id": identity}
        turns = [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": identity, "content": "7"},
        ]
        assert ask(client, [*question, *turns, *question], tools=TOOLS)[3] == "tool_calls"


TWO_CALLS = [*MISTRAL_SAYS[:2], '"arguments": {"city": "Paris", "days": 3}}, ', '{"name": "weather", "arguments": {}}]']


@pytest.mark.parametrize("client", [(TWO_CALLS, MISTRAL, ("[TOOL_CALLS]",), "\n")], indirect=True)
def test_one_call_where_several_are_not_wanted(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "Weather?"}]
    assert ask(client, question, tools=TOOLS)[2] == [CALL, ("weather", {})]
    assert ask(client, question, tools=TOOLS, parallel_tool_calls=False)[:4] == ("", "", [CALL], "tool_calls")
    tools: Any = [{"type": "function", **TOOLS[0]["function"]}]
    response = client.responses.create(model="parrot", input="Weather?", tools=tools, parallel_tool_calls=False)
    assert [item.type for item in response.output] == ["function_call"]


THINKS = CHATML + "{{ reasoning_effort }}\n"


@pytest.mark.parametrize("client", [(["fine"], THINKS, (), "\n"), (["fine"], CHATML, (), "\n")], indirect=True)
def test_an_effort_that_the_template_does_not_know_is_told(
    client: openai.OpenAI, request: pytest.FixtureRequest
) -> None:
    known = "reasoning_effort" in request.node.callspec.params["client"][1]

    def ignored(path: str, **body: Any) -> str | None:
        answer = client.post(f"{client.base_url}{path}", body={"max_tokens": 2, **body}, cast_to=httpx.Response)
        return answer.headers.get("x-colibri-ignored")

    messages = [{"role": "user", "content": "Weather?"}]
    assert ignored("chat/completions", messages=messages, reasoning_effort="high") == (
        None if known else "reasoning_effort"
    )
    assert ignored("messages", messages=messages, thinking={"type": "enabled"}) == (None if known else "thinking.type")
    for asks_nothing in ({}, {"reasoning_effort": "none"}, {"enable_thinking": False}):
        assert ignored("chat/completions", messages=messages, **asks_nothing) is None


@pytest.mark.parametrize(
    "client", [(HARMONY_SAYS, HARMONY, (*HARMONY_CONTROL, "<|return|>"), "t")],
    indirect=True,
)  # fmt: skip
def test_a_model_that_answers_on_channels(client: openai.OpenAI) -> None:
    thought, text, calls, finish, _ = ask(client, [{"role": "user", "content": "Weather?"}], tools=TOOLS)
    assert (thought, text, calls, finish) == ("They ask.", "", [CALL], "tool_calls")
