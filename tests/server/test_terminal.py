"""`colibri chat` as it is typed into."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def chat(*typed: str, arguments: tuple[str, ...] = (), status: int = 0) -> tuple[list[str], list[str]]:
    """Lines on stdout and on stderr."""
    command = [sys.executable, "-m", "colibri.cli", "chat", "--seed", "3", "--max-tokens", "12", *arguments]
    done = subprocess.run(command, input="\n".join(typed), capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_a_conversation_reuses_what_was_computed() -> None:
    _, errors = chat("/routing", "Tell me of the beginning. " * 20, "And then?")
    reports = [line for line in errors if line.startswith("[")]
    assert len(reports) == 2
    assert "; 0 of " in reports[0]
    reused, total = reports[1].split("; ")[1].split(" prompt ")[0].split(" of ")
    assert int(total) - int(reused) < 60
    assert "experts in 7 layers" in reports[0]


def test_the_same_seed_answers_the_same_again() -> None:
    first, _ = chat("/set temperature 1", "Tell me more.", "/retry", "/undo", "Tell me more.")
    assert first[0] == first[1] == first[2]


def test_commands_and_their_mistakes() -> None:
    out, errors = chat(
        "/help", "/set", "/set temperature hot", "/set x 1", "/bogus", "/retry", "/undo", "/edit", "/quit"
    )
    assert "/new" in out[0]
    assert any(line.startswith("temperature 0.7") for line in out)
    expected = ("temperature: found 'hot'", "x: unknown setting", "there is no /bogus", "nothing to answer again",
                "nothing to take back", "/edit TEXT")  # fmt: skip
    for text in expected:
        assert any(text in line for line in errors), text


def test_a_prompt_over_the_context_does_not_end_the_conversation() -> None:
    out, errors = chat("word " * 3000, "Hello.", arguments=("--context", "256"), status=1)
    assert any("the context holds 256" in line and "/new" in line for line in errors)
    assert len(out) == 1


def test_a_line_may_go_on() -> None:
    out, _ = chat("one\\", "two", "/quit")
    assert len(out) <= 2


def test_a_template_that_fails_is_told_and_shows_in_the_exit_status(tmp_path: Path) -> None:
    """The messages end as others do, whatever the library puts at its end."""
    source = Path(__file__).parents[1] / "golden" / "qwen3_moe-gqa-f32"
    for file in source.iterdir():
        shutil.copy(file, tmp_path / file.name)
    for template, problem in (
        ("{{ messages.__class__.mro() }}", "is unsafe; fix or replace"),
        ("{% for x in messages %}", "to be closed is 'for'; fix or replace"),
    ):
        (tmp_path / "chat_template.jinja").write_text(template)
        out, errors = chat("Hello.", "/quit", arguments=("-m", str(tmp_path)), status=1)
        assert out == []
        assert problem in errors[-1], errors
