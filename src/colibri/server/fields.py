"""Fields that a request may hold beyond those of `schema.py`.

What asks for nothing that is done differently here is taken; what would change the answer and cannot be done is
refused; every other unknown field is ignored, and the answer's header `x-colibri-ignored` says so. With --strict it is
refused, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from colibri.server.problems import bad_request
from colibri.text import Tokenizer
from colibri.text.sandbox import names_read

HEADER = "x-colibri-ignored"
MAX_NAMES = 32  # in a header
MAX_WARNED = 1000  # names that are remembered

log = logging.getLogger("colibri.server")

# Hints on caching, accounting and routing, what other servers gave out with a message, and defaults written out.
TAKEN = frozenset(
    {
        "add_generation_prompt", "annotations", "cache_control", "cache_prompt", "cache_salt", "extra_headers", "id",
        "include_reasoning", "index", "keep_alive", "litellm_metadata", "model_extra", "n_probs", "partial", "phase",
        "prediction", "priority", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "provider",
        "provider_specific_fields", "reasoning_details", "request_id", "safety_identifier", "separate_reasoning",
        "service_tier", "skip_special_tokens", "spaces_between_special_tokens", "status", "stream_reasoning",
        "thinking_blocks", "timings_per_token", "tool_stream", "transforms", "usage", "user",
    }
)  # fmt: skip
# What would be another answer, and what to do instead. A value that asks for nothing (null, false, 0, empty) is fine.
REFUSED = {
    "audio": "this model writes text only",
    "bad_words": "use logit_bias",
    "best_of": "use n",
    "continue_final_message": "use /v1/completions with the rendered prompt",
    "dry_multiplier": "use repetition_penalty",
    "echo": "use /v1/completions",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "guided_choice": "use grammar",
    "guided_grammar": "use grammar",
    "guided_json": "use response_format",
    "guided_regex": "use grammar",
    "length_penalty": "there is no beam search",
    "min_tokens": "use ignore_eos and max_tokens",
    "mirostat": "use temperature and min_p",
    "mm_processor_kwargs": "this model takes text only",
    "prompt_logprobs": "use /v1/completions with echo and logprobs",
    "stop_token_ids": "use stop",
    "structured_outputs": "use response_format or grammar",
    "suffix": "this model continues texts only at their end",
    "truncate_prompt_tokens": "shorten the prompt",
    "typical_p": "use min_p",
    "use_beam_search": "there is no beam search",
    "xtc_probability": "use min_p",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {"length_penalty": (1, 1.0), "typical_p": (1, 1.0), "best_of": (1,)}

# Fields by which the APIs ask a model to think, the values that do not, and the names that templates read instead.
_THINKING = ("reasoning_effort", "enable_thinking", "reasoning.effort", "thinking.type", "think")
_NOT_THINKING = (None, False, "none", "minimal", "disabled", "adaptive")
_VARIABLES = frozenset({"reasoning_effort", "enable_thinking", "thinking"})


class Fields:
    """Takes unknown fields out of requests; warns of each name once."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._warned: set[str] = set()

    def sift(self, body: BaseModel, tokenizer: Tokenizer | None = None) -> list[str]:
        """The names of fields that are ignored. Raises ApiError for one that is not."""
        ignored = dict.fromkeys(self._asking_to_think(body, tokenizer))
        for name, value in _take_extras(body, ""):
            plain = name.rpartition(".")[2]
            if value is None or plain in TAKEN:
                continue
            if name in REFUSED and value not in (False, 0, "", [], {}, *_NEUTRAL.get(name, ())):
                raise bad_request(f"{name}: not supported here; {REFUSED[name]}", name, "unsupported_field")
            if self._strict:
                raise bad_request(f"Unknown field: {name}", name, "unknown_field")
            if name not in REFUSED:
                ignored[name] = None
        self.warn(list(ignored))
        return list(ignored)

    def _asking_to_think(self, body: BaseModel, tokenizer: Tokenizer | None) -> list[str]:
        """The fields that ask a model to think whose templates know nothing of it."""
        asking = [path for path in _THINKING if _value(body, path) not in _NOT_THINKING]
        if not asking or tokenizer is None:
            return []
        if any(names_read(template) & _VARIABLES for template in tokenizer.chat_templates.values()):
            return []
        if self._strict:
            problem = f"{asking[0]}: this model's chat template does not tell it how much to think"
            raise bad_request(problem, asking[0], "unsupported_field")
        return asking

    def warn(self, names: list[str]) -> None:
        """Tell the operator of names that are new."""
        for name in names:
            if name not in self._warned and len(self._warned) < MAX_WARNED:
                self._warned.add(name)
                log.warning("requests have a field that is ignored: %s", _shown(name))


def _value(body: BaseModel, path: str) -> Any:
    """What a field holds, or a field of an object; None where there is none."""
    found: Any = body
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def header(names: list[str]) -> dict[str, str]:
    """The header that says what was ignored."""
    return {HEADER: ", ".join(_shown(name) for name in names[:MAX_NAMES])} if names else {}


def _shown(name: str) -> str:
    """As it may stand in a list of a header, where a value neither begins nor ends with a blank."""
    allowed = (letter.isascii() and letter.isprintable() and letter not in ", " for letter in name[:80])
    return "".join(letter if fine else "?" for letter, fine in zip(name, allowed, strict=False)) or "?"


def _take_extras(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every unknown field with its value, taken out of its object, so that no template sees it."""
    if isinstance(value, list):
        for item in value:
            yield from _take_extras(item, f"{place}[]")
    elif isinstance(value, BaseModel):
        prefix = f"{place}." if place else ""
        for name in type(value).model_fields:
            yield from _take_extras(getattr(value, name), f"{prefix}{name}")
        extras = value.__pydantic_extra__ or {}
        yield from ((f"{prefix}{name}", extra) for name, extra in list(extras.items()))
        extras.clear()
