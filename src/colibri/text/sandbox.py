"""A Jinja environment for chat templates, which are code from a checkpoint: no attributes beyond plain data, and a
bound on time and on the size of every string.

Filters and globals are those that Hugging Face's chat templates may use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from colibri.errors import FormatError

MAX_CHARACTERS = 1 << 25  # of the result and of every string on the way
MAX_SECONDS = 0.8  # of this thread's processor time
_MAX_BITS = 4096  # of an integer
_TICK = "__tick"
_CONCAT = "__concat"


class LimitError(TemplateError):
    """A template took too long or made too much."""


class _Deadline:
    """Processor time of the rendering in progress."""

    def __init__(self) -> None:
        self._ends: ContextVar[float] = ContextVar("ends")

    def start(self) -> None:
        self._ends.set(time.thread_time() + MAX_SECONDS)

    def tick(self) -> str:
        if time.thread_time() > self._ends.get():
            raise LimitError(f"the template ran for more than {MAX_SECONDS} seconds")
        return ""


_deadline = _Deadline()


class _Generation(Extension):
    """{% generation %} marks the assistant's text for training; here its body is plain text."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """`namespace(...)` without names that begin with an underscore."""

    def __init__(self, *values: Any, **named: Any) -> None:
        attributes = dict(*values, **named)
        for name in attributes:
            _refuse_private(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Sandboxed, and bounded: loops and macros look at the clock, operators and calls at the size of their result."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.globals.pop("lipsum", None)
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
            namespace=_PlainNamespace,
            **{_TICK: _deadline.tick, _CONCAT: _concat},
        )
        self.filters["tojson"] = _tojson
        for name in ("center", "indent", "join", "replace", "format", "batch", "slice", "wordwrap"):
            self.filters[name] = _guarded(self.filters[name], name)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _instrument(super()._parse(source, name, filename))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic whose result is of a bounded size."""
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as in the base class)
        """Calls whose result is of a bounded size."""
        _check_arguments(getattr(__obj, "__self__", None), getattr(__obj, "__name__", ""), args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def _instrument(template: nodes.Template) -> nodes.Template:
    """Every loop and macro body begins with a look at the clock, and `a ~ b` checks its size."""
    for node in template.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        tick = nodes.Output([nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)])
        node.body.insert(0, tick.set_lineno(node.lineno))  # type: ignore[attr-defined]
    return _replace_concatenations(template)


def _replace_concatenations(template: nodes.Template) -> nodes.Template:
    pending: list[nodes.Node] = [template]
    while pending:
        node = pending.pop()
        for field in node.fields:
            value = getattr(node, field)
            if isinstance(value, list):
                setattr(node, field, [_checked(item) for item in value])
            else:
                setattr(node, field, _checked(value))
        pending.extend(node.iter_child_nodes())
    return template


def _checked(node: Any) -> Any:
    if not isinstance(node, nodes.Concat):
        return node
    call = nodes.Call(nodes.Name(_CONCAT, "load"), list(node.nodes), [], None, None)
    return call.set_lineno(node.lineno)


def _concat(*parts: object) -> str:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise LimitError(f"the template made a text of more than {MAX_CHARACTERS} characters")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, (str, bytes)):
        _check_arguments(left, "format", (right,), {})
    elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        _check_size(len(left) + len(right))
    elif operator == "*":
        for values, times in ((left, right), (right, left)):
            if isinstance(values, (str, bytes, list, tuple)) and isinstance(times, int):
                _check_size(len(values) * max(times, 0))
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise LimitError("the template made an integer of more than 4096 bits")


def _check_arguments(owner: object, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuses calls whose result may be far larger than what goes in: widths, replacements, joins, formats."""
    values = [*args, *kwargs.values()]
    widths = [abs(value) for value in values if isinstance(value, int)]
    _check_size(max(widths, default=0) if name != "strftime_now" else 0)
    texts = [len(value) for value in values if isinstance(value, str)]
    if isinstance(owner, str):
        if name in ("replace", "join", "translate", "expandtabs"):
            _check_size(_multiplied(owner, name, args, texts))
        if name in ("format", "format_map"):
            _check_format(owner)


def _multiplied(owner: str, name: str, args: Sequence[Any], texts: Sequence[int]) -> int:
    if name == "join":
        parts = args[0] if args and isinstance(args[0], (list, tuple, str)) else ()
        return len(owner) * len(parts)
    if name == "expandtabs":
        return owner.count("\t") * max([8, *(value for value in args if isinstance(value, int))])
    if len(args) > 1 and isinstance(args[0], str):
        return len(owner) + owner.count(args[0]) * max(texts, default=0)
    return len(owner) * max([1, *texts])


def _check_format(text: str) -> None:
    """Field widths are written out as digits; more than six of them ask for a megabyte."""
    run = 0
    for character in text:
        run = run + 1 if character.isdigit() else 0
        if run > 6:
            raise LimitError("the template formats to a width of more than six digits")
        if character == "*":
            raise LimitError("the template formats to a computed width")


def _guarded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same filter with its arguments checked; what marks it for the environment is kept."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        values = [value for value in args if not isinstance(value, (Environment, nodes.EvalContext))]
        owner, rest = (str(values[0]), values[1:]) if values and isinstance(values[0], str) else ("", values[1:])
        _check_arguments(owner, name, rest, kwargs)
        if name == "join" and values and isinstance(values[0], (list, tuple, str)):
            separator = rest[0] if rest else kwargs.get("d", "")
            _check_size(len(str(separator)) * len(values[0]))
        return function(*args, **kwargs)

    guarded.__dict__.update(getattr(function, "__dict__", {}))
    return guarded


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes, non-ASCII characters as they are."""
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=1)
def _environment() -> ChatEnvironment:
    return ChatEnvironment()


@lru_cache(maxsize=32)
def compile_template(source: str) -> Template:
    """Raises FormatError for what is not Jinja."""
    try:
        return _environment().from_string(source)
    except TemplateSyntaxError as error:
        found = f"chat template, line {error.lineno}: {error.message}"
        raise FormatError(f"{found}. Fix or replace the template.") from None
    except (RecursionError, MemoryError):
        raise FormatError("chat template: nested too deeply. Fix or replace the template.") from None


def render(source: str, variables: dict[str, Any]) -> str:
    """The template's text; raises what the template raises, LimitError beyond the bounds."""
    template = compile_template(source)
    _deadline.start()
    size, parts = 0, []
    for part in template.generate(**variables):
        size += len(part)
        _check_size(size)
        _deadline.tick()
        parts.append(part)
    return "".join(parts)
