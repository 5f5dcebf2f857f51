"""Options that several commands share, and the kinds of value they take."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from colibri.cli.output import note
from colibri.config import MAX_GUESSES, REPETITION_PENALTIES, LoadOptions, Speculate, check_path, parse_bytes
from colibri.errors import ArgumentError
from colibri.hub.reference import parse

Decorated = Callable[..., Any]



class Size(click.ParamType[int]):
    """A number of bytes, as config.parse_bytes takes them."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        """least: bytes below which a unit must have been forgotten."""
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            size = parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < self._least:
            self.fail(f"{value!r} is {size} bytes; give a unit, as 2.5G or 800M", param, ctx)
        return size


class Guesses(click.ParamType[Speculate]):
    """auto, off or a number."""

    name = "auto|off|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Speculate:
        if value == "auto":
            return "auto"
        if value == "off":
            return "off"
        if isinstance(value, int):
            return value
        if not value.isascii() or not value.isdigit() or int(value) > MAX_GUESSES:
            self.fail(f"{value!r} is neither auto nor off nor a number within 0..{MAX_GUESSES}", param, ctx)
        return int(value)


class TokenIds(click.ParamType[list[int]]):
    """Token ids with commas between: 1,2,3."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of token ids; write it as 1,2,3", param, ctx)


class FilePath(click.Path):
    """A path; an empty text, which would mean the current directory, is an error."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(check_path("path", value), param, ctx)
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


FETCHING = frozenset({"run", "chat", "serve"})
"""Commands that fetch a model by its name where it is not in the cache."""


class ModelPath(FilePath):
    """A path, or the path of a cached model that is named; a name that the command will fetch stays as it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        reference = parse(str(value))
        if reference is None:
            return super().convert(value, param, ctx)
        from colibri.hub.pull import cached

        path = cached(reference)
        if path is None and (ctx is None or ctx.info_name not in FETCHING):
            self.fail(f"{value} is no path, and not in the cache; fetch it: colibri pull {value}", param, ctx)
        return path or Path(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Models of the cache that begin so, or else files."""
        from colibri.cli.model_names import names_in_cache

        return names_in_cache(incomplete) or super().shell_complete(ctx, param, incomplete)


def model_option(function: Decorated) -> Decorated:
    """-m MODEL; the embedded model where it is absent."""
    return click.option(
        "-m",
        "--model",
        type=ModelPath(),
        envvar="COLIBRI_MODEL",
        show_envvar=True,
        help="A .gguf file (the first of a split is enough), a Hugging Face directory, or a model of Hugging Face as "
        "ORG/NAME or ORG/NAME:Q4_K_M. Default: the embedded model.",
    )(function)


def _fetched(model: Path | None) -> Path | None:
    """The path, fetched where it is a name."""
    reference = None if model is None else parse(str(model))
    if reference is None:
        return model
    from colibri.cli.model_names import fetch

    note(f"{reference} is not in the cache and is fetched")
    return fetch(reference)


def load_options(function: Decorated) -> Decorated:
    """What LoadOptions says about a model, which becomes the argument `options` of the command."""

    @wraps(function)
    def command(model: Path | None, **given: Any) -> Any:
        loading = {name: given.pop(name) for name in ("ram", "threads", "context", "precision", "kv_type", "speculate")}
        return function(options=LoadOptions(path=_fetched(model), **loading), **given)

    decorated: Decorated = command
    for option in reversed(
        (
            click.option("--ram", type=Size(least=1 << 20), help="Bound on the whole process's memory, as 2.5G (GiB)."),
            click.option(
                "--threads",
                type=click.IntRange(1),
                envvar="COLIBRI_THREADS",
                help="Default: the CPUs given to this process.",
            ),
            click.option(
                "--context",
                type=click.IntRange(1),
                help="Tokens of context. Default: what the model names, at most 4096.",
            ),
            click.option(
                "--precision",
                type=click.Choice(["fast", "exact"]),
                default="fast",
                show_default=True,
                help="fast: integer activations; exact: float32, to compare with references.",
            ),
            click.option(
                "--kv-type",
                type=click.Choice(["f16", "q8_0"]),
                default="f16",
                show_default=True,
                help="Keys and values of past tokens: half floats, or int8 in half of the memory.",
            ),
            click.option(
                "--speculate",
                type=Guesses(),
                default="auto",
                show_default=True,
                help="Tokens ahead that are guessed and verified together: auto (where that is faster), off, or a "
                "number. The tokens are the same.",
            ),
        )
    ):
        decorated = option(decorated)
    return model_option(decorated)


def sampling_options(function: Decorated) -> Decorated:
    """The options that become SamplingParams."""
    for option in reversed(
        (
            click.option(
                "--max-tokens",
                type=click.IntRange(0),
                default=128,
                show_default=True,
                help="Of the answer; fewer where the context has no room left.",
            ),
            click.option(
                "--temperature",
                type=click.FloatRange(0),
                default=0.8,
                show_default=True,
                help="0 takes the likeliest token.",
            ),
            click.option(
                "--top-k",
                type=click.IntRange(0),
                default=0,
                show_default=True,
                help="Only so many of the likeliest tokens; 0: all.",
            ),
            click.option(
                "--top-p",
                type=click.FloatRange(0, 1, min_open=True),
                default=1.0,
                show_default=True,
                help="Only the likeliest tokens that have this probability together.",
            ),
            click.option(
                "--min-p",
                type=click.FloatRange(0, 1),
                default=0.0,
                show_default=True,
                help="Only tokens with this part of the likeliest one's probability.",
            ),
            click.option(
                "--repetition-penalty",
                type=click.FloatRange(*REPETITION_PENALTIES),
                default=1.0,
                show_default=True,
                help="Above 1, tokens that were there before become less likely.",
            ),
            click.option("--seed", type=click.IntRange(0), help="The same seed gives the same text."),
            click.option("--stop", multiple=True, help="Text that ends the answer; may be given more than once."),
        )
    ):
        function = option(function)
    return function
