"""libcolibri: built, linked into C programs, and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import colibri
from colibri.engine.model import DEMO

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PACKAGES = str(Path(colibri.__file__).parents[1])
IDS = [5, 6, 7, 8, 9]

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.skipif(
        not (sysconfig.get_config_var("LDLIBRARY") or "").endswith(".so"),
        reason="this Python was built without a shared library",
    ),
]


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    variables = {**os.environ, "PYTHONPATH": PACKAGES, **environment}
    return subprocess.run([str(part) for part in command], capture_output=True, timeout=300, check=False, env=variables)


def succeed(*command: str | Path) -> bytes:
    done = run(*command)
    assert done.returncode == 0, (done.stdout[-2000:] + done.stderr).decode(errors="replace")
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libcolibri.so and colibri.h."""
    folder = tmp_path_factory.mktemp("a folder with blanks")
    succeed(sys.executable, ROOT / "tools" / "build_library.py", folder)
    return folder


def compiled(source: Path, folder: Path) -> Path:
    program = folder / source.stem
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{folder}"]
    libraries = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lcolibri", "-lpthread", "-ldl"]
    succeed("cc", *flags, source, "-o", program, *libraries)
    return program


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """program.c, compiled against them."""
    return compiled(HERE / "program.c", folder)


def test_logits_are_those_of_python(program: Path) -> None:
    with colibri.load(DEMO) as model:
        expected = model.infer(IDS)
    found = np.frombuffer(succeed(program, "infer", DEMO), np.float32)
    assert found.tobytes() == expected.tobytes()


def test_a_text_is_that_of_python(program: Path) -> None:
    with colibri.load(DEMO) as model:
        tokens = list(model.generate("And the king said", colibri.SamplingParams(max_tokens=16, seed=3)))
    assert succeed(program, "text", DEMO).decode() == "".join(f"{token.id} {token.text}\n" for token in tokens)


@pytest.mark.parametrize("action", ["faults", "threads"])
def test_errors_and_threads(program: Path, action: str) -> None:
    assert succeed(program, action, DEMO) == b""


def test_the_example_of_the_documentation(folder: Path) -> None:
    lines = succeed(compiled(ROOT / "examples" / "embedding.c", folder), DEMO).decode().splitlines()
    shown = (ROOT / "docs" / "embedding.md").read_text()
    assert lines[-1] == "6144 ids"
    assert all(f"    {line}\n" in shown for line in lines)


def test_a_library_that_is_opened_while_the_program_runs(folder: Path) -> None:
    assert succeed(compiled(HERE / "opened.c", folder), folder / "libcolibri.so", DEMO) == b"0 \n"


def test_an_environment_without_colibri_is_an_error(program: Path, tmp_path: Path) -> None:
    done = run(program, "text", DEMO, PYTHONPATH="", COLIBRI_PYTHON=str(tmp_path / "python"))
    assert done.returncode == 1
    assert b"found -7, expected 0 (libcolibri: the Python of " in done.stdout
    assert b"expected the environment that `make lib` made" in done.stdout


def test_only_the_header_s_functions_are_exported(folder: Path) -> None:
    listed = succeed("nm", "-D", "--defined-only", folder / "libcolibri.so").decode().split("\n")
    header = (folder / "colibri.h").read_text()
    names = {line.split()[-1] for line in listed if line}
    assert names == {name for name in header.replace("(", " ").replace("*", " ").split() if name in names}
    assert len(names) == 8


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(("compiler", "standard"), [("cc", "c99"), ("c++", "c++11")])
def test_the_header_is_c_and_c_plus_plus(folder: Path, tmp_path: Path, compiler: str, standard: str) -> None:
    source = tmp_path / "source"
    source.write_text('#include "colibri.h"\nint main(void) { return colibri_close(0); }\n')
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    language = compiler.replace("cc", "c")
    succeed(compiler, "-x", language, f"-std={standard}", *strict, f"-I{folder}", source)
