"""What `--trace` writes: events that lie within each other, reads with their bytes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import colibri
from colibri.config import SamplingParams
from colibri.errors import FileError
from colibri.observe import timeline
from colibri.observe.timeline import Timeline, traced

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return [event for event in found if event["ph"] == "X"]


def test_layers_lie_in_their_steps_and_reads_have_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with colibri.load() as model, traced(model, path):
        steps = model.engine.steps
        tokens = [token.id for token in model.generate([5, 6, 7], GREEDY)]
        steps = model.engine.steps - steps
        read = model.experts.counters.bytes_read
        layers = model.spec.layers
    events = events_of(path)
    kinds = "step", "experts", "read", "sampling"
    named = {kind: [event for event in events if event["name"] == kind] for kind in kinds}
    assert len(named["step"]) == len(named["sampling"]) == steps
    assert len(named["experts"]) == steps * len(layers)
    for step in named["step"]:
        inside = [event for event in named["experts"] if step["ts"] <= event["ts"] <= step["ts"] + step["dur"]]
        assert [event["args"]["layer"] for event in inside] == list(range(len(layers)))
        assert all(event["args"]["experts"] for event in inside)
        assert sum(event["dur"] for event in inside) <= step["dur"] + 1
    assert sum(event["args"]["bytes"] for event in named["read"]) == read
    assert {event["tid"] for event in named["read"]} - {named["step"][0]["tid"]}
    with colibri.load() as model:
        assert [token.id for token in model.generate([5, 6, 7], GREEDY)] == tokens


def test_nothing_is_written_after_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with colibri.load() as model:
        with traced(model, path):
            list(model.generate([5, 6], GREEDY))
        size = path.stat().st_size
        list(model.generate([5, 6], GREEDY))
        assert path.stat().st_size == size
        assert model.engine.decoder.tap is None


def test_many_events_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "HELD", 3)
    file = io.StringIO()
    line = Timeline(file)
    for number in range(10):
        line("event", float(number), number=number)
    line.close()
    found = json.loads(file.getvalue())
    assert [event["args"]["number"] for event in found if event["ph"] == "X"] == list(range(10))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with colibri.load() as model, pytest.raises(FileError, match="cannot be written"), traced(model, tmp_path):
        pass
