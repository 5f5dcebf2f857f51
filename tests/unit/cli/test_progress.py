"""The sign of life tells how far it is and how long it will take."""

from __future__ import annotations

import re
import sys
import time

import pytest
from terminal import Terminal

from colibri.cli import progress
from colibri.cli.progress import Progress, counting


def lines(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], shown: Progress) -> list[str]:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    monkeypatch.setattr(progress, "LINE_S", 0.02)
    with shown:
        time.sleep(0.2)
    return capfd.readouterr().err.splitlines()


def test_an_estimate(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    found = lines(monkeypatch, capfd, Progress(lambda: "reading", lambda: (time.monotonic() - start) / 40))
    left = [int(match[1]) for line in found if (match := re.fullmatch(r"reading  \d\.\d s, about (\d+) s left", line))]
    assert left
    assert all(30 <= seconds <= 41 for seconds in left)


def test_nothing_to_estimate_from(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"loading  \d\.\d s", lines(monkeypatch, capfd, Progress(lambda: "loading"))[0])
    assert re.fullmatch(r"begun  \d\.\d s", lines(monkeypatch, capfd, Progress(lambda: "begun", lambda: 0.0))[0])


def test_bytes_of_an_interrupted_run_are_no_sign_of_speed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    progress, count = counting("q4_k_m")
    count(5_000_000_000, 10_000_000_000)
    count(5_050_000_000, 10_000_000_000)
    (first, *_) = lines(monkeypatch, capfd, progress)
    match = re.fullmatch(r"q4_k_m \[#{10}\.{10}\] 4\.70 GiB of 9\.31 GiB  (\d\.\d) s, about (\d+) s left", first)
    assert match
    assert int(match[2]) >= 95 * float(match[1])


def test_nothing_was_done_yet(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert lines(monkeypatch, capfd, counting("reading")[0])[0].startswith("reading [....................] 0 B of 0 B")


SCRIPT = """
import time
from colibri.cli import progress
from colibri.cli.output import note
progress.PATIENCE_S = 0.0
progress.REDRAW_S = 0.01
shown, count = progress.counting("unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M")
with shown:
    for done in range(0, 40):
        count(done << 24, 40 << 24)
        time.sleep(0.02)
        if done == 20:
            note("told meanwhile")
print("done")
"""


@pytest.mark.parametrize("columns", [20, 50, 120])
def test_a_terminal_shows_one_line_that_is_wiped_away(columns: int) -> None:
    terminal = Terminal([sys.executable, "-c", SCRIPT], columns)
    terminal.wait(lambda lines: bool(lines) and " s left" in lines[0])
    assert ("[...." in terminal.shown[0]) == (columns == 120)
    terminal.wait(lambda lines: "note: told meanwhile" in lines)
    assert len(terminal.shown) <= 2
    assert terminal.ended() == 0
    assert terminal.shown == ["note: told meanwhile", "done"]


@pytest.mark.parametrize("columns", range(1, 12))
def test_a_line_fits_into_any_terminal(columns: int) -> None:
    assert len(progress.fitted("reading", "  1.5 s", columns)) < columns
    assert progress.fitted("reading", "  1.5 s", 15) == "reading  1.5 s"
