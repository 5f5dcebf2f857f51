"""Directories in 8 bits and fewer give the bits of a directory that holds the same numbers as floats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import HIDDEN, directory_config, directory_tensors, write_safetensors

from colibri.conversion.convert import Options, convert
from colibri.conversion.dequantize import dequantize
from colibri.conversion.verify import verify
from colibri.engine.model import Model
from colibri.errors import UnsupportedError
from colibri.experts.swap import export_expert
from colibri.models.registry import open_checkpoint

from .conftest import DIRECTORIES

Load = Callable[..., Model]
Stored = dict[str, tuple[str, tuple[int, ...], bytes]]
IDS = [int(number) for number in np.random.default_rng(1).integers(0, 96, 40)]


def rounded(name: str, values: np.ndarray) -> tuple[Stored, np.ndarray]:
    """A matrix in FP8 with a scale for each 128 x 128 values, and the numbers that it stands for."""
    rows, k = values.shape
    tops = [[np.abs(values[r : r + 128, c : c + 128]).max() for c in range(0, k, 128)] for r in range(0, rows, 128)]
    scales = (np.array(tops) / 448).astype(np.float32)
    each = np.repeat(np.repeat(scales, 128, 0), 128, 1)[:rows, :k]
    levels = np.sort(dequantize("F8_E4M3", block(np.arange(127), 1), 2, 64).reshape(-1)[:127])
    nearest = np.abs(np.abs(values / each)[..., None] - levels).argmin(-1)
    codes = (nearest + 128 * (values < 0)).astype(np.uint8)
    numbers = (np.sign(values) * levels[nearest] * each).astype(np.float32)
    shapes = {name: ("F8_E4M3", codes), f"{name}_scale_inv": ("F32", scales)}
    return {key: (kind, array.shape, array.tobytes()) for key, (kind, array) in shapes.items()}, numbers


def block(codes: np.ndarray, scale: float) -> np.ndarray:
    """Rows of 64 bytes of e4m3 and a scale."""
    rows = np.resize(codes.astype(np.uint8), (-(-len(codes) // 64), 64))
    scales = np.full((len(rows), 1), scale, np.float32).view(np.uint8)
    return np.concatenate([rows, scales], axis=1)


@pytest.fixture(params=[False, True], ids=["each expert", "merged"])
def directories(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A model in FP8 where 64 divides its rows, and the same numbers as F32."""
    eight: Stored = {}
    floats: Stored = {}
    for name, (kind, shape, data) in directory_tensors("qwen3_moe", fused=request.param).items():
        eight[name] = floats[name] = (kind, shape, data)
        if "layers" in name and "norm" not in name and "mlp.gate." not in name and shape[-1] == HIDDEN:
            matrices = np.frombuffer(data, np.float32).reshape(-1, *shape[-2:])
            made = [rounded(name, values) for values in matrices]
            del eight[name]
            for part in made[0][0]:
                stored = [parts[part] for parts, _ in made]
                experts = (len(made),) if len(shape) == 3 else ()
                eight[part] = stored[0][0], (*experts, *stored[0][1]), b"".join(data for _, _, data in stored)
            floats[name] = kind, shape, b"".join(numbers.tobytes() for _, numbers in made)
    for folder, tensors in (("eight", eight), ("floats", floats)):
        (tmp_path / folder).mkdir()
        method = {"quant_method": "fp8", "weight_block_size": [128, 128]} if folder == "eight" else None
        config = directory_config("qwen3_moe", quantization_config=method)
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
        write_safetensors(tmp_path / folder / "model.safetensors", tensors)
    return tmp_path / "eight", tmp_path / "floats"


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_fp8_is_what_it_stands_for(load: Load, directories: tuple[Path, Path], precision: str) -> None:
    eight, floats = (load(path, precision=precision) for path in directories)
    expected = floats.infer(IDS)
    assert eight.infer(IDS).tobytes() == expected.tobytes()
    assert np.concatenate([eight.infer(IDS[: end + 1])[-1:] for end in range(10)]).tobytes() == expected[:10].tobytes()


def test_fp8_becomes_a_file(load: Load, directories: tuple[Path, Path], tmp_path: Path) -> None:
    eight, floats = directories
    convert(open_checkpoint(eight), tmp_path / "model.gguf", Options("f32"))
    assert load(tmp_path / "model.gguf").infer(IDS).tobytes() == load(floats).infer(IDS).tobytes()


def test_experts_that_files_of_experts_do_not_hold(load: Load, directories: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="F8_E4M3, which GGUF files do not hold"):
        export_expert(load(directories[0]).experts.store, 0, tmp_path / "expert.gguf")


def test_fp8_is_verified_as_it_is_read(directories: tuple[Path, Path]) -> None:
    eight = directories[0]
    result = verify(open_checkpoint(eight))
    assert result.damages == ()
    file = eight / "model.safetensors"
    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    start, end = header["model.layers.1.self_attn.o_proj.weight"]["data_offsets"]
    data[8 + length + (start + end) // 2] = 127  # stands for NaN
    file.write_bytes(data)
    (damage,) = verify(open_checkpoint(eight)).damages
    assert "blk.1.attn_output.weight" in str(damage) and "row 32, column 0 on" in str(damage)


@pytest.mark.parametrize("path", [path for path in DIRECTORIES if "gpt_oss" in path.name or "qwen3_5" in path.name])
def test_directories_whose_rows_are_in_another_order_are_verified(path: Path) -> None:
    assert verify(open_checkpoint(path)).damages == ()
