"""The example programs run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from fastapi.testclient import TestClient

from .conftest import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_engine_inside_an_application() -> None:
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLES / "fastapi_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where annotations are looked up
    spec.loader.exec_module(module)
    with TestClient(module.app) as client:
        answer = client.post("/generate", json={"prompt": "Once", "max_tokens": 5})
        assert answer.status_code == 200
        assert answer.text
        assert len(client.post("/infer", json={"prompt": "Once"}).json()) == 10
        assert client.post("/generate", json={"prompt": "word " * 3000}).status_code == 400


def test_the_openai_client(server: Server) -> None:
    command = [sys.executable, str(EXAMPLES / "openai_client.py"), server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert '"stars"' in done.stdout
