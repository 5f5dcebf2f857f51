"""Damaged files give a ColibriError or open; never another exception, much memory or a long wait."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from checkpoint_files import model_metadata, write_directory, write_model
from hypothesis import HealthCheck, given, settings, strategies as st

from colibri.errors import ColibriError
from colibri.models.registry import open_checkpoint

SETTINGS = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HEADER = 3000  # where a change hits counts, lengths, names and offsets
Changes = list[tuple[int, int]]

edits = st.lists(
    st.tuples(st.integers(0, HEADER - 1), st.sampled_from([0, 1, 3, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)),
    min_size=1,
    max_size=6,
)
wide_edits = st.tuples(
    st.integers(0, HEADER - 8), st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("valid") / "m.gguf"
    write_model(path, model_metadata("llama"))
    return path.read_bytes()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("directory"), "qwen3_moe")


def check(path: Path) -> None:
    tracemalloc.start()
    started = time.process_time()
    message = str(path)
    try:
        open_checkpoint(path)
    except ColibriError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert str(path) in message
    assert peak < 8 << 20
    assert time.process_time() - started < 1


def changed(data: bytes, changes: Changes) -> bytes:
    result = bytearray(data)
    for position, value in changes:
        if position < len(result):
            result[position] = value
    return bytes(result)


@SETTINGS
@given(changes=edits)
def test_changed_bytes_of_gguf(gguf_bytes: bytes, changes: Changes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(changed(gguf_bytes, changes))
        check(path)


@SETTINGS
@given(change=wide_edits)
def test_changed_words_of_gguf(gguf_bytes: bytes, change: tuple[int, int]) -> None:
    position, value = change
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(gguf_bytes[:position] + value.to_bytes(8, "little") + gguf_bytes[position + 8 :])
        check(path)


@SETTINGS
@given(first=st.integers(0, HEADER), count=st.integers(1, 64), moved=st.booleans())
def test_missing_and_doubled_bytes_of_gguf(gguf_bytes: bytes, first: int, count: int, moved: bool) -> None:
    part = gguf_bytes[first : first + count]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(gguf_bytes[:first] + (part * 2 if moved else b"") + gguf_bytes[first + count :])
        check(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@SETTINGS
@given(changes=edits)
def test_changed_bytes_of_a_directory(directory: Path, name: str, changes: Changes) -> None:
    original = (directory / name).read_bytes()
    try:
        (directory / name).write_bytes(changed(original, changes))
        check(directory)
    finally:
        (directory / name).write_bytes(original)
