"""An expert is replaced whole or not at all, while others run, and can be taken back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expert_files import (
    CHOSEN,
    EXPERTS,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    check_slot,
    expert_specs,
    open_experts,
    plain,
    run_step,
    tensors_of,
    write_file,
)

from colibri import ops
from colibri.errors import ArgumentError, ColibriError, FileError, FormatError
from colibri.experts import overlay
from colibri.experts.residency import Residency
from colibri.experts.store import ExpertStore
from colibri.experts.swap import expert_path, export_expert, overlay_folder, revert_expert, swap_expert
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import TensorSpec
from colibri.weights.single_expert import read_single_expert

Make = Callable[..., Residency]
Arrays = list[np.ndarray[Any, Any]]


def replacement(path: Path, expert: int, seed: int, layers: int = LAYERS) -> Path:
    """A file with one expert of random blocks."""
    return write_file(path, [spec for layer in range(layers) for spec in expert_specs(layer, None, f".{expert}")], seed)


def contents(residency: Residency, layer: int, expert: int) -> Arrays:
    """What the slot of an expert holds."""
    tensors = tensors_of(residency, layer, expert)
    assert tensors is not None
    return [ops.dequantize(tensor) for tensor in tensors]


def equal(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_taken_up_at_the_next_step_and_reverted(make_residency: Make, store: ExpertStore, tmp_path: Path) -> None:
    residency = make_residency()
    original = [plain(store, layer, 5) for layer in range(LAYERS)]
    for layer in range(LAYERS):
        run_step(residency, layer, [[5, 6, 7, 8]])
    swap_expert(store, 5, replacement(tmp_path / "new.gguf", 5, seed=99))
    assert equal(contents(residency, 1, 5), original[1])  # the step under way ends as it began
    for layer in range(LAYERS):
        run_step(residency, layer, [[5, 6, 7, 8]])
        assert not equal(contents(residency, layer, 5), original[layer])
    assert revert_expert(store, 5)
    assert not revert_expert(store, 5)
    for layer in range(LAYERS):
        run_step(residency, layer, [[5, 6, 7, 8]])
        assert equal(contents(residency, layer, 5), original[layer])


def test_used_from_the_start(make_residency: Make, store: ExpertStore, tmp_path: Path) -> None:
    swap_expert(store, 3, replacement(tmp_path / "new.gguf", 3, seed=5))
    residency = make_residency()
    run_step(residency, 0, [[1, 2, 3, 4]])
    assert store.expert(2, 3).parts[0].file == expert_path(store.path, 3)


def test_an_export_can_be_swapped_in(make_residency: Make, store: ExpertStore, tmp_path: Path) -> None:
    export_expert(store, 2, tmp_path / "two.gguf")
    expected = [plain(store, layer, 2) for layer in range(LAYERS)]
    swap_expert(store, 9, tmp_path / "two.gguf")
    residency = make_residency()
    for layer in range(LAYERS):
        run_step(residency, layer, [[9, 1, 2, 3]])
        assert equal(contents(residency, layer, 9), expected[layer])


def refused(store: ExpertStore, expert: int, source: Path, error: type[ColibriError], text: str) -> None:
    before = plain(store, 0, 0)
    with pytest.raises(error, match=text):
        swap_expert(store, expert, source)
    assert not overlay_folder(store.path).exists() or not list(overlay_folder(store.path).iterdir())
    assert equal(plain(store, 0, 0), before)


def test_refusals(store: ExpertStore, tmp_path: Path) -> None:
    good = replacement(tmp_path / "good.gguf", 1, seed=1)
    refused(store, EXPERTS, good, ArgumentError, r"expected 0\.\.15")
    refused(store, -1, good, ArgumentError, r"expected 0\.\.15")
    refused(store, 1, tmp_path / "none.gguf", FileError, "none.gguf")
    refused(store, 1, replacement(tmp_path / "few.gguf", 1, 1, layers=3), FormatError, r"layers 0-2, .* in layers 0-3")
    two = [spec for expert in (1, 2) for layer in range(LAYERS) for spec in expert_specs(layer, None, f".{expert}")]
    refused(store, 1, write_file(tmp_path / "two.gguf", two, 1), FormatError, "experts 1-2, expected exactly one")
    types = [TensorSpec(s.name, "Q8_0", s.shape) for s in two if s.name.endswith(".1.weight")]
    refused(store, 1, write_file(tmp_path / "types.gguf", types, 1), FormatError, "found gate Q8_0")
    sizes = [TensorSpec(s.name, s.type, (s.shape[0], 2 * s.shape[1])) for s in two if s.name.endswith(".1.weight")]
    refused(store, 1, write_file(tmp_path / "sizes.gguf", sizes, 1), FormatError, "expected gate")
    missing = [s for s in two if s.name.endswith(".1.weight") and "3.ffn_up" not in s.name]
    refused(store, 1, write_file(tmp_path / "missing.gguf", missing, 1), FormatError, "layer 3 lacks up")
    os.truncate(good, good.stat().st_size - 5000)
    refused(store, 1, good, FileError, "truncated")
    (tmp_path / "text.gguf").write_text("this is not a model file")
    refused(store, 1, tmp_path / "text.gguf", FormatError, "not a GGUF")


def test_a_bad_file_put_there_by_hand_is_not_used(
    make_residency: Make, store: ExpertStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    residency = make_residency()
    run_step(residency, 0, [[1, 2, 3, 4]])
    overlay_folder(store.path).mkdir()
    shutil.move(replacement(tmp_path / "few.gguf", 1, 1, layers=3), expert_path(store.path, 1))
    run_step(residency, 0, [[1, 2, 3, 4]])
    check_slot(residency, 0, 1)
    assert "the expert in use stays" in caplog.text
    assert not store.replaced_experts


def test_taken_back_between_two_looks_is_no_fault(
    make_residency: Make, store: ExpertStore, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    swap_expert(store, 1, replacement(tmp_path / "new.gguf", 1, seed=5))
    residency = make_residency()
    assert store.replaced_experts == (1,)
    listed = overlay.expert_files

    def late(folder: Path) -> dict[int, Path]:
        files = listed(folder)
        revert_expert(store, 1)
        return files

    swap_expert(store, 1, replacement(tmp_path / "newer.gguf", 1, seed=6))
    monkeypatch.setattr(overlay, "expert_files", late)
    residency.refresh()
    assert not caplog.text
    residency.refresh()
    assert not store.replaced_experts


@pytest.mark.parametrize("again", ["swap", "revert"])
def test_what_killed_writers_left_goes(store: ExpertStore, tmp_path: Path, again: str) -> None:
    folder = overlay_folder(store.path)
    folder.mkdir()
    source = replacement(tmp_path / "new.gguf", 1, seed=5)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as writer:
        left, foreign = folder / f"expert-3.gguf.{writer.pid}.partial", folder / "notes.partial"
        left.write_text("half an expert")
        foreign.write_text("no writer's")
        swap_expert(store, 1, source)
        revert_expert(store, 1)
        assert left.exists(), "its writer still runs"
        writer.kill()
    if again == "swap":
        swap_expert(store, 1, source)
    else:
        revert_expert(store, 1)
    assert not left.exists()
    assert foreign.exists()


@pytest.mark.parametrize(("block", "where"), [(0, "row 0, column 0"), (191, "row 95, column 32")])
def test_a_scale_that_is_no_number_is_refused(store: ExpertStore, tmp_path: Path, block: int, where: str) -> None:
    path = replacement(tmp_path / "nan.gguf", 1, seed=1)
    up = read_gguf(path).tensors["blk.2.ffn_up.1.weight"]
    with path.open("r+b") as file:
        file.seek(up.offset + 18 * block)
        file.write(np.array([np.nan], "<f2").tobytes())
    refused(store, 1, path, FormatError, rf"layer 2, tensor blk\.2\.ffn_up\.1\.weight holds a NaN .* {where} on")


def safetensors(path: Path, names: tuple[str, str, str], seed: int) -> dict[tuple[int, str], np.ndarray[Any, Any]]:
    """A file with one expert of float32 matrices under the three names."""
    rng = np.random.default_rng(seed)
    header: dict[str, Any] = {}
    data = b""
    arrays = {}
    for layer in range(LAYERS):
        for projection, name in zip(("gate", "up", "down"), names, strict=True):
            shape = (HIDDEN, INTERMEDIATE) if projection == "down" else (INTERMEDIATE, HIDDEN)
            array = rng.normal(size=shape).astype("<f4")
            arrays[layer, projection] = array
            where = [len(data), len(data) + array.nbytes]
            data += array.tobytes()
            name = f"model.layers.{layer}.block_sparse_moe.experts.7.{name}.weight"
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": where}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return arrays


@pytest.mark.parametrize("names", [("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")])
def test_safetensors_are_converted(
    make_residency: Make, store: ExpertStore, tmp_path: Path, names: tuple[str, str, str]
) -> None:
    arrays = safetensors(tmp_path / "e.safetensors", names, 4)
    swap_expert(store, 7, tmp_path / "e.safetensors")
    residency = make_residency()
    for layer in range(LAYERS):
        run_step(residency, layer, [[7, 1, 2, 3]])
        for projection, found in zip(("gate", "up", "down"), contents(residency, layer, 7), strict=True):
            expected = arrays[layer, projection]
            assert np.abs(found - expected).max() < 0.2 * np.abs(expected).max()


def test_damaged_or_several_experts_as_safetensors(store: ExpertStore, tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    safetensors(path, ("w1", "w3", "w2"), 4)
    whole = path.read_bytes()
    assert read_single_expert(path).expert == 7
    path.write_bytes(whole[:-8] + np.array([np.nan], "<f4").tobytes() + whole[-4:])
    last = rf"layer 3, tensor .*layers\.3\..*w2\.weight holds a NaN .* row {HIDDEN - 1}, column {INTERMEDIATE - 2};"
    refused(store, 7, path, FormatError, last)
    name = b"layers.1.block_sparse_moe.experts.%d.w3"
    path.write_bytes(whole.replace(name % 7, name % 5))
    refused(store, 7, path, FormatError, "experts 5, 7, expected exactly one")


def test_a_thousand_swaps_under_load(make_residency: Make, store: ExpertStore, tmp_path: Path) -> None:
    """Every step sees one version in all its layers."""
    residency = make_residency(24)
    versions = [replacement(tmp_path / f"v{number}.gguf", 5, seed=number) for number in range(2)]
    expected = [[plain(store, layer, 5) for layer in range(LAYERS)]]
    for path in versions:
        swap_expert(store, 5, path)
        store.replace(5, None)
        other = open_experts(store.path)
        other.replace(5, _experts(store, path))
        expected.append([plain(other, layer, 5) for layer in range(LAYERS)])
    done = threading.Event()

    def swap() -> None:
        for number in range(1000):
            if number % 10 == 9:
                revert_expert(store, 5)
            else:
                copy = overlay_folder(store.path) / "next.tmp"
                shutil.copy(versions[number % 2], copy)
                os.replace(copy, expert_path(store.path, 5))
        done.set()

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = set()
    rng = np.random.default_rng(0)
    while not done.is_set():
        step = set()
        for layer in range(LAYERS):
            rows = [[5, *rng.choice(EXPERTS - 6, CHOSEN - 1, replace=False) + 6]]
            for _, only in residency.handles(layer, _ids(rows)):
                if only is None or 5 in only.numpy():
                    found = contents(residency, layer, 5)
                    step |= {number for number, layers in enumerate(expected) if equal(found, layers[layer])}
        assert len(step) == 1, f"a step saw the versions {step}"
        seen |= step
    swapper.join()
    assert len(seen) >= 2


def _experts(store: ExpertStore, path: Path) -> Any:
    from colibri.experts.swap import read_replacement

    return read_replacement(store, path)


def _ids(rows: list[list[int]]) -> ops.Tensor:
    tensor = ops.tensor("I32", (len(rows), len(rows[0])))
    tensor.numpy()[:] = rows
    return tensor
