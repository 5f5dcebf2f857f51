"""Conversations to prompts, through the chat template that a checkpoint brings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colibri.errors import ArgumentError, ColibriError, FormatError
from colibri.text.chat_losses import what_is_lost
from colibri.text.chat_spellings import Spelling, spellings

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ROLE_LINES = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
# A template that walks through a message's content takes the list of parts itself.
_TAKES_PARTS = re.compile(r"for\s+\w+\s+in\s+[\w\[\]'\"]*(\.content|\[['\"]content['\"]\])|for\s+\w+\s+in\s+content\b")


def fallback_template(im_start: int | None, im_end: int | None) -> str:
    """For a checkpoint without a template: ChatML where its tokens exist, else one `role: text` line a message."""
    return _ROLE_LINES if im_start is None or im_end is None else _CHATML


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation. taught: the template itself shows the tools that were offered; otherwise they are put
    into words, and calls are asked for as plain JSON."""

    text: str
    template: str
    taught: bool


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The prompt that `template` makes of a conversation.

    Raises ArgumentError for malformed messages, with the template's own message where it refuses them, and where it
    leaves out what was said; FormatError for a template that is not Jinja, leaves its sandbox, or runs or grows beyond
    its bounds.
    """
    tokens = {"bos_token": bos_token, "eos_token": eos_token}
    return chat_prompt(template, messages, tools, add_generation_prompt, {**tokens, **(variables or {})}).text


def chat_prompt(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> ChatPrompt:
    """As `render_chat`, with what is known of the prompt.

    Templates disagree on how a conversation is written down. The first of its spellings that the template takes
    without losing anything is the prompt.
    """
    conversation = [_message(index, message, template) for index, message in enumerate(_list("messages", messages))]
    offered = _plain(list(_list("tools", tools))) if tools else []
    for tool in offered:
        if not isinstance(tool, dict):
            raise ArgumentError(f"tools: found {tool!r:.80}, expected objects that describe a function")
    values: dict[str, Any] = {
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": "",
        "eos_token": "",
        **{name: _plain(value) for name, value in (variables or {}).items()},
    }

    def render(spelling: Spelling) -> str:
        return _render(template, {"messages": spelling.messages, "tools": spelling.tools or None, **values})

    problem: ArgumentError | None = None
    for spelling in spellings(conversation, offered):
        try:
            text = render(spelling)
        except ArgumentError as error:
            problem = problem or error
            continue
        missing = what_is_lost(spelling, text, render)
        if missing is None:
            return ChatPrompt(text, template, bool(spelling.tools))
        problem = problem or ArgumentError(f"{missing}, which this model's chat template leaves out of the prompt")
    assert problem is not None
    raise problem


def _render(template: str, values: dict[str, Any]) -> str:
    # Jinja is imported where it is needed: most commands never render a chat.
    from jinja2 import TemplateError
    from jinja2.exceptions import SecurityError

    from colibri.text import sandbox
    from colibri.text.template_limits import LimitError

    try:
        return sandbox.render(template, values)
    except ColibriError:
        raise
    except (SecurityError, LimitError, OverflowError) as error:
        raise FormatError(f"chat template: {str(error).rstrip('.')}; fix or replace the template") from None
    except TemplateError as error:
        raise ArgumentError(f"messages: the chat template says: {error.message or error}") from None
    except RecursionError:
        raise FormatError("chat template: calls itself without end; fix or replace the template") from None
    except MemoryError:
        raise FormatError("chat template: asks for too much memory; fix or replace the template") from None
    except Exception as error:  # a template can raise whatever Python's operators raise
        raise ArgumentError(f"messages: the chat template cannot render them ({error})") from None


def _list(name: str, values: object) -> Sequence[Any]:
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        return values
    raise ArgumentError(f"{name}: found {type(values).__name__}, expected a list")


def _message(index: int, message: object, template: str) -> dict[str, Any]:
    """Plain data, without keys that are null (templates take a missing key better)."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise ArgumentError(f"{where}: found {type(message).__name__}, expected an object with role and content")
    plain = {str(key): _plain(value) for key, value in message.items() if value is not None}
    if not isinstance(plain.get("role"), str):
        raise ArgumentError(f"{where}.role: found {plain.get('role')!r}, expected a string such as 'user'")
    if "content" in plain:
        plain["content"] = _content(where, plain["content"], template)
    calls = [_tool_call(f"{where}.tool_calls", call) for call in _list(where, plain.pop("tool_calls", ()))]
    if calls:
        plain["tool_calls"] = calls
    if not plain.get("content"):
        plain["content"] = ""
        if calls:  # an empty text says no more than none, and templates may take it for the whole answer
            del plain["content"]
    return _with_thought(plain, template)


def _with_thought(message: dict[str, Any], template: str) -> dict[str, Any]:
    """A thought under the name by which the template knows thoughts."""
    if "reasoning_content" in message and "reasoning_content" not in template:
        known = next((name for name in ("thinking", "reasoning") if _reads(template, name)), None)
        thought = message.pop("reasoning_content")
        return message if known is None else {**message, known: thought}
    return message


def _reads(template: str, name: str) -> bool:
    return re.search(rf"\w\.{name}\b|\[['\"]{name}['\"]\]|['\"]{name}['\"] in ", template) is not None


def _content(where: str, content: Any, template: str) -> Any:
    """A string; a list of text parts is joined by line ends for templates that expect a string."""
    if isinstance(content, str):
        return content
    texts = []
    for part in _list(f"{where}.content", content):
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ArgumentError(f"{where}.content: found a part of type {kind!r}; only text parts are understood")
        texts.append(part["text"])
    return content if _TAKES_PARTS.search(template) else "\n".join(texts)


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    """A call whose arguments are an object, as templates expect, whether they came as JSON text, null or an object."""
    if not isinstance(call, dict):
        raise ArgumentError(f"{where}: found {type(call).__name__}, expected objects with a function")
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ArgumentError(f"{where}: found {function!r:.80}, expected a function with a name")
    function["arguments"] = _arguments(function.get("arguments"))
    return call


def _arguments(arguments: Any) -> Any:
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments


def _plain(value: Any) -> Any:
    """Copies of JSON types only: a template never sees an object with methods of its own."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise ArgumentError(f"messages: found a {type(value).__name__}, expected JSON values")
