"""The pieces in which experts are read, and the buffers that they are read into."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from colibri.experts import reading
from colibri.experts.reading import ALIGNMENT, HUGE_PAGE, PIECE, STRIPE, ExpertFile, ExpertReader, staging_bytes
from colibri.weights.block_types import row_bytes
from colibri.weights.tensor_info import Expert, TensorInfo


def part(type_name: str, rows: int, k: int) -> TensorInfo:
    return TensorInfo("w", type_name, (rows, k), Path("m.gguf"), 0, rows * row_bytes(type_name, k))


def staging_of(*parts: TensorInfo) -> int:
    expert = Expert(dict(zip(("gate", "up", "down")[-len(parts) :], parts, strict=True)))
    return staging_bytes(SimpleNamespace(moe_layers=lambda: (0,), like=lambda layer: expert))  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "k"), [(1, 32), (17, 4096), (96, 64), (2047, 2048), (14336, 4096), (48, 1 << 20)])
@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0", "F32"])
def test_pieces_cover_a_matrix_and_fit_the_buffer(type_name: str, rows: int, k: int) -> None:
    info = part(type_name, rows, k)
    staging = staging_of(info, info)
    pieces = list(ExpertReader(staging).pieces(info))
    assert [row for first, count in pieces for row in range(first, first + count)] == list(range(rows))
    assert all(first % STRIPE == 0 for first, _ in pieces)
    largest = max(count for _, count in pieces) * info.row_bytes
    assert largest + 2 * ALIGNMENT <= staging
    assert largest <= PIECE + STRIPE * info.row_bytes
    if rows > 16 * len(pieces):
        assert min(count for _, count in pieces) > max(count for _, count in pieces) // 2 - STRIPE


def test_buffers_are_huge_pages_unless_small() -> None:
    assert staging_of(part("Q4_0", 96, 64), part("Q4_0", 64, 96)) < HUGE_PAGE // 4
    for rows, k in ((1024, 2048), (14336, 4096), (48, 1 << 20)):
        assert staging_of(part("Q4_0", rows, k), part("Q4_0", rows, k)) % HUGE_PAGE == 0


def test_direct_reads_are_of_the_file_that_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, open_regular = tmp_path / "m.gguf", reading.open_regular

    def replaced_meanwhile(path: Path) -> int:
        descriptor = open_regular(path)
        path.unlink()
        path.write_bytes(b"other")
        return descriptor

    monkeypatch.setattr(reading, "open_regular", replaced_meanwhile)
    path.write_bytes(b"first")
    file = ExpertFile(path)
    assert file.direct
    assert os.path.sameopenfile(file.buffered, file.direct_descriptor)
