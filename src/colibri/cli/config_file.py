"""`--config FILE`: options of the commands in TOML, a table for each command; what is given otherwise goes first."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from colibri.errors import FileError, FormatError

VARIABLE = "COLIBRI_CONFIG"


def config_option(commands: Iterable[str]) -> click.Option:
    """The option, read before all others; `commands` are the tables that a file may have."""
    known = tuple(commands)

    def read(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
        if path is not None and not ctx.resilient_parsing:
            ctx.default_map = _defaults(path, ctx, known)

    return click.Option(
        ["--config"], type=click.Path(path_type=Path), metavar="FILE", envvar=VARIABLE, show_envvar=True, is_eager=True,
        expose_value=False, callback=read, help="Options in TOML, a table for each command; those given here go first.",
    )  # fmt: skip


def _defaults(path: Path, ctx: click.Context, commands: tuple[str, ...]) -> dict[str, Any]:
    """The values of this command's table by the names of its parameters, each as the command line would take it."""
    tables = _read(path)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise FormatError(f"{path}: {name} stands outside of a table; write it under its command, as in [serve]")
        if name not in commands:
            raise FormatError(f"{path}: [{name}] is not a command{_near(name, commands)}")
    params = [param for param in ctx.command.params if isinstance(param, click.Option)]
    options = {option: param for param in params for option in _names(param)}
    found: dict[str, Any] = {}
    for key, value in tables.get(ctx.info_name or "", {}).items():
        param = options.get(key.replace("_", "-"))
        if param is None or param.name is None:
            raise FormatError(f"{path}: [{ctx.info_name}] has no option {key}{_near(key, options)}")
        found[param.name] = _checked(param, value, f"{path}: [{ctx.info_name}] {key}", ctx)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FormatError(f"--config {path}: is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"--config {path}: is not TOML: {error}") from None


def _names(param: click.Option) -> list[str]:
    """The long names of an option, without dashes."""
    return [name.removeprefix("--") for name in param.opts if name.startswith("--") and name != "--config"]


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.replace("_", "-"), known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _checked(param: click.Option, value: Any, where: str, ctx: click.Context) -> Any:
    """The value, a flag's as a truth and a repeated option's as a list; the command itself converts it."""
    if param.is_flag != isinstance(value, bool):
        expected = "true or false" if param.is_flag else "a text or a number"
        raise FormatError(f"{where} is {value!r:.80}, expected {expected}")
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) != param.multiple and isinstance(value, list):
        raise FormatError(f"{where} is a list, expected one value")
    if not all(isinstance(each, str | int | float) and isinstance(each, bool) == param.is_flag for each in values):
        raise FormatError(f"{where} is {value!r:.80}, expected {'texts' if param.multiple else 'a text or a number'}")
    try:
        for each in values:
            param.type.convert(each if param.is_flag else str(each), param, ctx)
    except click.UsageError as error:
        raise FormatError(f"{where}: {error.message}") from None
    return tuple(map(str, values)) if param.multiple else value if param.is_flag else str(value)
