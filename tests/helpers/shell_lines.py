"""Commands of Colibri in lines of a shell, held against the parser that takes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from colibri.cli.group import group
from colibri.cli.model_names import ReferenceType
from colibri.cli.options import FilePath

ENDS = frozenset({"|", "||", "&&", ";", ">", ">>", "<", "2>", "&"})
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_/.\[\]:]*")  # MODEL, SIZE, ORG/NAME


def commands(line: str) -> Iterator[list[str]]:
    """The arguments of every call of colibri in a line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token not in ENDS:
            words.append(token)
            continue
        while words and re.fullmatch(r"\w+=.*", words[0]):
            del words[0]
        if words and words[0].rpartition("/")[2] == "colibri":
            yield words[1:]
        words = []


def check(arguments: list[str], *, whole: bool = True) -> None:
    """Raise click.UsageError unless there is such a command, with such options, arguments and values.

    Where it is not whole, only what is there has to be known.
    """
    if not arguments or arguments[0].startswith("-"):
        group.make_parser(click.Context(group)).parse_args(arguments)
        return
    name, *rest = arguments
    command = group.get_command(click.Context(group), name)
    if command is None:
        raise click.UsageError(f"there is no command {name}")
    context = click.Context(command, info_name=name)
    if not whole:
        _check_names(command, rest)
        return
    values, left, _ = command.make_parser(context).parse_args(rest)
    if left:
        raise click.UsageError(f"{name}: too many arguments: {left}")
    for parameter in command.params:
        value = values.get(parameter.name)
        if parameter.required and not isinstance(value, str):
            raise click.UsageError(f"{name}: {parameter.name} is missing")
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str) and not PLACEHOLDER.fullmatch(each):
                _convert(parameter, each, context)


def _check_names(command: click.Command, words: list[str]) -> None:
    known = {option for parameter in command.params for option in parameter.opts}
    for word in words:
        if word.startswith("-") and word != "-" and word.partition("=")[0] not in known:
            raise click.UsageError(f"{command.name}: there is no option {word}")


def _convert(parameter: click.Parameter, value: str, context: click.Context) -> None:
    """Paths and names stand for what a reader has."""
    if not isinstance(parameter.type, FilePath | click.Path | ReferenceType):
        parameter.type.convert(value, parameter, context)
