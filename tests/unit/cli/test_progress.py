"""The sign of life tells how far it is and how long it will take."""

from __future__ import annotations

import re
import time

import pytest

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
    match = re.fullmatch(r"q4_k_m \[#{10}\.{10}\] 5\.05 GB of 10 GB  (\d\.\d) s, about (\d+) s left", first)
    assert match
    assert int(match[2]) >= 95 * float(match[1])


def test_nothing_was_done_yet(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert lines(monkeypatch, capfd, counting("reading")[0])[0].startswith("reading [....................] 0 B of 0 B")
