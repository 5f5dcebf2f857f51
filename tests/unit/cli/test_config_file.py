"""Options from a TOML file and from the environment: who goes first, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from colibri.cli import main
from colibri.cli.group import COMMANDS, group


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["run", "--prompt", "And the king said", "--temperature", "0", "--json", *arguments]) == 0
    return str(len(json.loads(capsys.readouterr().out)["tokens"]))


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "c.toml", "[run]\nmax-tokens = 3\n[serve]\nport = 0\n")
    assert shown(capsys, "--config", file) == "3"
    monkeypatch.setenv("COLIBRI_RUN_MAX_TOKENS", "4")
    assert shown(capsys, "--config", file) == "4"
    assert shown(capsys, "--config", file, "--max-tokens", "5") == "5"
    monkeypatch.delenv("COLIBRI_RUN_MAX_TOKENS")
    monkeypatch.setenv("COLIBRI_CONFIG", file)
    assert shown(capsys) == "3"
    monkeypatch.setenv("COLIBRI_CONFIG", written(tmp_path / "d.toml", "[run]\nmax_tokens = 6"))
    assert shown(capsys) == "6"


def test_flags_and_lists(tmp_path: Path) -> None:
    text = '[serve]\nstrict = true\naccess-log = false\ncors-origin = ["https://a.b", "*"]'
    file = written(tmp_path / "c.toml", text)
    command = group.get_command(group.make_context("colibri", ["serve"], resilient_parsing=True), "serve")
    assert command is not None
    found = command.make_context("serve", ["--config", file]).params
    assert (found["strict"], found["access"], found["cors_origin"]) == (True, False, ("https://a.b", "*"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[serve]\nrma = 1", "[serve] has no option rma; did you mean ram?"),
        ("[srve]\nram = 1", "[srve] is not a command; did you mean serve?"),
        ("ram = 1", "ram stands outside of a table"),
        ("[serve]\nport = 'abc'", "[serve] port: 'abc' is not a valid integer range"),
        ("[serve]\nport = 70000", "[serve] port: 70000 is not in the range 0<=x<=65535"),
        ("[serve]\nport = true", "port is True, expected a text or a number"),
        ("[serve]\nstrict = 'yes'", "strict is 'yes', expected true or false"),
        ("[serve]\nport = [1]", "port is a list, expected one value"),
        ("[serve]\ncors-origin = [[1]]", "cors-origin is [[1]], expected texts"),
        ("[serve]\nram = '2'", "ram: '2' is 2 bytes; give a unit"),
        ("[serve]\nhost = 2000-01-01", "expected a text or a number"),
        ("[serve]\nconfig = 'other'", "has no option config"),
        ("[serve", "is not TOML"),
        ("\xff", "is not TOML"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    result = CliRunner().invoke(group, ["serve", "--config", written(tmp_path / "c.toml", text)])
    assert result.exit_code != 0
    assert message in str(result.exception)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name, message in (("none.toml", "No such file"), ("bytes.toml", "is not text"), (".", "Is a directory")):
        result = CliRunner().invoke(group, ["inspect", "--config", str(tmp_path / name)])
        assert message in str(result.exception)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_file(command: str) -> None:
    found = group.get_command(group.make_context("colibri", [command], resilient_parsing=True), command)
    assert found is not None
    assert sum(param.name == "config" for param in found.params) == 1
