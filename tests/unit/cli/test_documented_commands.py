"""Every command that a page or a --help shows is one that today's command line takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from shell_lines import check, commands

from colibri.cli.group import COMMANDS, group

ROOT = Path(__file__).parents[3]
GLOBS = "README*.md", "CONTRIBUTING.md", "docs/*.md", "examples/*", "src/colibri/demo/*.md"
PAGES = [page for glob in GLOBS for page in ROOT.glob(glob)]
SPAN = re.compile(r"`((?:\w+=\S+ )?colibri [^`]+)`")


def shown() -> Iterator[tuple[str, str, bool]]:
    """Lines that begin with a call of colibri, or have one behind a pipe; and code within sentences, which may only
    name a command or an option."""
    for page in PAGES:
        if not page.is_file():
            continue
        text = re.sub(r" *\\\n *", " ", page.read_text())
        for number, line in enumerate(text.splitlines(), 1):
            place = f"{page.relative_to(ROOT)}:{number}"
            code = line.strip().removeprefix("$ ").removeprefix("RUN ").removeprefix("ExecStart=")
            if re.match(r"(\w+=\S+ )*(\S*/)?colibri\s", code) or re.match(r"    .*\| colibri ", line):
                yield place, code, True
            else:
                yield from ((place, span, False) for span in SPAN.findall(line))


SHOWN = list(shown())


def test_there_are_enough() -> None:
    """That the search above still finds what is there."""
    assert len(SHOWN) > 60
    assert {words[0] for _, line, _ in SHOWN for words in commands(line) if words} >= {*COMMANDS} - {"rm"}


@pytest.mark.parametrize(("place", "line", "whole"), SHOWN, ids=[f"{place}-{line[:40]}" for place, line, _ in SHOWN])
def test_pages(place: str, line: str, whole: bool) -> None:
    found = list(commands(line))
    assert found
    for arguments in found:
        check(arguments, whole=whole)


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_has_examples_and_a_page(name: str | None) -> None:
    command = group if name is None else group.get_command(click.Context(group), name)
    assert command is not None and command.epilog is not None
    examples = [line for line in command.epilog.splitlines() if "colibri " in line]
    assert examples
    for line in examples:
        for arguments in commands(line):
            assert name in (None, arguments[0])
            check(arguments)
    page = command.epilog.rpartition("Documentation: ")[2]
    assert page.startswith("docs/") and (ROOT / page).is_file()
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize(
    "line",
    ["colibri fly", "colibri run --promt x", "colibri run --max-tokens many", "colibri convert only-one", "colibri rm",
     "colibri pull a/b c", "echo | colibri bench --compare a"],
)  # fmt: skip
def test_a_wrong_line_is_found(line: str) -> None:
    (arguments,) = commands(line)
    with pytest.raises(click.UsageError):
        check(arguments)


def test_the_shell_completes(tmp_path: Path) -> None:
    variables = {**os.environ, "_COLIBRI_COMPLETE": "bash_complete", "COMP_CWORD": "3", "HF_HUB_CACHE": str(tmp_path)}
    for words, expected in (
        ("colibri run --precision e", "plain,exact"),
        ("colibri run -m mod", "file,mod"),
        ("colibri run --json --repe", "plain,--repetition-penalty"),
    ):
        command = [sys.executable, "-m", "colibri.cli"]
        done = subprocess.run(command, env={**variables, "COMP_WORDS": words}, capture_output=True, text=True)
        assert done.stdout.split() == [expected], done.stderr
