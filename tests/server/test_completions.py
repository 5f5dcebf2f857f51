"""/v1/completions and its neighbours, by plain HTTP."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from .conftest import Server

GREEDY = {"temperature": 0, "max_tokens": 12}


def events(response: httpx.Response) -> list[Any]:
    """The objects of a stream, which must end with [DONE]."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_one_line_says_where_and_what(server: Server) -> None:
    assert "colibri" in server.line
    assert "7 layers, 8 experts" in server.line
    assert server.get("/health").json()["status"] == "ok"


def test_models(server: Server) -> None:
    (model,) = server.get("/v1/models").json()["data"]
    assert server.get(f"/v1/models/{model['id']}").json() == model
    assert server.get("/v1/models/other").status_code == 404
    answer = server.post("/v1/completions", {"prompt": "a", "model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_a_stream_says_what_the_whole_reply_says(server: Server) -> None:
    body = {"prompt": "In the beginning", **GREEDY, "logprobs": 2, "echo": True}
    whole = server.post("/v1/completions", body).json()
    chunks = events(server.post("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == whole["choices"][0]["text"]
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    usage = chunks[-1]["usage"]
    assert chunks[-1]["choices"] == []
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 12)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    for key, values in whole["choices"][0]["logprobs"].items():
        assert [value for part in parts for value in part[key]] == values


def test_usage_counts_a_prompt_once(server: Server) -> None:
    ids = [7 + place % 90 for place in range(150)]
    body = {"prompt": [ids, ids[:100]], "n": 3, "max_tokens": 4, "ignore_eos": True}
    usage = server.post("/v1/completions", body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (250, 24)
    assert usage["prompt_tokens_details"]["cached_tokens"] <= 99  # what the second prompt found of the first


def test_prompts_of_every_kind(server: Server) -> None:
    text = "Once upon a time"
    ids = server.post("/tokenize", {"text": text}).json()["tokens"]
    assert server.post("/detokenize", {"ids": ids}).json()["text"] == text
    one = server.post("/v1/completions", {"prompt": text, **GREEDY}).json()["choices"][0]["text"]
    assert server.post("/v1/completions", {"prompt": ids, **GREEDY}).json()["choices"][0]["text"] == one
    for prompts in ([text, "In"], [ids, ids[:1]]):
        choices = server.post("/v1/completions", {"prompt": prompts, **GREEDY}).json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        assert choices[0]["text"] == one


def test_echo_tells_what_the_prompt_was_worth(server: Server) -> None:
    """As lm-eval asks for the likelihood of a text: echo, logprobs, hardly a new token."""
    body = {"prompt": "In the beginning God", "max_tokens": 0, "logprobs": 1, "echo": True, "temperature": 0}
    choice = server.post("/v1/completions", body).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "In the beginning God"
    assert "".join(logprobs["tokens"]) == "In the beginning God"
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"] == [0, 2, 6, 16]
    top = logprobs["top_logprobs"]
    assert top[0] is None
    assert all(len(entry) in (1, 2) for entry in top[1:])


def test_logprobs_are_of_the_models_own_distribution(server: Server) -> None:
    body = {"prompt": "In the", "max_tokens": 3, "logprobs": 5, "temperature": 0}
    plain = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    hot = {**body, "temperature": 2, "seed": 1, "logit_bias": {"300": 5}, "presence_penalty": 1}
    changed = server.post("/v1/completions", hot).json()["choices"][0]["logprobs"]
    assert list(plain["top_logprobs"][0].items())[:5] == list(changed["top_logprobs"][0].items())[:5]
    assert max(plain["top_logprobs"][0].values()) == plain["token_logprobs"][0]
    assert sum(math.exp(value) for value in plain["top_logprobs"][0].values()) < 1
    none = server.post("/v1/completions", {**body, "logprobs": 0}).json()["choices"][0]["logprobs"]
    assert none["token_logprobs"] == plain["token_logprobs"]
    assert [len(entry) for entry in none["top_logprobs"]] == [1, 1, 1]


def test_seeds(server: Server) -> None:
    body = {"prompt": "Once", "max_tokens": 12, "temperature": 1.2, "n": 3}
    first, again = (server.post("/v1/completions", {**body, "seed": 7}).json()["choices"] for _ in range(2))
    assert [choice["text"] for choice in first] == [choice["text"] for choice in again]
    assert len({choice["text"] for choice in first}) == 3
    negative = server.post("/v1/completions", {**body, "seed": -1})
    assert negative.status_code == 200


def test_a_stop_is_found_over_tokens_and_never_leaks(server: Server) -> None:
    text = server.post("/v1/completions", {"prompt": "In the", "max_tokens": 40, "temperature": 0}).json()["choices"][
        0
    ]["text"]
    stop = text[7:13]
    body = {"prompt": "In the", "max_tokens": 40, "temperature": 0, "stop": ["never there", stop]}
    whole = server.post("/v1/completions", body).json()["choices"][0]
    assert whole["finish_reason"] == "stop"
    assert whole["text"] == text[: text.index(stop)]
    chunks = events(server.post("/v1/completions", {**body, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]


def test_max_tokens(server: Server) -> None:
    context = server.get("/v1/models").json()["data"][0]["max_model_len"]
    absent = server.post("/v1/completions", {"prompt": "a", "ignore_eos": True}).json()
    assert absent["usage"]["completion_tokens"] == 16
    zero = server.post("/v1/completions", {"prompt": "a", "max_tokens": 0}).json()
    assert zero["choices"][0]["text"] == ""
    assert zero["choices"][0]["finish_reason"] == "length"
    huge = {"prompt": [5] * (context - 5), "max_tokens": 1 << 40, "ignore_eos": True}
    answer = server.post("/v1/completions", huge).json()
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context_is_refused_with_both_counts(server: Server, stream: bool) -> None:
    context = server.get("/v1/models").json()["data"][0]["max_model_len"]
    answer = server.post("/v1/completions", {"prompt": [5] * (context + 3), "stream": stream})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert str(context) in error["message"]
    assert str(context + 3) in error["message"]
    chat = {"messages": [{"role": "user", "content": "word " * 2 * context}], "stream": stream}
    answer = server.post("/v1/chat/completions", chat)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(server: Server) -> None:
    long = "word " * 400_000
    requests = {
        "/v1/completions": {"prompt": long},
        "/infer": {"prompt": long, "top_k": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": long}]},
    }
    for path, body in requests.items():
        answer = server.post(path, body)
        assert answer.status_code == 400, path
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "the prompt has at least " in answer.json()["error"]["message"]


def test_infer(server: Server) -> None:
    top = server.post("/infer", {"prompt": "In the", "top_k": 3}).json()
    assert [len(top["top"]), top["position"]] == [3, 1]
    logits = server.post("/infer", {"prompt": "In the"}).json()["logits"]
    assert len(logits) == top["vocab_size"]
    assert logits.index(max(logits)) == top["top"][0]["id"]
    every = server.post("/infer", {"prompt": "In the", "top_k": 1, "positions": "all"}).json()["positions"]
    assert [entry["position"] for entry in every] == [0, 1]
    assert every[1]["top"] == top["top"][:1]
    assert server.post("/infer", {"prompt": [5] * 2000, "positions": "all"}).status_code == 400


def test_biases_and_penalties_act(server: Server) -> None:
    body = {"prompt": "In the", "max_tokens": 6, "temperature": 0}
    forced = server.post("/v1/completions", {**body, "logit_bias": {"300": 100}, "logprobs": 0}).json()
    assert len(set(forced["choices"][0]["logprobs"]["tokens"])) == 1
    spread = server.post("/v1/completions", {**body, "max_tokens": 40, "frequency_penalty": 2, "logprobs": 0}).json()
    tokens = spread["choices"][0]["logprobs"]["tokens"]
    assert len(set(tokens)) > len(tokens) // 2


def test_a_grammar_holds(server: Server) -> None:
    body = {"prompt": "Say", "max_tokens": 30, "temperature": 2, "seed": 3, "grammar": 'start: "yes" | "no" /[0-9]{3}/'}
    texts = {choice["text"] for choice in server.post("/v1/completions", {**body, "n": 8}).json()["choices"]}
    assert all(text == "yes" or (text[:2] == "no" and text[2:].isdecimal() and len(text) == 5) for text in texts)
    gbnf = {**body, "grammar": 'root ::= "a" [0-9] "z"'}
    text = server.post("/v1/completions", gbnf).json()["choices"][0]["text"]
    assert (text[0], text[1].isdecimal(), text[2:]) == ("a", True, "z")


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: start", "no text matches it"),
        ("start: " + " | ".join(f'"{i}"' for i in range(1, 20_001)), "20001 items"),
    ],
)
def test_a_grammar_that_cannot_be_followed_says_why(server: Server, grammar: str, reason: str) -> None:
    answer = server.post("/v1/completions", {"prompt": "a", "grammar": grammar})
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]
    assert "state" not in answer.json()["error"]["message"]


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": [3, "a"]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1 << 30]}, "prompt"),
    ({"prompt": "a", "temperature": -1}, "temperature"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"),
    ({"prompt": "a", "max_tokens": -2}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
    ({"prompt": "a", "n": 0}, "n"),
    ({"prompt": "a", "n": True}, "n"),
    ({"prompt": "a", "stop": [""]}, "stop"),
    ({"prompt": "a", "stop": ["x"] * 99}, "stop"),
    ({"prompt": "a", "top_p": 1.5}, "top_p"),
    ({"prompt": "a", "logprobs": 99}, "logprobs"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"1": 1e9}}, "logit_bias.1"),
    ({"prompt": "a", "seed": 1 << 70}, "seed"),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, None),
    ({"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"prompt": "a", "best_of": 4}, None),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "grammar": "start: ("}, "grammar"),
    ({"prompt": "a", "grammar": "root ::= ("}, "grammar"),
    ({"prompt": "a", "grammar": "start: other"}, "grammar"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_a_clients_fault_is_named(server: Server, body: dict[str, Any], param: str | None) -> None:
    answer = server.post("/v1/completions", body)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param is not None:
        assert str(error["param"]).split("[")[0] == param or error["param"] == param


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b"[" * 100_000, b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
     b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": 1e999}', b'{"\\ud800": 1}'],
)  # fmt: skip
def test_a_broken_body_is_a_400(server: Server, content: bytes) -> None:
    with server.client() as client:
        answer = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_broken_surrogates_do_no_harm(server: Server) -> None:
    with server.client() as client:
        for path, content in (
            ("/v1/completions", b'{"prompt": "a \\ud800 b", "max_tokens": 2}'),
            ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\\udfff"}], "max_tokens": 2}'),
            ("/tokenize", b'{"text": "\\ud83d"}'),
        ):
            answer = client.post(path, content=content, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400)


def test_paths_and_methods_that_are_not_there(server: Server) -> None:
    assert server.get("/v1/nothing").status_code == 404
    assert server.get("/v1/completions").status_code == 405
    assert "error" in server.get("/v1/nothing").json()
    assert server.get("/page/../app.py").status_code == 404
    assert server.get("/page/%2e%2e%2fapp.py").status_code == 404
