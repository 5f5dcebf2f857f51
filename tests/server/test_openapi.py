"""Requests that schemathesis makes from the OpenAPI document: what fits it, what does not, and mutations of both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .conftest import serving

# What the document cannot say (ids below the vocabulary's size, a grammar that parses) is an error 400, too.
UNTRUE = "positive_data_acceptance"


def test_every_answer_is_what_the_document_says(tmp_path: Path) -> None:
    with serving("--context", "256", "--name", "it") as server:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--exclude-path", "/live"),  # which never ends
            *("--phases", "coverage,fuzzing", "--checks", "all", "--exclude-checks", UNTRUE),
            *("--max-examples", "20", "--seed", "1", "--workers", "1", "--request-timeout", "60", "--no-color"),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout
        assert "Tested: 21" in done.stdout
        assert server.get("/health").json()["engine"]["restarts"] == 0
