"""Each number format of directories, packed here by its definition, is read as the numbers that it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import write_safetensors

from colibri import ops
from colibri.conversion.gguf_writer import GGUFWriter
from colibri.errors import ColibriError, FormatError, UnsupportedError
from colibri.experts.reading import ExpertReader
from colibri.weights.checkpoint import _with_scales
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import TensorSpec
from colibri.weights.load import read_tiles
from colibri.weights.metadata import Metadata
from colibri.weights.paired import with_sides
from colibri.weights.row_order import RowOrder
from colibri.weights.safetensors import read_file
from colibri.weights.tensor_info import TensorInfo

ROWS, K = 72, 192
RNG = np.random.default_rng(3)
Arrays = dict[str, tuple[str, np.ndarray]]
Case = tuple[Arrays, dict[str, Any], np.ndarray]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def bf16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bits, and what they stand for."""
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def scales(*shape: int) -> np.ndarray:
    return RNG.uniform(0.001, 0.02, shape).astype(np.float32)


def each(values: np.ndarray) -> np.ndarray:
    """A number for each value of k, from one for each group of them."""
    return np.repeat(values, K // values.shape[1], axis=1)


def words(numbers: np.ndarray, bits: int = 4, axis: int = 1) -> np.ndarray:
    """Numbers, neighbours along an axis, in words of 32 bits; the first lowest; completed by zeros."""
    lines = np.moveaxis(numbers, axis, 1).astype(np.uint32)
    per = 32 // bits
    lines = np.pad(lines, ((0, 0), (0, -lines.shape[1] % per)))
    packed = sum((lines[:, i::per] << np.uint32(bits * i) for i in range(per)), np.zeros((), np.uint32))
    return np.ascontiguousarray(np.moveaxis(packed, 1, axis)).view(np.int32)


def of_group(num_bits: int, size: int | None = None) -> dict[str, Any]:
    weights = {"num_bits": num_bits, "group_size": size}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def int4(groups: int, half: bool) -> Case:
    q, scale = RNG.integers(-8, 8, (ROWS, K)), scales(ROWS, groups)
    bits, scale = (scale.astype(np.float16), scale.astype(np.float16).astype(np.float32)) if half else bf16(scale)
    arrays = {
        "w_packed": ("I32", words(q + 8)), "w_scale": ("F16" if half else "BF16", bits),
        "w_shape": ("I64", np.array([ROWS, K])),
    }  # fmt: skip
    return arrays, of_group(4, K // groups if groups > 1 else None), q * each(scale)


def int4_with_zeros() -> Case:
    q, zeros = RNG.integers(0, 16, (ROWS, K)), RNG.integers(0, 16, (ROWS, 3))
    bits, scale = bf16(scales(ROWS, 3))
    arrays = {
        "w_packed": ("I32", words(q)), "w_scale": ("BF16", bits), "w_zero_point": ("I32", words(zeros, axis=0)),
        "w_shape": ("I64", np.array([ROWS, K])),
    }  # fmt: skip
    return arrays, of_group(4, 64), (q - each(zeros)) * each(scale)


def int8(packed: bool) -> Case:
    q, scale = RNG.integers(-128, 128, (ROWS, K)), scales(ROWS, 1)
    if packed:
        bits, scale = bf16(scale)
        return {"w_packed": ("I32", words(q + 128, 8)), "w_scale": ("BF16", bits)}, of_group(8), q * each(scale)
    return {"w": ("I8", q.astype(np.int8)), "w_scale": ("F32", scale)}, of_group(8), q * each(scale)


def e4m3(codes: np.ndarray) -> np.ndarray:
    exponent, mantissa = codes >> 3, codes % 8
    return np.where(exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa / 8 * 2.0**-6).astype(np.float32)


def nvfp4(divided: bool) -> Case:
    q, own, of_all = RNG.integers(0, 16, (ROWS, K)), RNG.integers(0, 127, (ROWS, K // 16)), np.float32(0.37)
    codes = (q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8)
    values, scale = ("w_packed", "w_global_scale") if divided else ("w", "w_scale_2")
    arrays = {
        values: ("U8", codes), "w_scale": ("F8_E4M3", own.astype(np.uint8)),
        scale: ("F32", np.array([of_all] if divided else of_all)),
    }  # fmt: skip
    factor = e4m3(own) / of_all if divided else e4m3(own) * of_all
    return arrays, {"quant_method": "modelopt"}, E2M1[q] * each(factor)


def mxfp4() -> Case:
    q, own = RNG.integers(0, 16, (ROWS, K)), RNG.integers(110, 130, (ROWS, K // 32))
    codes = (q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8)
    numbers = E2M1[q] * each(2.0 ** (own - 127.0))
    return {"w_packed": ("U8", codes), "w_scale": ("U8", own.astype(np.uint8))}, of_group(4), numbers


def gptq(symmetric: bool, version: str = "gptq") -> Case:
    q, scale = RNG.integers(0, 16, (ROWS, K)), scales(ROWS, 3).astype(np.float16)
    zeros = np.full((ROWS, 3), 8) if symmetric else RNG.integers(1, 16, (ROWS, 3))
    arrays = {
        ".qweight": ("I32", words(q.T, axis=0)),
        ".qzeros": ("I32", words(zeros.T - (version == "gptq"))),
        ".scales": ("F16", np.ascontiguousarray(scale.T)),
        ".g_idx": ("I32", (np.arange(K) // 64).astype(np.int32)),
    }
    method = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": symmetric, "checkpoint_format": version}
    return arrays, method, (q - each(zeros)) * each(scale.astype(np.float32))


def awq() -> Case:
    q, zeros, scale = RNG.integers(0, 16, (ROWS, K)), RNG.integers(0, 16, (ROWS, 2)), scales(ROWS, 2).astype(np.float16)
    shuffled = [8 * (place // 8) + (0, 2, 4, 6, 1, 3, 5, 7)[place % 8] for place in range(ROWS)]
    arrays = {
        ".qweight": ("I32", words(q.T[:, shuffled])), ".qzeros": ("I32", words(zeros.T[:, shuffled])),
        ".scales": ("F16", np.ascontiguousarray(scale.T)),
    }  # fmt: skip
    method = {"quant_method": "awq", "bits": 4, "group_size": 96, "version": "gemm"}
    return arrays, method, (q - each(zeros)) * each(scale.astype(np.float32))


CASES = {
    "INT4": int4(6, half=False), "INT4 of rows": int4(1, half=False), "Q4_0": int4(3, half=True),
    "INT5": int4_with_zeros(), "INT8": int8(packed=False), "INT8 packed": int8(packed=True),
    "FP4": nvfp4(divided=False), "FP4 divided": nvfp4(divided=True), "MXFP4": mxfp4(),
    "Q4_0 of GPTQ": gptq(symmetric=True),
    "Q5_0 of GPTQ": gptq(symmetric=False), "Q5_0 of GPTQ 2": gptq(symmetric=False, version="gptq_v2"),
    "Q5_0 of AWQ": awq(),
}  # fmt: skip


def tensor_of(path: Path, arrays: Arrays, method: dict[str, Any]) -> TensorInfo:
    """The tensor w.weight of a file, whatever it is made of."""
    stored = {
        (f"w{name}" if name.startswith(".") else f"w.weight{name.removeprefix('w')}"): (
            kind,
            array.shape,
            array.tobytes(),
        )
        for name, (kind, array) in arrays.items()
    }
    write_safetensors(path, stored)
    found = with_sides(read_file(path), Metadata(path, {"quantization_config": method}))
    assert list(found) == ["w.weight"]
    return found["w.weight"]


def loaded(info: TensorInfo, staging: int = 1 << 20) -> np.ndarray:
    """The numbers of a matrix, read by both readers."""
    by_pieces, whole = (ops.tensor(info.type, info.shape, tiled=True) for _ in range(2))
    reader = ExpertReader(staging)
    for piece in reader.pieces(info):
        reader.load_piece(by_pieces, info, *piece)
    read_tiles(info, whole, FileReader())
    np.testing.assert_array_equal(ops.dequantize(by_pieces), ops.dequantize(whole))
    return ops.dequantize(whole)


@pytest.mark.parametrize("name", CASES)
def test_numbers(tmp_path: Path, name: str) -> None:
    """In order, and rows in another; with a staging buffer that holds nothing of it."""
    arrays, method, numbers = CASES[name]
    info = tensor_of(tmp_path / "model.safetensors", arrays, method)
    assert (info.type, info.shape) == (name.partition(" ")[0], (ROWS, K))
    expected = numbers.astype(np.float32)
    np.testing.assert_array_equal(loaded(info), expected)
    np.testing.assert_array_equal(loaded(info, 8192), expected)
    order = RowOrder(8, (7, 0, 3, 2))
    np.testing.assert_array_equal(loaded(info.of_rows(ROWS // 2, order)), expected[order.sources(0, ROWS // 2)])


@pytest.mark.parametrize("name", CASES)
def test_what_is_cut_or_left_out_is_refused(tmp_path: Path, name: str) -> None:
    arrays, method, _ = CASES[name]
    for part, (kind, array) in arrays.items():
        if part in ("w_shape", ".g_idx"):
            continue
        rest = {other: stored for other, stored in arrays.items() if other != part}
        for cut in (array[:-1], array[..., :-1], array[None, None]) if array.ndim == 2 else ():
            with pytest.raises(ColibriError):
                loaded(
                    tensor_of(tmp_path / "model.safetensors", {**rest, part: (kind, np.ascontiguousarray(cut))}, method)
                )
        if part.endswith(("scale", "scale_2", "scales", "qzeros")):
            with pytest.raises((UnsupportedError, FormatError)):
                tensor_of(tmp_path / "model.safetensors", {**rest, part: ("I64", array.astype(np.int64))}, method)


@pytest.mark.parametrize(
    ("change", "arrays", "message"),
    [
        ({"bits": 3}, {}, "integers of 3 bits"),
        ({"sym": True}, {}, "the zeros in qzeros are not all 8"),
        ({}, {".g_idx": ("I32", (np.arange(K) % 3).astype(np.int32))}, "g_idx is not in order"),
    ],
)
def test_gptq_that_is_not_read(tmp_path: Path, change: dict[str, Any], arrays: Arrays, message: str) -> None:
    own, method, _ = CASES["Q5_0 of GPTQ"]
    with pytest.raises(ColibriError, match=message):
        loaded(tensor_of(tmp_path / "model.safetensors", own | arrays, method | change))


def test_nvfp4_of_a_file_with_scales(tmp_path: Path) -> None:
    """GGUF's NVFP4 with a scale beside each tensor, and one for each expert of a merged one."""
    path = tmp_path / "model.gguf"
    specs = [
        TensorSpec("blk.0.attn_q.weight", "NVFP4", (32, 128)), TensorSpec("blk.0.attn_q.scale", "F32", (1,)),
        TensorSpec("blk.0.ffn_up_exps.weight", "NVFP4", (3, 16, 64)),
        TensorSpec("blk.0.ffn_up_exps.scale", "F32", (3,)),
        TensorSpec("blk.0.ffn_down_exps.scale", "F32", (3,)),
    ]  # fmt: skip
    with GGUFWriter(path, {"general.architecture": "olmoe"}, specs) as writer:
        for spec in specs:
            bits = RNG.uniform(0.1, 2, spec.shape).astype(np.float32).view(np.uint8)
            writer.write(spec.name, [bits if spec.type == "F32" else RNG.integers(0, 256, spec.nbytes, np.uint8)])
    stored = read_gguf(path).tensors
    found = _with_scales(stored)
    assert list(found) == ["blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.scale"]
    for name, experts in (("attn_q", None), ("ffn_up_exps", 3)):
        factors = np.fromfile(path, "<f4", experts or 1, offset=stored[f"blk.0.{name}.scale"].offset)
        plain, scaled = stored[f"blk.0.{name}.weight"], found[f"blk.0.{name}.weight"]
        for expert, factor in enumerate(factors):
            one, with_scale = (info if experts is None else info.expert(expert) for info in (plain, scaled))
            np.testing.assert_allclose(loaded(with_scale), loaded(one) * factor, rtol=3e-7)
    with pytest.raises(UnsupportedError, match="a scale of a tensor is read beside NVFP4"):
        _with_scales({"a.weight": stored["blk.0.ffn_down_exps.scale"], "a.scale": stored["blk.0.attn_q.scale"]})
