"""For every test: the user's cache directory is left alone. Fixtures that several folders use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("colibri", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("colibri")

FIXTURES = Path(__file__).parent / "fixtures" / "text"


@pytest.fixture(autouse=True, scope="session")
def _own_cache_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What runs learn about routing goes to a temporary directory."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines say which instruction sets of the build were not executed."""
    from colibri import ops

    missing = [isa for isa in ops.isas_of_build() if isa not in ops.isas()]
    terminalreporter.write_line(f"instruction sets executed: {', '.join(ops.isas())}")
    if missing:
        terminalreporter.write_line(f"NOT executed, this processor has no {', '.join(missing)}")


@pytest.fixture(scope="session")
def sentencepiece() -> dict[str, Any]:
    """A model trained with the `sentencepiece` package, and what that package makes of some texts."""
    value: dict[str, Any] = json.loads((FIXTURES / "sentencepiece.json").read_text(encoding="utf-8"))
    return value
