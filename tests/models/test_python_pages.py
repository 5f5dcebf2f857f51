"""What the pages say to write in Python runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from colibri.engine.model import DEMO

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/python.md"])
def test_blocks(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.gguf").symlink_to(DEMO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["page"])
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out
