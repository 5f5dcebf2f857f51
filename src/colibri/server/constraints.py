"""What a reply must be where a client demands a call of a tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def forced_schema(tools: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """The JSON schema of one call of the named tool, or of any."""
    functions = [tool["function"] for tool in tools]
    choices = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
        if name is None or function["name"] == name
    ]
    return choices[0] if len(choices) == 1 else {"anyOf": choices}
