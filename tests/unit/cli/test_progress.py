"""The sign of life tells how far it is and how long it will take."""

from __future__ import annotations

import re
import time

import pytest

from colibri.cli import progress
from colibri.cli.progress import Progress


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
