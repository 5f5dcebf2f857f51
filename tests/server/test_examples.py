"""The example programs run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
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


def test_the_langchain_client(server: Server) -> None:
    pytest.importorskip("langchain_openai")
    command = [sys.executable, str(EXAMPLES / "langchain_client.py"), server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "'stars'" in done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_what_systemd_understands(tmp_path: Path) -> None:
    unit = (EXAMPLES / "colibri.service").read_text()
    here = unit.replace("ExecStart=/opt/colibri/bin/colibri", f"ExecStart={sys.executable} -m colibri.cli")
    assert here != unit
    (tmp_path / "colibri.service").write_text(here)
    command = ["systemd-analyze", "verify", str(tmp_path / "colibri.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_the_dockerfile_has_nothing_to_complain_of() -> None:
    command = ["hadolint", str(EXAMPLES / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
