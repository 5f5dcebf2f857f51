"""Pictures of traces: they are there, in the kind that was asked for, and say what they show."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from colibri.errors import ArgumentError, FileError, UnsupportedError
from colibri.experts.stats import NO_EXPERT
from colibri.observe.plots import check_picture, picture
from colibri.observe.replay import compare, zipf_trace
from colibri.observe.routing import WIDEST, counts_of, load_map

EXPERTS = 16


def test_one_text_and_two(tmp_path: Path) -> None:
    one, other = zipf_trace(3, EXPERTS, 2, 60, skew=1), zipf_trace(3, EXPERTS, 2, 60, skew=1, seed=4)
    one[:, 0] = other[:, 0] = NO_EXPERT  # a dense layer
    picture(tmp_path / "one.png", {"a text": one}, EXPERTS)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    scores = compare(one, EXPERTS, [4, 16])
    picture(tmp_path / "two.svg", {"prose": one, "code": other}, EXPERTS, scores, "A model")
    drawn = (tmp_path / "two.svg").read_text()
    for title in ("prose: times the mean load", "code: times the mean load", "prose minus code", "A model", "belady"):
        assert f"<!-- {title} -->" in drawn
    picture(tmp_path / "one.pdf", {"a text": one}, EXPERTS)
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")


def test_what_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.gif", "a"):
        with pytest.raises(ArgumentError, match=r"expected \.png, \.svg, \.pdf"):
            check_picture(tmp_path / name)
    with pytest.raises(FileError, match="cannot be written"):
        picture(tmp_path / "none" / "a.png", {"a": zipf_trace(1, 4, 2, 8, skew=0)}, 4)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match="plots"):
        check_picture(tmp_path / "a.png")


@pytest.mark.parametrize("experts", [4, 48, 128, 512])
def test_a_map_fits_a_narrow_terminal(experts: int) -> None:
    trace = zipf_trace(3, experts, 2, 100, skew=1)
    trace[:, 1] = NO_EXPERT
    lines = load_map(counts_of(trace, experts))
    assert len(lines) == 3
    assert all(len(line) <= WIDEST + 6 < 60 for line in lines)
    assert all("█" in line for line in lines[1:])


def test_the_map_is_the_counts() -> None:
    lines = load_map(np.array([[8, 4, 0, 1]]))
    assert lines[1] == "0     █▄ ▁"
