"""/api with the real `ollama` client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ollama
import pytest
from parrot import CHATML, write_parrot

from .conftest import Server, serving

QUESTION: list[Any] = [{"role": "user", "content": "Tell me of the beginning."}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
SCRIPT = ["<think>", "They ask.", "</think>", "Let me look.\n", "<tool_call>", '\n{"name": "weather", ',
          '"arguments": {"city": "Paris"}}', "\n</tool_call>"]  # fmt: skip


@pytest.fixture(scope="module")
def client(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


def test_a_stream_says_what_the_whole_answer_says(client: ollama.Client) -> None:
    options: dict[str, Any] = {"temperature": 0, "num_predict": 8, "num_ctx": 512, "stop": ["\n\n"]}
    for model in ("colibri-demo", "colibri-demo:latest"):
        whole = client.chat(model=model, messages=QUESTION, options=options)
        lines = list(client.chat(model=model, messages=QUESTION, options=options, stream=True))
        assert "".join(line.message.content or "" for line in lines) == whole.message.content
        assert lines[-1].done and not lines[0].done
        assert (lines[-1].eval_count, lines[-1].prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)
        assert whole.done_reason == lines[-1].done_reason
        assert (whole.total_duration or 0) >= (whole.eval_duration or 0) >= 0


def test_one_prompt(client: ollama.Client) -> None:
    options: dict[str, Any] = {"temperature": 0, "num_predict": 8}
    whole = client.generate(model="colibri-demo", prompt=QUESTION[0]["content"], options=options)
    chat = client.chat(model="colibri-demo", messages=QUESTION, options=options)
    assert whole.response == chat.message.content
    stream = client.generate(model="colibri-demo", prompt=QUESTION[0]["content"], options=options, stream=True)
    assert "".join(line.response for line in stream) == whole.response
    assert client.generate(model="colibri-demo").done_reason == "load"


def test_an_answer_that_fits_a_schema(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    answer = client.chat(model="colibri-demo", messages=QUESTION, format=schema, options={"num_predict": 40})
    assert json.loads(answer.message.content or "")["a"] in (1, 2)


def test_what_is_served(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["colibri-demo"]
    assert [model.model for model in client.ps().models] == ["colibri-demo"]
    shown = client.show("colibri-demo")
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities
    assert shown.modelinfo is not None
    assert 2048 in shown.modelinfo.values()


def test_thoughts_and_calls(tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{# <think> #}" + CHATML
    path = write_parrot(tmp_path / "parrot.gguf", SCRIPT, template)
    with serving("-m", str(path)) as server:
        client = ollama.Client(host=server.url)
        options: dict[str, Any] = {
            "model": "parrot",
            "messages": QUESTION,
            "tools": [TOOL],
            "options": {"temperature": 0},
        }
        message = client.chat(**options).message
        lines = [line.message for line in client.chat(**options, stream=True)]
        assert "".join(line.thinking or "" for line in lines) == message.thinking == "They ask."
        assert "".join(line.content or "" for line in lines) == message.content == "Let me look.\n"
        for calls in (message.tool_calls, [call for line in lines for call in line.tool_calls or []]):
            assert calls is not None
            assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", {"city": "Paris"})]
        turns = [*QUESTION, message, {"role": "tool", "content": "Sunny.", "tool_name": "weather"}]
        assert client.chat(**{**options, "messages": turns}).message.tool_calls


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{**QUESTION[0], "images": ["AAAA"]}]},
        {"options": {"temperature": 9}},
        {"format": "yaml"},
        {"messages": [{"role": 3, "tool_calls": 5}]},
        {"messages": [{"role": "user", "content": {"a": 1}}]},
        {"tools": [{}]},
    ],
)
def test_a_clients_fault_is_named(server: Server, change: dict[str, Any]) -> None:
    answer = server.post("/api/chat", {"model": "colibri-demo", "messages": QUESTION, **change})
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}


def test_another_model(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not served here") as caught:
        client.chat(model="other", messages=QUESTION)
    assert caught.value.status_code == 404
