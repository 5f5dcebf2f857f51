"""Rules of the code's structure that no other tool checks."""

from __future__ import annotations

import re
from pathlib import Path

import colibri

PACKAGE = Path(colibri.__file__).parent
NATIVE = Path(__file__).parents[2] / "native"


def test_only_ops_imports_the_native_module() -> None:
    users = {
        file.relative_to(PACKAGE).parts[0]
        for file in PACKAGE.rglob("*.py")
        if re.search(r"import.*\b_native\b|_native import", file.read_text())
    }
    assert users == {"ops"}


def test_intrinsics_are_in_the_vector_headers_only() -> None:
    users = {
        file.relative_to(NATIVE).parts[0]
        for file in NATIVE.rglob("*.[ch]")
        if re.search(r"\b_mm\d*_", file.read_text())
    }
    assert users <= {"vec", "cpu.c", "pool.c"}  # cpuid and pause are no arithmetic


def test_only_the_pool_knows_threads() -> None:
    users = {file.name for file in NATIVE.glob("**/*.c") if "pthread" in file.read_text() and "tests" not in file.parts}
    assert users == {"pool.c", "manylinux.c"}  # the latter links their symbols and starts nothing
