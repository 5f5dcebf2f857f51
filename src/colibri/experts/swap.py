"""Replacing one expert by a file: `<model>.experts/expert-<id>.gguf`, put in its place by an atomic rename.

An expert file holds blk.<layer>.ffn_{gate,up,down}.<id>.weight for every layer with experts, in the types and shapes of
the model. A safetensors file with w1/w2/w3 or gate_proj/up_proj/down_proj is converted to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from colibri.config import shown
from colibri.errors import ArgumentError, FileError, FormatError, UnsupportedError
from colibri.experts.store import ExpertStore, check_expert
from colibri.weights.block_types import NOT_GGUF
from colibri.weights.file_reader import FileReader
from colibri.weights.finite import find_fault
from colibri.weights.gguf_writer import TensorSpec, remove_unfinished, write_gguf
from colibri.weights.load import to_float32
from colibri.weights.quantize import quantize_rows
from colibri.weights.rows import fetched_by, read_rows
from colibri.weights.single_expert import GENERAL_TYPE, ranges, read_single_expert
from colibri.weights.tensor_info import Expert, TensorInfo

CHUNK_ROWS = 256
_FILE_NAME = re.compile(r"expert-(\d+)\.gguf")


def overlay_folder(model: Path) -> Path:
    """Where the replaced experts of a model are."""
    return model.with_name(f"{model.name}.experts")


def expert_path(model: Path, expert: int) -> Path:
    """Where the replacement of one expert is."""
    return overlay_folder(model) / f"expert-{expert}.gguf"


def expert_files(folder: Path) -> dict[int, Path]:
    """The replacements in an overlay folder, by expert."""
    found = ((_FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in found if match is not None}


def swap_expert(store: ExpertStore, expert: int, source: Path) -> Path:
    """Check `source` and put it in place of `expert`; a running engine takes it up at its next token.

    Returns the file now in the overlay folder. Raises ArgumentError for an expert that does not exist, FileError or
    FormatError for a file that is not a whole expert of this model or holds a NaN or an infinity; nothing has changed
    then.
    """
    _check_number(store, expert)
    replacement = read_replacement(store, source)
    path = expert_path(store.path, expert)
    path.parent.mkdir(exist_ok=True)
    remove_unfinished(path.parent)
    _write(path, expert, store, replacement)
    return path


def revert_expert(store: ExpertStore, expert: int) -> bool:
    """Take a replacement back; False when there was none. A running engine follows at its next token."""
    _check_number(store, expert)
    path = expert_path(store.path, expert)
    remove_unfinished(path.parent)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileError(f"{path}: cannot be removed: {error.strerror}") from error
    return True


def export_expert(store: ExpertStore, expert: int, destination: Path) -> None:
    """Write an expert, as it is now, to a file that `swap_expert` takes."""
    _check_number(store, expert)
    _check_types(store)
    current = {layer: store.expert(layer, expert) for layer in store.moe_layers()}
    _write(destination, expert, store, current)


def read_replacement(store: ExpertStore, path: Path) -> dict[int, Expert]:
    """The experts of every layer in a file, checked: all layers, no others, and one expert only.

    Shapes must be the model's; so must types in a GGUF file. Raises FileError and FormatError.
    """
    _check_types(store)
    if any(store.biases(layer) for layer in store.moe_layers()):
        raise UnsupportedError(f"{store.path}: its experts have biases, which files of single experts do not hold")
    found = read_single_expert(path).layers
    wanted = set(store.moe_layers())
    if set(found) != wanted:
        raise FormatError(
            f"{path}: holds layers {ranges(set(found))}, but this model has experts in layers {ranges(wanted)}"
        )
    experts: dict[int, Expert] = {}
    for layer, parts in sorted(found.items()):
        missing = [name for name in store.like(layer).by_name if name not in parts]
        if missing:
            raise FormatError(f"{path}: layer {layer} lacks {', '.join(missing)}")
        experts[layer] = Expert({name: parts[name] for name in ("gate", "up", "down") if name in parts})
        check_expert(experts[layer], str(path), layer, store.like(layer), types=path.suffix != ".safetensors")
    return experts


def _check_number(store: ExpertStore, expert: int) -> None:
    if isinstance(expert, bool) or not isinstance(expert, int) or not 0 <= expert < store.experts:
        raise ArgumentError(f"expert: found {shown(expert)}, expected 0..{store.experts - 1}")


def _check_types(store: ExpertStore) -> None:
    types = {part.type for layer in store.moe_layers() for part in store.like(layer).parts}
    if missing := types & {block.name for block in NOT_GGUF}:
        raise UnsupportedError(
            f"{store.path}: its experts are in {', '.join(sorted(missing))}, which GGUF files do not hold, so none "
            "can be replaced or exported; convert the model first"
        )


def _write(path: Path, number: int, store: ExpertStore, experts: Mapping[int, Expert]) -> None:
    """Write one expert in the model's types; the file appears whole or not at all."""
    sources = {}
    for layer, expert in experts.items():
        for name, like in store.like(layer).by_name.items():
            spec = TensorSpec(f"blk.{layer}.ffn_{name}.{number}.weight", like.type, like.shape)
            info = expert.by_name[name]
            sources[spec] = (info, f"{info.file}: layer {layer}, tensor {info.name}")
    metadata = {"general.type": GENERAL_TYPE, "general.name": f"{store.path.name}, expert {number}"}
    files = FileReader()
    write_gguf(path, metadata, {spec: _converted(*source, spec.type, files) for spec, source in sources.items()})


def _converted(
    info: TensorInfo, what: str, type_name: str, files: FileReader
) -> Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """The bytes of a matrix in another type, some rows at a time; FormatError names `what` for what is not finite."""
    rows, k = info.shape
    for first in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - first)
        raw = read_rows(info, first, count, fetched_by(files)).reshape(-1)
        if fault := find_fault(info, first * info.row_bytes, raw):
            raise FormatError(f"{what} holds {fault}; it is damaged, make or fetch the file again")
        if info.type != type_name:
            raw = quantize_rows(type_name, to_float32(raw, info.type).reshape(count, k), None, what).reshape(-1)
        yield raw
