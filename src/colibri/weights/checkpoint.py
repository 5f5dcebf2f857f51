"""One view of every checkpoint: GGUF files (single or split) and Hugging Face directories, in GGUF's vocabulary."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from colibri.errors import FileError, FormatError, UnsupportedError
from colibri.ops import BLOCK_TYPES
from colibri.spec import MAX_LAYERS
from colibri.weights.family import MORE_THAN_ONE, Families, Family
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf import StringArray, read_gguf
from colibri.weights.huggingface import ReadWeights, read_huggingface
from colibri.weights.metadata import Metadata
from colibri.weights.number_formats import scaled
from colibri.weights.safetensors import read_directory
from colibri.weights.tensor_info import Expert, TensorInfo, with_row_orders

_ANY: Final = -1
_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\.")
_DIMENSIONS: Final = {"ffn_gate_inp_shexp.weight": 2, "exp_probs_b.bias": 1}
_OF_ROUTERS: Final = ("ffn_down_exps.scale", "ffn_gate_inp.scale")
# What a file of one general.type is, when it is given in the place of a model.
_PARTS: Final = {
    "adapter": "a LoRA adapter, which is a change to a model and none itself; merge it into the model that it was made "
    "for, and give that",
    "mmproj": "the part of a model that sees or hears (mmproj), and only text is read; give the model's own file, "
    "which is published beside it",
    "imatrix": "an importance matrix, which `colibri convert --imatrix` takes; give a model",
    "vocab": "a vocabulary without a model's weights; give a model",
    "expert": "one expert, which `colibri swap` puts into a model; give the model",
}


@dataclass(frozen=True)
class Checkpoint:
    """A model's metadata and where its tensors are; nothing of the tensors is in memory.

    family: what its module says of it. metadata and tensors use GGUF's names whatever the files are. tokenizer_source
    is the tokenizer.json of a directory, or the metadata of a GGUF file.
    """

    path: Path
    format: Literal["gguf", "huggingface", "deepspeed"]
    name: str
    family: Family
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    tokenizer_source: Path | Metadata
    accepted: frozenset[str] = frozenset(BLOCK_TYPES)  # block types; a converter reads more than the engine runs
    notes: tuple[str, ...] = ()  # on what is not used

    @property
    def architecture(self) -> str:
        """GGUF's name of it."""
        return self.metadata.text("general.architecture")

    @property
    def layers(self) -> int:
        """Number of layers, without those that predict more than one token."""
        blocks = self.metadata.integer(self.key("block_count"), low=1, high=MAX_LAYERS)
        return blocks - self.metadata.integer(self.key("nextn_predict_layers"), 0, high=blocks - 1)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors, in the order of their names."""
        return tuple(sorted({info.file for info in self.tensors.values()}))

    def key(self, name: str) -> str:
        """`name` with the architecture in front, as most metadata keys have it."""
        return f"{self.architecture}.{name}"

    def require(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The tensor `name`, which must have this shape (-1: any size). Raises FormatError, UnsupportedError."""
        info = self.optional(name, shape)
        if info is None:
            raise FormatError(f"{self.path}: the tensor {name} of shape {shape} is missing")
        return info

    def optional(self, name: str, shape: tuple[int, ...]) -> TensorInfo | None:
        """As `require`, but None when there is no such tensor."""
        info = self.tensors.get(name)
        if info is None:
            return None
        fits = len(info.shape) == len(shape) and all(
            wanted in (_ANY, found) for wanted, found in zip(shape, info.shape, strict=True)
        )
        if not fits:
            raise FormatError(f"{info.file}: tensor {name} has shape {info.shape}, {shape} is expected")
        if info.type not in self.accepted:
            raise UnsupportedError(
                f"{info.file}: tensor {name} is of type {info.type}; {', '.join(BLOCK_TYPES)} are run. "
                "Use a file in another quantisation"
            )
        return info

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has a router and experts (a dense layer has neither)."""
        return f"blk.{layer}.ffn_gate_inp.weight" in self.tensors

    @property
    def gated(self) -> bool:
        """Whether experts and dense networks have a gate, as nearly all do (the key is ours)."""
        return self.metadata.flag(self.key("feed_forward_gated"), self.family.gated)

    def experts(self, layer: int) -> list[Expert]:
        """Where the routed experts of a layer are, merged in one tensor or stored one by one, with shapes checked."""
        hidden = self.metadata.integer(self.key("embedding_length"), low=1)
        hidden = self.metadata.integer(self.key("moe_latent_size"), 0) or hidden
        own, shared = self.key("expert_feed_forward_length"), self.key("feed_forward_length")
        width = self.metadata.integer(own if own in self.metadata else shared, low=1)
        shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        if not self.gated:
            del shapes["gate"]
        projections = [self._projection(layer, name, shape) for name, shape in shapes.items()]
        return [Expert(dict(zip(shapes, parts, strict=True))) for parts in zip(*projections, strict=True)]

    def _projection(self, layer: int, projection: str, shape: tuple[int, int]) -> tuple[TensorInfo, ...]:
        count = self.metadata.integer(self.key("expert_count"), low=1)
        merged = f"blk.{layer}.ffn_{projection}_exps.weight"
        single = f"blk.{layer}.ffn_{projection}.{{}}.weight"
        if merged not in self.tensors and single.format(0) in self.tensors:
            return tuple(self.require(single.format(expert), shape) for expert in range(count))
        info = self.require(merged, (count, *shape))
        return tuple(info.expert(expert) for expert in range(count))

    def fingerprint(self) -> str:
        """A hash of metadata, tensor table, file sizes and a little of each of 64 tensors; costs milliseconds.

        Equal for a copy of the files. Raises FileError when they cannot be read.
        """
        digest = hashlib.sha256()
        for key in sorted(self.metadata):
            value = self.metadata[key]
            if isinstance(value, np.ndarray | StringArray):
                value = value.tobytes()
            digest.update(f"{key}={value!r}\n".encode("utf-8", "surrogateescape"))
        for info in self.tensors.values():
            digest.update(f"{info.name} {info.type} {info.shape} {info.file.name} {info.offset}\n".encode())
        for file in self.files:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        ordered = sorted(self.tensors.values(), key=lambda info: info.name)
        reader = FileReader()
        for info in ordered[:: max(1, len(ordered) // 64)]:
            sample = bytearray(min(256, info.row_bytes) if info.strides is None else info.value_bytes)
            reader.read_into(info.file, info.offset, sample)
            digest.update(sample)
        return digest.hexdigest()


def open_checkpoint(
    path: str | Path, families: Families, accepted: frozenset[str], read_weights: ReadWeights = read_directory
) -> Checkpoint:
    """Open a .gguf file, any file of a split, or a directory with config.json and safetensors.

    families: those that are known. accepted: block types that the caller reads. read_weights: finds the tensors of a
    directory.

    Raises FileError, FormatError or UnsupportedError naming the file and the key or tensor at fault.
    """
    path = Path(path)
    try:
        is_directory = path.is_dir()
        exists = is_directory or path.exists()
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    if not exists:
        raise FileError(f"{path}: no such file; give a .gguf file or a directory with config.json and safetensors")
    checkpoint = _open_directory(path, families, read_weights) if is_directory else _open_gguf(path, families)
    checkpoint = replace(checkpoint, accepted=accepted)
    check(checkpoint)
    return checkpoint


def _open_directory(path: Path, families: Families, read_weights: ReadWeights) -> Checkpoint:
    if not (path / "config.json").exists():
        raise FileError(f"{path}: holds no config.json, so it is not a model's directory{_hint(path)}")
    family, metadata, tensors, notes = read_huggingface(path, families, read_weights)
    name, tokenizer = metadata.text("general.name"), path / "tokenizer.json"
    return Checkpoint(path, "huggingface", name, family, metadata, tensors, tokenizer, notes=notes)


def _hint(directory: Path) -> str:
    """What a directory without config.json holds instead, and what to do about it."""
    if (directory / "adapter_config.json").exists():
        return f"; it holds {_PARTS['adapter']}"
    if any(directory.glob("*model_states.pt")):
        return "; training states of DeepSpeed are run after `colibri convert`"
    inside = sorted(file.name for file in directory.glob("*.gguf"))
    if inside:
        return f"; give one of the files {', '.join(inside[:5])}"
    if any(directory.glob("*.safetensors")):
        return "; its safetensors files are there: fetch config.json and tokenizer.json, too"
    below = sorted(file.parent for file in directory.glob("*/config.json"))
    below += sorted(file for file in directory.glob("*/*.gguf"))
    return f"; give {below[0]}" if below else ""


def _open_gguf(path: Path, families: Families) -> Checkpoint:
    file = read_gguf(path)
    metadata = file.metadata
    architecture = metadata.text("general.architecture")
    kind = metadata.text("general.type", "mmproj" if architecture == "clip" else "model")
    if kind != "model":
        raise UnsupportedError(
            f"{path}: general.type is {kind!r}; a model is expected"
            if kind not in _PARTS
            else f"{path}: is {_PARTS[kind]}"
        )
    family = families.by_architecture.get(architecture)
    if family is None:
        raise _unknown(path, architecture, metadata, families)
    metadata = Metadata(path, {**metadata, **family.more_keys(metadata)})
    name = metadata.text("general.name", path.stem)
    found = _with_scales(_with_split_gate_up(_with_dimensions(file.tensors)))
    found = _with_views(found, family, metadata)
    tensors = with_row_orders(found, family.row_orders(metadata))
    return _without_skipped(Checkpoint(path, "gguf", name, family, metadata, tensors, metadata))


def _without_skipped(checkpoint: Checkpoint) -> Checkpoint:
    """Leave out the tensors that the engine does not use, with a note on what they are."""
    kept: dict[str, TensorInfo] = {}
    notes: dict[str, None] = {}
    for name, info in checkpoint.tensors.items():
        block = _BLOCK.match(name)
        what = MORE_THAN_ONE if block is not None and int(block[1]) >= checkpoint.layers else None
        for pattern, skipped in checkpoint.family.skipped.items():
            what = skipped if re.fullmatch(pattern, name) else what
        if what is None:
            kept[name] = info
        else:
            notes[f"{what} is not used"] = None
    return replace(checkpoint, tensors=kept, notes=tuple(notes))


def _unknown(path: Path, architecture: str, metadata: Metadata, families: Families) -> UnsupportedError:
    if f"{architecture}.expert_count" not in metadata:
        return _dense(path, architecture)
    return UnsupportedError(
        f"{path}: architecture {architecture!r} is not supported; "
        f"supported are {', '.join(sorted(families.by_architecture))} (llama means Mixtral)"
    )


def _dense(path: Path, architecture: str) -> UnsupportedError:
    return UnsupportedError(
        f"{path}: {architecture}.expert_count is missing, so this is a dense model; this engine is for "
        "Mixture-of-Experts models"
    )


def _with_dimensions(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Some files store a matrix of one row as a vector, or the other way round."""
    result = dict(tensors)
    for name, info in tensors.items():
        wanted = _DIMENSIONS.get(re.sub(r"^blk\.\d+\.", "", name))
        if wanted == 2 and len(info.shape) == 1:
            result[name] = replace(info, shape=(1, *info.shape))
        elif wanted == 1 and len(info.shape) == 2 and info.shape[0] == 1:
            result[name] = replace(info, shape=info.shape[1:])
    return result


