"""Requests, checked: a malformed field is an error that names it. Of unknown ones `fields.py` says what becomes.

Fields of the OpenAI API that ask for nothing this service does differently (user, metadata, store and the like) are
accepted where clients send them by themselves.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from colibri.config import REPETITION_PENALTIES

MAX_TOP = 20  # logprobs a token
MAX_CHOICES = 64
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_INT = 1 << 62

StopText = Annotated[str, Field(min_length=1, max_length=1024)]
TokenId = Annotated[int, Field(ge=0, le=1 << 31)]
Ids = Annotated[list[TokenId], Field(min_length=1)]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]


def _open(schema: dict[str, Any]) -> None:
    """JSON Schema allows further properties where it says nothing of them."""
    schema.pop("additionalProperties", None)


class Strict(BaseModel):
    """No numbers from texts, no NaN; unknown fields are put aside."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=(), json_schema_extra=_open
    )


_MAX_TOKENS = ("max_tokens", "max_completion_tokens")


def _is_minus_one(value: Any) -> bool:
    return type(value) is int and value == -1


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool = False


class Sampling(Strict):
    """What completions and chats have in common. temperature: 0 takes the likeliest token."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=REPETITION_PENALTIES[0], le=REPETITION_PENALTIES[1])] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)] | None = (
        None
    )
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    grammar: Annotated[str, Field(min_length=1, max_length=1 << 18)] | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _names_of_others(cls, data: Any) -> Any:
        """llama.cpp's name of a penalty, and its -1 for as many tokens as there is room for."""
        if isinstance(data, dict):
            data = {**data, **{key: MAX_INT for key in _MAX_TOKENS if _is_minus_one(data.get(key))}}
            if "repeat_penalty" in data and "repetition_penalty" not in data:
                data["repetition_penalty"] = data.pop("repeat_penalty")
        return data

    @field_validator("stop", mode="before")
    @classmethod
    def _few_stops(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise ValueError(f"found {len(value)} strings, expected at most {MAX_STOPS}")
        return value or None

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not (key.isascii() and key.isdecimal() and len(key) < 10):
                raise ValueError("found a key that is not a token id")
        return value

    @model_validator(mode="after")
    def _streaming(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream: true")
        return self


class JsonSchemaFormat(Strict):
    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """schema: that of a json_object, as llama.cpp and others have it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _schema_given(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and only with it")
        return self


class CompletionRequest(Sampling):
    """POST /v1/completions. echo: the prompt is part of the answer; with logprobs, its tokens have theirs."""

    prompt: str | Ids | Annotated[list[str], Field(min_length=1, max_length=256)] | Annotated[
        list[Ids], Field(min_length=1, max_length=256)
    ]  # fmt: skip
    max_tokens: Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: None = None

    @model_validator(mode="after")
    def _best_of(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of other than n is not supported")
        return self


class TextPart(Strict):
    type: Literal["text"]
    text: str


class RefusalPart(Strict):
    """What an answer of earlier turns may hold."""

    type: Literal["refusal"]
    refusal: str


class FunctionCall(Strict):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall
    index: int | None = None


_KINDS_OF_PARTS = {"image": "an image", "audio": "audio", "video": "a video", "file": "a file"}


class Message(Strict):
    """reasoning: as vLLM and OpenRouter call what others call reasoning_content."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Annotated[TextPart | RefusalPart, Field(discriminator="type")]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: None = None
    function_call: FunctionCall | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> Any:
        for index, part in enumerate(value if isinstance(value, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(part, dict) or kind in ("text", "refusal"):
                continue
            named = next((words for name, words in _KINDS_OF_PARTS.items() if name in str(kind)), None)
            if named is not None:
                raise ValueError(f"part {index} is {named}, but this model takes text only")
            raise ValueError(f"part {index} has the type {str(kind)[:80]!r}, expected 'text'")
        return value


class FunctionDefinition(Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class Prediction(Strict):
    """A text that most of the answer is expected to repeat, as a file that is edited."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """All of it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(Sampling):
    """POST /v1/chat/completions. chat_template_kwargs go to the template (such as enable_thinking)."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: Literal[True] | None = None

    @model_validator(mode="before")
    @classmethod
    def _ways_to_think(cls, data: Any) -> Any:
        """OpenRouter's `reasoning` and GLM's `thinking` say what reasoning_effort and enable_thinking do."""
        if not isinstance(data, dict):
            return data
        reasoning, thinking = data.get("reasoning"), data.get("thinking")
        if isinstance(reasoning, dict):
            effort = "none" if reasoning.get("enabled") is False else reasoning.get("effort")
            data = {**data, "reasoning": None, "reasoning_effort": data.get("reasoning_effort") or effort}
        if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "disabled"):
            data = {**data, "thinking": None, "enable_thinking": thinking["type"] == "enabled"}
        return data

    @model_validator(mode="after")
    def _together(self) -> ChatRequest:
        if self.tool_choice == "any":  # as Mistral's API has it
            self.tool_choice = "required"
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise ValueError("tool_choice needs tools")
        if self.grammar is not None and self.response_format is not None and self.response_format.type != "text":
            raise ValueError("grammar and response_format exclude each other")
        return self


class InferRequest(Strict):
    """POST /infer: one pass over a prompt. top_k: how many of the likeliest tokens; absent, all logits.

    positions: of the last token, or of every token.
    """

    prompt: str | Ids
    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    positions: Literal["last", "all"] = "last"
    model: str | None = None


class TokenizeRequest(Strict):
    """POST /tokenize: the ids of a text, or of a chat as its template renders it."""

    text: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special: bool = True
    pieces: bool = False
    model: str | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.text is None) == (self.messages is None):
            raise ValueError("give either text or messages")
        return self


class ErrorFields(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """What every error looks like."""

    error: ErrorFields


class DetokenizeRequest(Strict):
    """POST /detokenize: the text of ids."""

    ids: Ids
    model: str | None = None
