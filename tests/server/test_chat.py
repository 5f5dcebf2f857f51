"""Chats with the real `openai` client, as programs use it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import openai
import pytest

from .conftest import Server, serving

QUESTION: list[Any] = [{"role": "user", "content": "Tell me of the beginning."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "height": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0, "maximum": 3}]},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def test_a_stream_says_what_the_whole_reply_says(client: openai.OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_prediction_changes_no_word(client: openai.OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 60}
    plain = client.chat.completions.create(**options)
    text = plain.choices[0].message.content
    for content in (text, [{"type": "text", "text": text}], "nothing of this kind"):
        found = client.chat.completions.create(**options, prediction={"type": "content", "content": content})
        assert found.choices[0].message.content == text
        assert found.usage is not None
        assert found.usage.completion_tokens_details is not None
        accepted = found.usage.completion_tokens_details.accepted_prediction_tokens
        assert accepted is not None
        assert found.usage.completion_tokens_details.rejected_prediction_tokens is not None
        assert 0 <= accepted < found.usage.completion_tokens
    with pytest.raises(openai.BadRequestError, match="prediction"):
        client.chat.completions.create(**options, prediction={"type": "content", "content": 5})  # type: ignore[typeddict-item]


def test_many_at_once_say_what_each_says_alone(server: Server, client: openai.OpenAI, model: str) -> None:
    questions = [f"Tell me of day {number}, and what was made on it." for number in range(8)]

    def options(text: str) -> dict[str, Any]:
        return {"model": model, "messages": [{"role": "user", "content": text}], "seed": 5, "max_tokens": 40}

    alone = [client.chat.completions.create(**options(text)).choices[0].message.content for text in questions]

    async def together() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as many:
            answers = await asyncio.gather(*(many.chat.completions.create(**options(text)) for text in questions))
            return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(together()) == alone


def test_an_async_stream(server: Server, model: str) -> None:
    async def text() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused") as many:
            stream = await many.chat.completions.create(model=model, messages=QUESTION, max_tokens=8, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert isinstance(asyncio.run(text()), str)


def test_logprobs(client: openai.OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 6}
    plain = client.chat.completions.create(**options, logprobs=True).choices[0].logprobs
    likely = client.chat.completions.create(**options, logprobs=True, top_logprobs=3).choices[0].logprobs
    assert plain is not None
    assert likely is not None
    assert plain.content is not None
    assert likely.content is not None
    for one, other in zip(plain.content, likely.content, strict=True):
        assert (one.token, one.logprob, one.top_logprobs) == (other.token, other.logprob, [])
        assert one.bytes is not None
        assert bytes(one.bytes).decode("utf-8", "replace") == one.token
        assert len(other.top_logprobs) == 3
        assert other.top_logprobs[0].logprob == other.logprob


def test_a_second_turn_computes_only_what_is_new(client: openai.OpenAI, model: str) -> None:
    def ask(messages: list[Any]) -> tuple[Any, int, int]:
        answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=8)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return (
            answer.choices[0].message,
            answer.usage.prompt_tokens,
            answer.usage.prompt_tokens_details.cached_tokens or 0,
        )

    chats: list[list[Any]] = [
        [{"role": "system", "content": f"You are number {number}. " + f"Rule {number} is this. " * 60}, *QUESTION]
        for number in range(2)
    ]
    for turn in range(3):
        for chat in chats:
            message, prompt, cached = ask(chat)
            assert (cached > prompt - 60) == (turn > 0)
            chat += [{"role": "assistant", "content": message.content or ""}, {"role": "user", "content": "And then?"}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call(client: openai.OpenAI, model: str, choice: Any, stream: bool) -> None:
    options: dict[str, Any] = {
        "model": model, "messages": QUESTION, "tools": [WEATHER], "tool_choice": choice, "temperature": 2, "seed": 1,
        "max_tokens": 200,
    }  # fmt: skip
    if stream:
        chunks = list(client.chat.completions.create(**options, stream=True))
        deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        name, arguments = deltas[0].function.name, "".join(delta.function.arguments or "" for delta in deltas)
        finish = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**options).choices[0]
        assert answer.message.tool_calls is not None
        (call,) = answer.message.tool_calls
        assert answer.message.content is None
        name, arguments, finish = call.function.name, call.function.arguments, answer.finish_reason
    assert (name, finish) == ("weather", "tool_calls")
    jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])


def test_a_conversation_with_calls(client: openai.OpenAI, model: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    for arguments in ('{"city": "Rome"}', "", "{", "null"):
        call["function"] = {"name": "weather", "arguments": arguments}
        messages: list[Any] = [
            *QUESTION,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        ]
        for choice in ("auto", "none"):
            answer = client.chat.completions.create(
                model=model, messages=messages, tools=[WEATHER], tool_choice=choice, max_tokens=8
            )
            assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_every_reply_fits_its_schema(client: openai.OpenAI, model: str, temperature: float) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, response_format=form, temperature=temperature, n=6, seed=2, max_tokens=400
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)


def test_json_objects(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        response_format={"type": "json_object"},
        temperature=0.5,
        seed=1,
        n=4,
        max_tokens=300,
    )
    ended = [choice.message.content or "" for choice in answer.choices if choice.finish_reason == "stop"]
    assert all(isinstance(json.loads(text), dict) for text in ended)
    assert all((choice.message.content or "").lstrip().startswith("{") for choice in answer.choices)


def schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}, {"role": "nobody", "content": "a"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"messages": [{"role": "user", "content": 3}]}, None),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None),
        ({"top_logprobs": 3}, None),
        ({"logprobs": 3}, "logprobs"),
        ({"tool_choice": "required"}, None),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (schema_format({"type": "nope"}), "response_format"),
        (schema_format({"$ref": "#/x"}), "response_format"),
        ({"functions": [{"name": "a"}]}, "functions"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"stop": [str(number) for number in range(17)]}, "stop"),
    ],
)
def test_a_clients_fault_is_named(client: openai.OpenAI, model: str, change: dict[str, Any], param: str | None) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                **{"model": model, "messages": QUESTION, "max_tokens": 4, "stream": stream, "extra_body": change}
            )
        assert caught.value.status_code == 400
        if param is not None:
            assert caught.value.param == param


def test_fields_that_clients_send_by_themselves(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "developer", "content": "Be brief."}, *QUESTION], max_completion_tokens=4,
        user="me", metadata={"a": "b"}, store=False, service_tier="auto", parallel_tool_calls=True, stop=None,
        extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "chat_template_kwargs": {"thinking": False}},
    )  # fmt: skip
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 4


def test_what_is_not_understood_is_named(client: openai.OpenAI, model: str) -> None:
    def refusal(**change: Any) -> str:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, "max_tokens": 4, **change})
        return str(caught.value.body["message"])  # type: ignore[index]

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    said = refusal(messages=[{"role": "user", "content": [{"type": "text", "text": "what"}, image]}])
    assert said == "messages[0].content: part 1 is an image, but this model takes text only"
    assert "type 'input_text'" in refusal(messages=[{"role": "user", "content": [{"type": "input_text", "text": "x"}]}])
    assert refusal(stop=[str(number) for number in range(17)]) == "stop: found 17 strings, expected at most 16"


FIELDS_OF_OPENAI: dict[str, Any] = {
    "reasoning_effort": "none", "service_tier": "flex", "prompt_cache_retention": "24h", "prompt_cache_key": "a",
    "prediction": {"type": "content", "content": "x"}, "user": "me", "metadata": {"a": "b"}, "store": False,
}  # fmt: skip
FIELDS_OF_OTHERS: dict[str, Any] = {
    "max_tokens": -1, "repeat_penalty": 1.1, "cache_prompt": True, "keep_alive": "5m", "enable_thinking": False,
    "add_generation_prompt": True, "response_format": {"type": "json_object", "schema": {"type": "object"}},
    "reasoning": {"effort": "minimal"}, "thinking": {"type": "disabled"}, "functions": [], "use_beam_search": False,
    "top_logprobs": 0,
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [*FIELDS_OF_OPENAI.items(), *FIELDS_OF_OTHERS.items()])
def test_fields_of_todays_clients(server: Server, name: str, value: Any) -> None:
    body = {"messages": QUESTION, "max_tokens": 3, "stop": ["e"], name: value}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert "x-colibri-ignored" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_fields_are_ignored_and_the_answer_says_so(server: Server, stream: bool) -> None:
    message = {**QUESTION[0], "opts": {"visible": False}, "cache_control": {"type": "ephemeral"}}
    body = {"messages": [message], "max_tokens": 3, "verbosity": "low", "a\nb": 1, "stream": stream}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200
    assert answer.headers["x-colibri-ignored"].split(", ") == ["messages[].opts", "verbosity", "a?b"]


def test_history_that_other_servers_gave_out(server: Server) -> None:
    call = {"id": "a", "type": None, "function": {"name": "f", "arguments": "{}"}}
    said: list[dict[str, Any]] = [
        {"content": [{"type": "refusal", "refusal": "no"}]},
        {"content": "a", "reasoning": "b", "reasoning_details": [{"type": "reasoning.text"}]},
        {"content": "a", "provider_specific_fields": None, "annotations": []},
        {"content": None, "refusal": "no"},
        {"content": None, "tool_calls": [call]},
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}], "id": 1},
    ]
    for message in said:
        body = {"messages": [*QUESTION, {"role": "assistant", **message}, *QUESTION], "max_tokens": 3}
        answer = server.post("/v1/chat/completions", body)
        assert (answer.status_code, answer.headers.get("x-colibri-ignored")) == (200, None), answer.text


def test_strict_refuses_what_is_ignored_otherwise() -> None:
    with serving("--strict") as server:
        answer = server.post("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 3, "verbosity": "low"})
        assert answer.status_code == 400
        assert answer.json()["error"] == {
            "message": "Unknown field: verbosity", "type": "invalid_request_error", "param": "verbosity",
            "code": "unknown_field",
        }  # fmt: skip
        body = {"messages": QUESTION, "max_tokens": 3, **FIELDS_OF_OPENAI}
        assert server.post("/v1/chat/completions", body).status_code == 200
