"""Bounds on what a chat template may spend: processor time, and the size of every value it makes.

A template is code from a checkpoint. Its loops look at a clock; its operators, literals and calls look at the size of
their result beforehand, since doubling a text sixty times takes no loop worth the name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError

MAX_CHARACTERS = 1 << 23  # of the result and of every value on the way
MAX_SECONDS = 0.5  # of this thread's processor time
_MAX_BITS = 4096  # of an integer
_MAX_ELEMENTS = 1 << 20  # of a list that a filter makes
_MAX_WIDTH = 1 << 16  # of a padded field


_WIDE_FIELD = re.compile(r"\{[^{}]*(\d{5}|\{)|%(\(\w*\))?[-+ #0.\d]*(\d{5}|\*)")


class LimitError(TemplateError):
    """A template took too long or made too much."""


class Budget:
    """One rendering's clock, and the sizes of the containers it has made (templates cannot change a container)."""

    def __init__(self) -> None:
        self._ends = time.thread_time() + MAX_SECONDS
        self._sizes: dict[int, tuple[Any, int]] = {}  # the value keeps its id from being used again

    def tick(self) -> None:
        """Raises LimitError when the time is spent."""
        if time.thread_time() > self._ends:
            raise LimitError(f"the template ran for more than {MAX_SECONDS} seconds")

    def size(self, value: Any) -> int:
        """Characters and elements in a value, with all it refers to. Raises LimitError above the bound."""
        if isinstance(value, (str, bytes)):
            return len(value) + 1
        if not isinstance(value, (list, tuple, dict)):
            return 1
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        check_elements(len(value))
        total = 1
        for item in _items(value):
            total += self.size(item)
            check_size(total)
        self._sizes[id(value)] = (value, total)
        return total


_budget: ContextVar[Budget] = ContextVar("budget")


def start() -> None:
    """Begin a rendering in this context."""
    _budget.set(Budget())


def tick() -> str:
    """Every loop and macro calls this; the empty text adds nothing to the output."""
    _budget.get().tick()
    return ""


def sized(value: Any) -> Any:
    """The value, once it is known to be small enough."""
    check_size(_budget.get().size(value))
    return value


def concatenate(parts: Iterable[str]) -> str:
    """A text from its parts."""
    kept, total = [], 0
    for part in parts:
        total += len(part)
        check_size(total)
        kept.append(part)
    return "".join(kept)


def check_size(size: int) -> None:
    """Raises LimitError for more than MAX_CHARACTERS."""
    if size > MAX_CHARACTERS:
        raise LimitError(f"the template made more than {MAX_CHARACTERS} characters")


def check_elements(count: int) -> None:
    """Raises LimitError for a list of more than 2^20 elements."""
    if count > _MAX_ELEMENTS:
        raise LimitError(f"the template made a list of more than {_MAX_ELEMENTS} elements")


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right`, for + * ** %."""
    if operator == "%" and isinstance(left, (str, bytes)):
        _check_format(str(left), (right,))
    elif operator == "+" and _is_sequence(left) and _is_sequence(right):
        size = _budget.get().size
        if not isinstance(left, (str, bytes)):
            check_elements(len(left) + len(right))
        check_size(size(left) + size(right))
    elif operator == "*":
        for values, times in ((left, right), (right, left)):
            if _is_sequence(values) and isinstance(times, int):
                if not isinstance(values, (str, bytes)):
                    check_elements(len(values) * max(times, 0))
                check_size(_budget.get().size(values) * max(times, 0))
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise LimitError(f"the template made an integer of more than {_MAX_BITS} bits")


def check_method(text: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Before a method of a text is called."""
    values = [*args, *kwargs.values()]
    if name == "format":
        _check_format(text, values)
    elif name == "join":
        _check_join(text, args[0] if args else ())
    elif name in ("replace", "translate"):
        _check_replace(text, values)
    elif name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        _check_widths(values, text.count("\t") if name == "expandtabs" else 1)


def check_filter(name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Before a filter whose result may be far larger than its input."""
    values = [*args, *kwargs.values()]
    if name == "join":
        _check_join(str(next(iter(values), "")), value)
    elif name == "replace":
        _check_replace(str(value), values)
    elif name == "format":
        _check_format(str(value), values)
    elif name == "round":
        _check_widths(values, 64)
    else:
        lines = value.count("\n") + 1 if isinstance(value, str) else 1
        _check_widths(values, lines)
        sized(value)
    if name in ("batch", "slice") and isinstance(value, str):
        check_elements(len(value))


def _check_widths(values: Iterable[Any], times: int) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > _MAX_WIDTH:
            raise LimitError(f"the template asks for a width of {value!r:.30}")
        if isinstance(value, int):
            check_size(abs(value) * times)


def _check_join(separator: str, parts: Any) -> None:
    if isinstance(parts, (list, tuple, dict, str)):
        check_size(_budget.get().size(parts) + len(separator) * len(parts))
    elif len(separator) > 64:
        raise LimitError("the template joins parts of unknown number with a long separator")


def _check_replace(text: str, values: Sequence[Any]) -> None:
    texts = [value for value in values if isinstance(value, str)]
    times = text.count(texts[0]) if texts else len(text)
    check_size(len(text) + times * max(map(len, texts), default=1))


def _check_format(text: str, values: Sequence[Any]) -> None:
    """Widths stand in the format, and a format may use a value again and again."""
    if _WIDE_FIELD.search(text.replace("{{", "").replace("%%", "")):
        raise LimitError("the template formats to a computed width or one of more than four digits")
    size = _budget.get().size
    check_size(len(text) + (text.count("{") + text.count("%")) * max(map(size, values), default=0))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (str, bytes, list, tuple))


def _items(value: Any) -> Iterable[Any]:
    return (part for pair in value.items() for part in pair) if isinstance(value, dict) else value
