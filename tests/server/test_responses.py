"""/v1/responses with the real `openai` client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from parrot import CHATML, write_parrot

from colibri.server.problems import ApiError
from colibri.server.response_store import ResponseStore, Stored

from .conftest import serving

TOOL: Any = {
    "type": "function", "name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip
SCRIPT = ["<think>", "They ask.", "</think>", "Let me look.\n", "<tool_call>", '\n{"name": "weather", ',
          '"arguments": {"city": "Paris"}}', "\n</tool_call>"]  # fmt: skip


def test_a_stream_says_what_the_whole_response_says(client: openai.OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "input": "Tell me of the beginning.", "temperature": 0}
    whole = client.responses.create(**options, max_output_tokens=12, instructions="Be brief.")
    assert whole.usage is not None
    events = list(client.responses.create(**options, max_output_tokens=12, instructions="Be brief.", stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == f"response.{whole.status}"
    assert events[-1].response.output_text == text
    assert whole.status == ("incomplete" if whole.usage.output_tokens == 12 else "completed")


def test_a_conversation_goes_on(client: openai.OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "temperature": 0, "max_output_tokens": 6}
    first = client.responses.create(**options, input="Tell me of the beginning.")
    second = client.responses.create(**options, input="And then?", previous_response_id=first.id)
    turns = [
        {"role": "user", "content": "Tell me of the beginning."}, {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": [{"type": "input_text", "text": "And then?"}]},
    ]  # fmt: skip
    spelled: Any = client.responses.create(**options, input=turns, store=False)
    assert second.output_text == spelled.output_text
    assert second.usage is not None
    assert second.usage.input_tokens == spelled.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    for gone in (first.id, spelled.id, "resp_none"):
        with pytest.raises(openai.NotFoundError):
            client.responses.create(**options, input="And then?", previous_response_id=gone)


def test_a_forced_call_and_its_result(client: openai.OpenAI, model: str) -> None:
    question: list[Any] = [{"role": "user", "content": "Weather?"}]
    options: dict[str, Any] = {"model": model, "tools": [TOOL], "temperature": 1}
    first = client.responses.create(**options, input=question, tool_choice="required")
    (call,) = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    for given in ({"input": [result], "previous_response_id": first.id}, {"input": [*question, call, result]}):
        assert client.responses.create(**options, **given, max_output_tokens=4).usage.output_tokens <= 4


def test_an_answer_that_fits_a_schema(client: openai.OpenAI, model: str) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
    answer = client.responses.create(model=model, input="Give me one.", text=form, max_output_tokens=50)
    assert json.loads(answer.output_text)["a"] in (1, 2)


def test_thoughts_and_calls(tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{# <think> #}" + CHATML
    path = write_parrot(tmp_path / "parrot.gguf", SCRIPT, template)
    options: dict[str, Any] = {"model": "parrot", "input": "Weather?", "tools": [TOOL], "temperature": 0}
    with serving("-m", str(path)) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        whole = client.responses.create(**options)
        events = list(client.responses.create(**options, stream=True))
    assert events[-1].type == "response.completed"
    for response in (whole, events[-1].response):
        thought, said, call = response.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "They ask.")
        assert (said.type, response.output_text) == ("message", "Let me look.\n")
        assert (call.type, json.loads(call.arguments)) == ("function_call", {"city": "Paris"})
    done = [event.item.type for event in events if event.type == "response.output_item.done"]
    assert done == ["reasoning", "message", "function_call"]


@pytest.mark.parametrize(
    "change",
    [
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, {"input": []},
        {"input": [{"type": "function_call", "name": "a"}]}, {"input": [{"type": "item_reference", "id": "x"}]},
        {"tools": [{"type": "web_search"}]}, {"max_output_tokens": 0}, {"input": [{"content": "x"}]},
    ],
)  # fmt: skip
def test_a_clients_fault_is_named(client: openai.OpenAI, model: str, change: dict[str, Any]) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**{"model": model, "input": "x", "stream": stream, **change})
        assert caught.value.param


def test_old_responses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.server.response_store.MAX_CHARACTERS", 200)
    store = ResponseStore()
    for number in range(9):
        store.keep(str(number), Stored([{"content": "x" * 40}], {}))
        store.find("0") if number < 3 else None
    assert store.turns("8")
    with pytest.raises(ApiError, match="not here"):
        store.find("1")
