"""The Jinja environment of chat templates: sandboxed, bounded, with the filters and globals that templates written for
Hugging Face's `apply_chat_template` may use."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from colibri.errors import FormatError
from colibri.text import template_limits as limits

_TICK = "__tick"
_SIZED = "__sized"
_CONCAT = "__concat"
# Filters whose result may be far larger than what they are given.
_GUARDED = ("batch", "center", "format", "indent", "join", "pprint", "replace", "round", "slice", "tojson", "wordwrap")


class _Generation(Extension):
    """{% generation %} marks the assistant's text for training; here its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

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
    """Loops and macros look at the clock; operators, literals, calls and filters look at the size of their result."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(limits.concatenate)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.globals.pop("lipsum", None)
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
            namespace=_PlainNamespace,
            **{_TICK: limits.tick, _SIZED: limits.sized, _CONCAT: _concat},
        )
        self.filters["tojson"] = _tojson
        for name in _GUARDED:
            self.filters[name] = _guarded(name, self.filters[name])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _instrument(super()._parse(source, name, filename))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic with a bounded result."""
        limits.check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls with a bounded result (the odd names leave all others to the callee's keywords)."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            limits.check_method(owner, getattr(__obj, "__name__", ""), args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format with a bounded result; without attributes of its arguments, as the sandbox has it."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        def formatted(*args: Any, **kwargs: Any) -> str:
            values = [*args, *kwargs.values()]
            limits.check_method(value.__self__, "format", values, {})
            return safe(*args, **kwargs)

        return formatted


def _instrument(template: nodes.Template) -> nodes.Template:
    """Puts the checks into the syntax tree: a tick first in every loop and macro, sizes around every literal."""
    pending: list[nodes.Node] = [template]
    while pending:
        node = pending.pop()
        pending.extend(node.iter_child_nodes())
        for field in node.fields:
            value = getattr(node, field)
            setattr(node, field, [_checked(item) for item in value] if isinstance(value, list) else _checked(value))
        if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
            node.body.insert(0, nodes.Output([_call(_TICK, [], node)]).set_lineno(node.lineno))
    return template


def _checked(node: Any) -> Any:
    if isinstance(node, nodes.Concat):
        return _call(_CONCAT, list(node.nodes), node)
    if isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return _call(_SIZED, [node], node)
    return node


def _call(name: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    call = nodes.Call(nodes.Name(name, "load", lineno=at.lineno), args, [], None, None)
    call.set_lineno(at.lineno)
    return call


def _concat(*parts: Any) -> str:
    return limits.concatenate(str(limits.sized(part)) for part in parts)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same filter, its arguments checked first; the attributes that mark it for the environment are kept."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        values = [value for value in args if not isinstance(value, (Context, Environment, nodes.EvalContext))]
        limits.check_filter(name, values[0] if values else None, values[1:], kwargs)
        return function(*args, **kwargs)

    return guarded


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout[:256])


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
        found = f"chat template, line {error.lineno}: {(error.message or '').rstrip('.')}"
        raise FormatError(f"{found}; fix or replace the template") from None
    except (RecursionError, MemoryError, SyntaxError):
        raise FormatError("chat template: nested too deeply; fix or replace the template") from None


@lru_cache(maxsize=32)
def names_read(source: str) -> frozenset[str]:
    """The variables that a template takes from outside; none of what is not Jinja."""
    try:
        return frozenset(meta.find_undeclared_variables(_environment().parse(source)))
    except (TemplateSyntaxError, RecursionError, MemoryError):
        return frozenset()


def render(source: str, variables: dict[str, Any]) -> str:
    """The template's text; raises what the template raises, LimitError beyond the bounds."""
    template = compile_template(source)
    limits.start()

    def parts() -> Any:
        for part in template.generate(**variables):
            limits.tick()
            yield part

    return limits.concatenate(parts())