def _with_views(tensors: Mapping[str, TensorInfo], family: Family, metadata: Metadata) -> dict[str, TensorInfo]:
    """Tensors that the family has in other words."""
    result: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        block = _BLOCK.match(name)
        prefix = block[0] if block is not None else ""
        view = family.views.get(name.removeprefix(prefix))
        for part in [info] if view is None else view(metadata, info):
            own = part.name if view is None else prefix + part.name
            if view is not None and own in tensors:
                raise FormatError(f"{info.file}: holds both {name} and {own}")
            result[own] = replace(part, name=own)
    return result


def _with_split_gate_up(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Tensors that hold gate and up of every expert become two views."""
    result: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        block, merged, rest = name.partition("ffn_gate_up_exps.weight")
        if merged and not rest:
            for view in info.halves(f"{block}ffn_gate_exps.weight", f"{block}ffn_up_exps.weight"):
                if view.name in tensors:
                    raise FormatError(f"{info.file}: holds both {name} and {view.name}")
                result[view.name] = view
        else:
            result[name] = info
    return result


def _with_scales(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Tensors with a scale beside them have it in their blocks; others are what a router or its input is scaled by."""
    result = dict(tensors)
    for name in tensors:
        whole = name.removesuffix(".scale") + ".weight"
        beside = name.endswith(".scale") and whole in tensors
        if beside and (tensors[whole].type == "NVFP4" or not name.endswith(_OF_ROUTERS)):
            result[whole] = scaled(tensors[whole], result.pop(name))
    return {name: info for name, info in result.items() if not name.endswith(".input_scale")}


def check(checkpoint: Checkpoint) -> None:
    """What holds for every model here: it is a Mixture of Experts, and its layers are there in the right shapes."""
    metadata, key = checkpoint.metadata, checkpoint.key
    if key("expert_count") not in metadata:
        raise _dense(checkpoint.path, checkpoint.architecture)
    experts = metadata.integer(key("expert_count"), low=1, high=1 << 16)
    metadata.integer(key("expert_used_count"), low=1, high=experts)
    hidden = metadata.integer(key("embedding_length"), low=1)
    vocabulary = metadata.integer(key("vocab_size"), None, low=1)
    checkpoint.require("token_embd.weight", (_ANY if vocabulary is None else vocabulary, hidden))
    checkpoint.require(f"{checkpoint.family.final_norm}.weight", (hidden,))
    routed = [layer for layer in range(checkpoint.layers) if checkpoint.is_moe(layer)]
    for layer in range(checkpoint.layers):
        checkpoint.require(f"blk.{layer}.attn_norm.weight", (hidden,))
    for layer in routed:
        checkpoint.require(f"blk.{layer}.ffn_gate_inp.weight", (experts, hidden))
        checkpoint.experts(layer)
    if not routed:
        raise FormatError(f"{checkpoint.path}: no layer has a router (blk.0.ffn_gate_inp.weight)")
