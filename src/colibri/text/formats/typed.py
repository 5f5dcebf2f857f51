"""Arguments that a model writes as text get the types that the tool's schema gives them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}  # as Python writes them, too
_KINDS: tuple[tuple[str, Any], ...] = (
    ("null", type(None)), ("boolean", bool), ("integer", int), ("number", (int, float)), ("string", str),
    ("array", list), ("object", dict),
)  # fmt: skip


def typed(text: str, name: str, schema: dict[str, Any]) -> Any:
    """The value that `text` stands for in the argument `name` of an object with this schema."""
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, dict) else None
    kinds = _kinds(found, schema, 8)
    if kinds <= {"string"}:  # or nothing is known of it
        return text
    value = _value(text.strip())
    if value is not None or text.strip().lower() in ("null", "none"):
        if isinstance(value, float) and value.is_integer() and "integer" in kinds and "number" not in kinds:
            value = int(value)
        if "string" not in kinds or _kind_names(value) & (kinds - {"string"}):
            return value
    return text


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text, strict=False, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _kind_names(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    return {name for name, kind in _KINDS if isinstance(value, kind)}


def _kinds(schema: Any, root: dict[str, Any], depth: int) -> set[str]:
    """The names of the types that a schema allows; empty where it says nothing."""
    if not isinstance(schema, dict) or not depth:
        return set()
    if isinstance(schema.get("$ref"), str):
        return _kinds(_referred(schema["$ref"], root), root, depth - 1)
    given = schema.get("type")
    kinds = {given} if isinstance(given, str) else {name for name in given or () if isinstance(name, str)}
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key) or ():
            kinds |= _kinds(part, root, depth - 1)
    values: Sequence[Any] = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if not kinds:
        kinds = {name for value in values for name in _kind_names(value)}
    if not kinds:
        kinds = {"object"} if "properties" in schema else {"array"} if "items" in schema else set()
    return kinds | ({"null"} if schema.get("nullable") is True else set())


def _referred(reference: str, root: dict[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def parameters_of(tools: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The schema of a tool's arguments; empty for one that nobody offered."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name and isinstance(function.get("parameters"), dict):
            parameters: dict[str, Any] = function["parameters"]
            return parameters
    return {}
