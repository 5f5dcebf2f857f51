"""The readers of what comes from outside, each as a function of bytes that ends well or in a ColibriError."""

from __future__ import annotations

import json
import re
import shutil
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch_files import permuted, save_old, write_zip

from colibri.conversion.imatrix import read_imatrix
from colibri.conversion.tokenizer_export import tokenizer_metadata
from colibri.conversion.torch_file import read_file as read_torch, read_state
from colibri.errors import ColibriError
from colibri.models.registry import FAMILIES, model_spec, open_checkpoint
from colibri.text import load_tokenizer, render_chat
from colibri.text.embedded_json import JSON
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import gguf_header
from colibri.weights.json_file import read_object
from colibri.weights.metadata import Metadata
from colibri.weights.paired import with_sides
from colibri.weights.rows import fetched_by, read_rows
from colibri.weights.safetensors import read_file as read_safetensors

TESTS = Path(__file__).resolve().parent.parent
GOLDEN = TESTS / "golden"
CORPUS = TESTS / "fixtures" / "fuzz"
MODEL = GOLDEN / "qwen3_moe-gqa-f32"  # the one with a tokenizer
DATA = 1 << 19  # zeros in the place of tensors, more than the golden files hold
_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% set r = m['role'] | trim %}{% if r == 'user' %}{{ m.content }}{% else %}"
    "{{ raise_exception('no ' ~ r) if loop.last and false else m.content.split('x')[0] }}{% endif %}{% endfor %}"
)
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


class Reader(NamedTuple):
    """`read` takes a folder to write to and the input; seeds make inputs to begin with."""

    read: Callable[[Path, bytes], object]
    seeds: Callable[[], list[bytes]]


def _write(path: Path, data: bytes, more: int = 0) -> Path:
    with path.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + more)
    return path


def _gguf(folder: Path, data: bytes) -> None:
    checkpoint = open_checkpoint(_write(folder / "m.gguf", data, DATA))
    model_spec(checkpoint)


def _gguf_tokenizer(folder: Path, data: bytes) -> None:
    tokenizer = load_tokenizer(read_gguf(_write(folder / "m.gguf", data, DATA)).metadata)
    tokenizer.decode(tokenizer.encode("Hi <|im_end|> é\n"))
    tokenizer.render_chat(MESSAGES)


def _tokenizer_json(folder: Path, data: bytes) -> None:
    tokenizer = load_tokenizer(_write(folder / "tokenizer.json", data))
    tokenizer.decode(tokenizer.encode("Hi <|im_end|> é\n"))


def _config(folder: Path, data: bytes) -> None:
    if not (folder / "model.safetensors").exists():
        shutil.copy(MODEL / "model.safetensors", folder / "model.safetensors")
    _write(folder / "config.json", data)
    model_spec(open_checkpoint(folder))


def _pickle(folder: Path, data: bytes) -> None:
    write_zip(folder / "p.pt", data, [])  # where the storages are is looked at behind the pickle
    for read in (read_torch, read_state):
        try:
            read(folder / "p.pt")
        except ColibriError:
            continue


def _template(folder: Path, data: bytes) -> None:
    render_chat(data.decode("utf-8", "replace"), MESSAGES, bos_token="<s>", eos_token="</s>")


def _gguf_seeds() -> list[bytes]:
    files = [MODEL / "model.gguf", GOLDEN / "mixtral-llama3-bf16" / "model.gguf"]
    return [file.read_bytes()[: min(info.offset for info in read_gguf(file).tensors.values())] for file in files]


def _tokenizer_seeds() -> list[bytes]:
    """With the whole tokenizer.json, and by GGUF's own keys."""
    keys = tokenizer_metadata(MODEL, FAMILIES.by_architecture["qwen3moe"].pre_tokenizers, 272, lambda note: None)
    return [gguf_header(keys, []), gguf_header({key: value for key, value in keys.items() if key != JSON}, [])]


def _safetensors(folder: Path, data: bytes) -> None:
    """Behind the header lies as much data as a true one speaks of."""
    ends = re.findall(rb'"data_offsets":\[\d+,(\d{1,7})\]', data)
    read_safetensors(_write(folder / "m.safetensors", data, max(map(int, ends), default=0)))


def _safetensors_seeds() -> list[bytes]:
    data = (GOLDEN / "mixtral-gqa-f32" / "model.safetensors").read_bytes()
    return [data[: 8 + int.from_bytes(data[:8], "little")]]


