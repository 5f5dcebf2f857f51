"""`colibri chat` in a terminal: keys, pastes, history, completion, colours."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal

from colibri.cli.prompt import history_file

Chat = Callable[..., Terminal]
CHAT = [sys.executable, "-m", "colibri.cli", "chat", "--seed", "3", "--max-tokens", "8"]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    terminals: list[Terminal] = []

    def start(*arguments: str, columns: int = 80, **environment: str) -> Terminal:
        variables = {"XDG_STATE_HOME": str(tmp_path / "state"), **environment}
        made = Terminal([*CHAT, *arguments], columns, environment=variables)
        terminals.append(made)
        made.wait(prompted)
        return made

    yield start
    for made in terminals:
        made.program.close(force=True)


def prompted(lines: list[str]) -> bool:
    return bool(lines) and lines[-1] == ">"


def answered(*said: str) -> Callable[[list[str]], bool]:
    """Whether a prompt stands below an answer to these lines."""

    def seen(lines: list[str]) -> bool:
        places = [place for place, line in enumerate(lines) if line.endswith(said[-1])]
        return bool(places) and len(lines) > places[-1] + 2 and prompted(lines)

    return seen


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert history_file() is None


@pytest.mark.parametrize("columns", [50, 120])
def test_a_paste_of_several_lines_is_one_message(chat: Chat, columns: int) -> None:
    terminal = chat("--routing", columns=columns)
    pasted = "first line\n/quit is a word here, in a line that is longer than fifty columns\n\nend"
    terminal.type(f"\x1b[200~{pasted}\x1b[201~")
    terminal.wait(lambda lines: lines[-1] == "  end")
    terminal.type("\r")
    lines = terminal.wait(answered("  end"))
    assert sum(line.startswith("[") for line in lines) == 1  # one answer
    terminal.type("\x04")
    assert terminal.ended() == 0


def test_lines_that_go_on(chat: Chat) -> None:
    terminal = chat()
    terminal.type("one\\\r")
    terminal.type("two\x1b\rthree\r")
    lines = terminal.wait(answered("three"))
    assert lines[1:4] == ["> one", "  two", "  three"]


def test_history_is_kept_for_the_owner(chat: Chat, tmp_path: Path) -> None:
    first = chat()
    first.type("\x1b[200~of\nyesterday\x1b[201~\r")
    first.wait(answered("yesterday"))
    first.type("/quit\r")
    assert first.ended() == 0
    (file,) = (tmp_path / "state").rglob("chat_history")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = chat()
    second.type("\x1b[A\x1b[A\x1b[A")  # over /quit, to the last line of the message, to the first
    second.wait(lambda lines: lines[-2:] == ["> of", "  yesterday"])


def test_without_a_place_for_history(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    terminal = chat(XDG_STATE_HOME=str(tmp_path / "file"))
    terminal.type("hello\r")
    terminal.wait(answered("hello"))
    terminal.type("\x1b[A")
    terminal.wait(lambda lines: lines[-1] == "> hello")


def test_tab_completes_commands_and_settings(chat: Chat) -> None:
    terminal = chat()
    terminal.type("/se\tte\t0.5\r/set\r")
    lines = terminal.wait(lambda lines: any(line.startswith("temperature 0.5") for line in lines))
    assert "> /set temperature 0.5" in lines
    terminal.type("plain\t\x03")  # a message is not completed; Ctrl-C drops it
    terminal.type("\x04")
    assert terminal.ended() == 0


@pytest.mark.parametrize(
    ("environment", "colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours(chat: Chat, environment: Any, colours: bool) -> None:
    terminal = chat("--routing", **environment)
    terminal.type("/retry\rhello\r")
    terminal.wait(answered("hello"))
    coloured = re.search(rb"\x1b\[[\d;]*\b(2|3[0-7]|9[0-7])m", terminal.plain)
    assert bool(coloured) == colours
    assert any("nothing to answer again" in line for line in terminal.shown)


def test_letters_that_are_no_text(chat: Chat) -> None:
    terminal = chat()
    terminal.program.send(b"caf\xe9 \x00\r")
    terminal.wait(lambda lines: any("not UTF-8" in line for line in lines) and prompted(lines))
