"""/v1/messages with the real `anthropic` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from parrot import CHATML, write_parrot

from .conftest import Server, serving

QUESTION: list[Any] = [{"role": "user", "content": "Tell me of the beginning."}]
TOOL: Any = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,  # otherwise the demo model may think of more
    },
}
SCRIPT = ["<think>", "They ask.", "</think>", "Let me look.\n", "<tool_call>", '\n{"name": "weather", ',
          '"arguments": {"city": "Paris"}}', "\n</tool_call>"]  # fmt: skip


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(server: Server) -> str:
    return str(server.get("/v1/models").json()["data"][0]["id"])


def test_a_stream_says_what_the_whole_message_says(client: anthropic.Anthropic, model: str) -> None:
    options: dict[str, Any] = {"model": model, "messages": QUESTION, "system": "Be brief.", "max_tokens": 16}
    whole = client.messages.create(**options, extra_body={"top_k": 1})
    with client.messages.stream(**options, extra_body={"top_k": 1}) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert (last.stop_reason, last.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert whole.stop_reason == ("max_tokens" if whole.usage.output_tokens == 16 else "end_turn")
    counted = client.messages.count_tokens(model=model, messages=QUESTION, system="Be brief.")
    read = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert counted.input_tokens == read


def test_a_stop_sequence_is_named(client: anthropic.Anthropic, model: str) -> None:
    options: dict[str, Any] = {"model": model, "messages": QUESTION, "max_tokens": 64, "stop_sequences": ["e", "a"]}
    whole = client.messages.create(**options, extra_body={"top_k": 1})
    assert whole.stop_reason == "stop_sequence"
    assert whole.stop_sequence in ("e", "a")


def test_a_forced_tool(client: anthropic.Anthropic, model: str) -> None:
    choice: Any = {"type": "tool", "name": "weather"}
    whole = client.messages.create(
        model=model, messages=QUESTION, max_tokens=100, tools=[TOOL], tool_choice=choice, extra_body={"temperature": 1}
    )
    assert whole.stop_reason == "tool_use"
    (block,) = whole.content
    assert block.type == "tool_use"
    assert (block.name, list(block.input)) == ("weather", ["city"])
    turns = [
        *QUESTION, {"role": "assistant", "content": [block.model_dump()]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "Sunny."}]},
            {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
        ]},
    ]  # fmt: skip
    assert client.messages.create(model=model, messages=turns, max_tokens=4, tools=[TOOL]).usage.output_tokens <= 4


def test_thoughts_and_calls(tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{# <think> #}" + CHATML
    path = write_parrot(tmp_path / "parrot.gguf", SCRIPT, template)
    with serving("-m", str(path)) as server, anthropic.Anthropic(base_url=server.url, api_key="none") as client:
        options: dict[str, Any] = {"model": "parrot", "messages": QUESTION, "max_tokens": 100, "tools": [TOOL]}
        whole = client.messages.create(**options)
        with client.messages.stream(**options) as stream:
            events = [event.type for event in stream]
            last = stream.get_final_message()
    for message in (whole, last):
        thought, text, call = message.content
        assert thought.type == "thinking" and thought.thinking == "They ask."
        assert text.type == "text" and text.text == "Let me look.\n"
        assert call.type == "tool_use" and call.input == {"city": "Paris"}
        assert message.stop_reason == "tool_use"
    assert events[0] == "message_start" and events[-1] == "message_stop"


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
        {"messages": []}, {"max_tokens": 0}, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"extra_body": {"temperature": 3}},
    ],
)  # fmt: skip
def test_a_clients_fault_is_named(client: anthropic.Anthropic, model: str, change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"model": model, "messages": QUESTION, "max_tokens": 4, **change}
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**options)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["error"]["message"]


def test_other_models_and_keys(server: Server, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        client.messages.create(model="other", messages=QUESTION, max_tokens=4)
    with serving(environment={"COLIBRI_API_KEY": "secret"}) as locked:
        for key, good in (("secret", True), ("wrong", False)):
            with anthropic.Anthropic(base_url=locked.url, api_key=key, max_retries=0) as other:
                if good:
                    other.messages.create(model="colibri-demo", messages=QUESTION, max_tokens=1)
                else:
                    with pytest.raises(anthropic.AuthenticationError):
                        other.messages.create(model="colibri-demo", messages=QUESTION, max_tokens=1)


def test_the_bytes_of_a_stream(server: Server) -> None:
    body = {"messages": QUESTION, "max_tokens": 3, "stream": True, "metadata": {"user_id": "me"}}
    answer = server.post("/v1/messages", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    for event in answer.text.strip().split("\n\n"):
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
