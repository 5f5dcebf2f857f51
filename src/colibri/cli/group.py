"""Which commands there are, and what becomes of their errors."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

import click

from colibri.cli import EXIT_ERROR, EXIT_INTERRUPTED
from colibri.cli.config_file import config_option
from colibri.cli.epilog import epilog
from colibri.cli.output import problem
from colibri.errors import ColibriError

# command -> what it does, one line; the code is in colibri.cli.<command>:command
COMMANDS = {
    "run": "Write text that continues a prompt.",
    "chat": "Talk with a model in the terminal.",
    "serve": "Serve an OpenAI-compatible API and a page to look at.",
    "pull": "Fetch a model from Hugging Face by its name.",
    "models": "List the models in the cache and whether they fit here, or suggest some.",
    "rm": "Remove a model from the cache.",
    "inspect": "Show what a checkpoint holds: architecture, experts, bytes, tokenizer.",
    "convert": "Write any checkpoint as one GGUF file, quantised.",
    "calibrate": "Measure on a text which weights matter, for convert --imatrix.",
    "verify": "Check every block and checksum of a model.",
    "bench": "Measure speed, beside what this machine can do.",
    "swap": "Replace an expert while the model serves, or take that back.",
    "plan": "Say what will be in memory and how fast it will be, before running.",
    "route": "Show which experts a text goes to, and what a cache of them would hit.",
    "doctor": "Find what is wrong or slow with this machine and a model.",
    "perplexity": "Measure how well a model predicts a text.",
}


class LazyGroup(click.Group):
    """A group that knows its commands' names without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"colibri.cli.{cmd_name}")
        command: click.Command = module.command
        if not any(param.name == "config" for param in command.params):
            command.params.append(config_option(COMMANDS))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
             epilog=epilog("terminal.md", 'colibri run --prompt "Once upon a time"', "colibri models --suggest",
                           "colibri chat -m unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF"))  # fmt: skip
@click.version_option(package_name="colibri-moe", prog_name="colibri")
def group() -> None:
    """Colibri runs Mixture-of-Experts language models on CPUs, also those larger than memory."""


def run(arguments: Sequence[str] | None) -> int:
    """Run one command; bad input becomes one line on stderr and a nonzero exit status."""
    _stand_in_for_closed_output()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # shown as notes by the commands that go on
            result = group.main(
                args=arguments, prog_name="colibri", standalone_mode=False, auto_envvar_prefix="COLIBRI"
            )
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ColibriError as error:
        problem(_shown(str(error)))
        return EXIT_ERROR
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.stdout = None
        return EXIT_ERROR
    except OSError as error:  # such as a full disk behind our output
        said = f"standard output: {error.strerror}" if error.filename is None else str(error)
        sys.stdout = None
        problem(said)
        return EXIT_ERROR
    return result if isinstance(result, int) else 0


def _stand_in_for_closed_output() -> None:
    """Where standard output is closed, what is written to it is an error and not lost; no file gets its number."""
    output: TextIO | None = sys.stdout
    if output is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115


def _shown(text: str) -> str:
    """A message may quote names out of a file: nothing of them reaches the terminal as a command."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}" for char in text)
