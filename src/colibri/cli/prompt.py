"""What a user types in `colibri chat`: lines edited with prompt_toolkit in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT, CONTINUED = "> ", "  "

Words = Mapping[str, Sequence[str]]  # of each command those that may follow it


def lines(commands: Words) -> Iterator[str]:
    """Messages and commands, each of which may have several lines. Raises EOFError at the end of the input.

    Tab completes what `commands` lists.
    """
    stdin: TextIO | None = sys.stdin
    if stdin is None:  # closed
        return
    read = _session(commands).prompt if stdin.isatty() and _on_terminal() else _plain
    while True:
        try:
            line = read()
        except KeyboardInterrupt:
            click.echo()
            continue
        except UnicodeDecodeError as error:
            click.echo(f"that line is not {error.encoding}", err=True)
            continue
        if line.strip():
            yield line


def _on_terminal() -> bool:
    return any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))


def _plain() -> str:
    line = input()
    while line.endswith("\\"):
        line = line[:-1] + "\n" + input()
    return line


def history_file() -> Path | None:
    """Where messages are kept, as the XDG base directory specification has it; None for a user without a home."""
    folders = os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~/.local/state")
    state = next((folder for folder in folders if os.path.isabs(folder)), None)
    return None if state is None else Path(state) / "colibri" / "chat_history"


def _session(commands: Words) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output
    from prompt_toolkit.shortcuts import CompleteStyle

    return PromptSession(
        [("bold", PROMPT)], prompt_continuation=CONTINUED, history=_history(), completer=_completer(commands),
        complete_while_typing=False, complete_style=CompleteStyle.READLINE_LIKE, key_bindings=_keys(),
        output=create_output(always_prefer_tty=True),
    )  # fmt: skip


def _history() -> History:
    """Messages of earlier conversations; of this one only, where no file can be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class Kept(FileHistory):
        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError, UnicodeError):  # a full disk does not end a conversation
                super().store_string(string)

    path = history_file()
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return Kept(str(path))


def _completer(commands: Words) -> Completer:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion

    class Commands(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            text = document.text_before_cursor
            name, blank, rest = text.partition(" ")
            known, typed = (commands.get(name, ()), rest) if blank else (tuple(commands), text)
            return (Completion(f"{word} ", -len(typed)) for word in known if word.startswith(typed) and text)

    return Commands()


def _keys() -> KeyBindings:
    """Enter sends, unless the line ends with a backslash; Alt-Enter begins another line."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