def _number_formats(folder: Path, data: bytes) -> None:
    """quantization_config, a zero, the header of a file; what is made of its tensors is read where it is not large."""
    method, _, header = data.partition(b"\0")
    _write(folder / "q.json", method)
    ends = re.findall(rb'"data_offsets": ?\[\d+, ?(\d{1,6})\]', header)
    size = max(map(int, ends), default=0)
    path = _write(folder / "q.safetensors", struct.pack("<Q", len(header)) + header, size)
    config = Metadata(folder / "q.json", {"quantization_config": read_object(folder / "q.json")})
    for info in with_sides(read_safetensors(path), config).values():
        if info.encoding is not None and len(info.shape) == 2 and info.nbytes < 1 << 20:
            read_rows(info, 0, min(info.shape[0], 40), fetched_by(FileReader()))


def _number_format_seeds() -> list[bytes]:
    packed = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}
    four = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False}
    seeds: list[tuple[dict[str, Any], dict[str, tuple[str, list[int], int]]]] = [
        ({"weight_block_size": [128, 128]}, {"": ("F8_E4M3", [48, 192], 9216), "_scale_inv": ("F32", [1, 2], 8)}),
        (packed,
         {"_packed": ("I32", [16, 8], 512), "_scale": ("BF16", [16, 2], 64), "_zero_point": ("I32", [2, 2], 16)}),
        (packed,
         {"_packed": ("U8", [16, 32], 512), "_scale": ("F8_E4M3", [16, 4], 64), "_global_scale": ("F32", [1], 4)}),
        ({}, {"": ("I8", [16, 64], 1024), "_scale": ("F16", [16, 1], 32)}),
        (four, {".qweight": ("I32", [8, 16], 512), ".qzeros": ("I32", [1, 2], 8), ".scales": ("F16", [1, 16], 32)}),
        (four | {"quant_method": "awq"},
         {".qweight": ("I32", [64, 2], 512), ".qzeros": ("I32", [1, 2], 8), ".scales": ("F16", [1, 16], 32)}),
    ]  # fmt: skip
    made = []
    for method, parts in seeds:
        header, at = {}, 0
        for end, (kind, shape, nbytes) in parts.items():
            name = f"w{end}" if end.startswith(".") else f"w.weight{end}"
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + nbytes]}
            at += nbytes
        made.append(json.dumps(method).encode() + b"\0" + json.dumps(header).encode())
    return made


def _pickle_seeds() -> list[bytes]:
    states = (GOLDEN / "deepspeed-top1" / "global_step7").glob("*expert_0_*.pt"), GOLDEN.glob("*/*/mp_rank_00_*.pt")
    found = []
    for file in (file for group in states for file in sorted(group)):
        with zipfile.ZipFile(file) as archive:
            found.append(archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl"))))
    return found


def _torch_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old.bin"
        save_old(old, {"w": permuted(np.ones((3, 4), np.float32), (1, 0)), "n": {"v": np.zeros(3, np.float16)}})
        return [next((GOLDEN / "deepspeed-top1").glob("*/*_expert_0_*.pt")).read_bytes(), old.read_bytes()]


def _imatrix_seeds() -> list[bytes]:
    name = b"blk.0.attn_q.weight"
    values = struct.pack("<4f", 1, 2, 3, 4)
    return [struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 5, 4) + values]


READERS: Mapping[str, Reader] = {
    "gguf": Reader(_gguf, _gguf_seeds),
    "gguf_tokenizer": Reader(_gguf_tokenizer, _tokenizer_seeds),
    "tokenizer_json": Reader(_tokenizer_json, lambda: [(MODEL / "tokenizer.json").read_bytes()]),
    "template": Reader(_template, lambda: [_TEMPLATE.encode()]),
    "safetensors": Reader(_safetensors, _safetensors_seeds),
    "config": Reader(_config, lambda: [(MODEL / "config.json").read_bytes()]),
    "number_formats": Reader(_number_formats, _number_format_seeds),
    "torch": Reader(lambda folder, data: read_torch(_write(folder / "m.bin", data)), _torch_seeds),
    "pickle": Reader(_pickle, _pickle_seeds),
    "imatrix": Reader(lambda folder, data: read_imatrix(_write(folder / "i.dat", data)), _imatrix_seeds),
}  # fmt: skip


def run(reader: str, folder: Path, data: bytes) -> bool:
    """Whether the input was taken; a ColibriError is a fine end, anything else is raised."""
    with warnings.catch_warnings(action="ignore"):
        try:
            READERS[reader].read(folder, data)
        except ColibriError:
            return False
    return True
