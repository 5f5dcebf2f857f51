"""Calls as Python writes them, in a list between two marks (LFM2): [name(key="value", ...), ...]."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable
from typing import Any, Final

from colibri.text.formats.calls import Call
from colibri.text.formats.reasoning import partial
from colibri.text.formats.tagged import Body, CallReader

MARKS: Final = "<|tool_call_start|>", "<|tool_call_end|>"
LONGEST: Final = 1 << 18  # characters of a list of calls; more is text
_JSON_NAMES: Final = {"true": True, "false": False, "null": None}


class PythonReader(CallReader):
    """Arguments are literals with names, as Python or JSON writes them; nothing is executed."""

    openings = MARKS[:1]

    def body(self, text: str, last: bool) -> Body | None:
        """As the base class has it."""
        closing = MARKS[1]
        end = text.find(closing)
        if end < 0 and not last and len(text) <= LONGEST:
            return None
        source = text[:end] if end >= 0 else text[: len(text) - partial(text, closing)]
        calls = python_calls(source, self.new_id)
        return Body(calls, end + len(closing) if end >= 0 else len(text)) if calls else Body()


def python_calls(source: str, new_id: Callable[[], str]) -> list[Call]:
    """The calls of a list, or a single one; none when it is anything else."""
    try:
        if len(source) > LONGEST:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that strings do not have
            tree = ast.parse(source.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_call(node, new_id) for node in nodes]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _call(node: ast.expr, new_id: Callable[[], str]) -> Call:
    """Raises ValueError for what is not a call of literals with names."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError("not a name")
    arguments = {keyword.arg or "": _literal(keyword.value) for keyword in node.keywords}
    if "" in arguments:
        raise ValueError("** is no argument")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # halves of surrogate pairs are no text
    return Call(name, text, new_id())


def _literal(node: ast.expr) -> Any:
    """The value; ValueError for what JSON has no word for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_literal(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key that is no text")
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        if isinstance(value, int | float):
            return -value
    raise ValueError("not a literal")
