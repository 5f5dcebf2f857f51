"""What a conversion writes: for each tensor of the output its format, its parts in the source and their row order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from colibri.conversion.checksums import is_merged_experts
from colibri.conversion.dequantize import READABLE
from colibri.conversion.mixes import Context, Mix, tensor_type
from colibri.conversion.rope_factors import NAME as ROPE_TABLE, rope_factors, without_scaling
from colibri.errors import ArgumentError, FormatError, UnsupportedError
from colibri.weights.block_types import BY_NAME
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import CHECKSUMS, TensorSpec, Value
from colibri.weights.row_order import RowOrder
from colibri.weights.single_expert import GENERAL_TYPE
from colibri.weights.tensor_info import TensorInfo, part_of

_SINGLE_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.(weight|bias)")
# Written anew, or about the files that are read.
_DROPPED = re.compile(r"general\.(alignment|file_type|quantization_version)|split\..*|colibri\..*")
# In a layer the tensors of attention come first, as they are read first.
_ORDER = (
    "token_embd", "output_norm", "output", "attn_norm", "attn", "ssm", "post_attention_norm", "ffn_norm",
    "ffn_gate_inp", "exp_probs_b", "",
)  # fmt: skip


@dataclass(frozen=True)
class Output:
    """One tensor to write; `parts` are the experts of a merged tensor, or pieces of rows to be put together, in order.

    order: in which the rows are written.
    values: what to write where no source holds it.
    """

    spec: TensorSpec
    parts: tuple[TensorInfo, ...]
    order: RowOrder | None = None
    values: npt.NDArray[np.float32] | None = None

    @property
    def checksums(self) -> int:
        """Ranges with a checksum of their own: one for each expert."""
        return len(self.parts) if is_merged_experts(self.spec.name) else 1


def plan_outputs(
    checkpoint: Checkpoint, mix: Mix, only_expert: int | None = None, important: bool = False
) -> list[Output]:
    """Every tensor of the output, or with `only_expert` the matrices of that expert in each layer.

    Raises UnsupportedError for source formats that are not read, FormatError for experts that are missing.
    """
    experts = checkpoint.metadata.integer(checkpoint.key("expert_count"))
    tied = "output.weight" not in checkpoint.tensors
    context = Context(checkpoint.layers, experts, tied, _heads_a_value(checkpoint), important)
    gathered = _gather(checkpoint, experts)
    if context.tied and checkpoint.family.never_tied:
        gathered["output.weight"] = gathered["token_embd.weight"]
    if only_expert is not None:
        if not 0 <= only_expert < experts:
            raise ArgumentError(f"{checkpoint.path}: there is no expert {only_expert}; experts are 0 to {experts - 1}")
        if any(is_merged_experts(name) and name.endswith(".bias") for name in gathered):
            raise UnsupportedError(f"{checkpoint.path}: its experts have biases, so a single one cannot be replaced")
        gathered = dict(_one_expert(gathered, only_expert))
    outputs = []
    factors = rope_factors(checkpoint) if only_expert is None else None
    if factors is not None:
        outputs.append(Output(TensorSpec(ROPE_TABLE, "F32", factors.shape), (), values=factors))
    orders = checkpoint.family.row_orders(checkpoint.metadata)
    for name, parts in gathered.items():
        first, *rest = parts[0].shape
        shape = (len(parts), first, *rest) if is_merged_experts(name) else (len(parts) * first, *rest)
        type_name = tensor_type(mix, _merged_name(name), shape, context)
        parts, order = _in_stored_order(name, parts, orders)
        outputs.append(Output(TensorSpec(name, type_name, shape), parts, order))
    return sorted(outputs, key=lambda output: _place(output.spec.name))


def _heads_a_value(checkpoint: Checkpoint) -> int:
    """Query heads for each of keys and values, in the layer where they are fewest."""
    heads, kept = (checkpoint.metadata.get(checkpoint.key(f"attention.head_count{kind}")) for kind in ("", "_kv"))
    most = int(np.max(heads)) if heads is not None else 1
    return most // max(1, int(np.max(kept))) if kept is not None else 1


def _gather(checkpoint: Checkpoint, experts: int) -> dict[str, tuple[TensorInfo, ...]]:
    """Output names with their parts: experts stored one by one are brought together."""
    gathered: dict[str, tuple[TensorInfo, ...]] = {}
    singles: dict[str, dict[int, TensorInfo]] = {}
    for name, info in checkpoint.tensors.items():
        if info.type not in READABLE:
            raise UnsupportedError(
                f"{info.file}: tensor {name} is of type {info.type}; {', '.join(sorted(READABLE))} are read. "
                "Convert from the unquantised checkpoint"
            )
        match = _SINGLE_EXPERT.fullmatch(name)
        if match:
            singles.setdefault(f"{match[1]}_exps.{match[3]}", {})[int(match[2])] = info
        elif is_merged_experts(name) or info.expert_stride is not None:
            gathered[name] = tuple(info.expert(expert) for expert in range(info.shape[0]))
        else:
            gathered[name] = (info,)
    for name, found in singles.items():
        missing = sorted(set(range(experts)) - set(found))
        if missing or len({info.shape for info in found.values()}) != 1:
            raise FormatError(f"{checkpoint.path}: {name}: experts {missing[:8]} are missing or have another shape")
        gathered[name] = tuple(found[expert] for expert in range(experts))
    return gathered


def _one_expert(gathered: Mapping[str, tuple[TensorInfo, ...]], expert: int) -> Iterator[tuple[str, tuple[TensorInfo]]]:
    for name, parts in gathered.items():
        if is_merged_experts(name):
            yield name.replace("_exps.", f".{expert}."), (parts[expert],)


def _merged_name(name: str) -> str:
    match = _SINGLE_EXPERT.fullmatch(name)
    return f"{match[1]}_exps.{match[3]}" if match else name


def _place(name: str) -> tuple[int, int, str]:
    match = re.match(r"blk\.(\d+)\.", name)
    rest = name[match.end() :] if match else name
    return int(match[1]) if match else -1, next(i for i, start in enumerate(_ORDER) if rest.startswith(start)), rest


def _in_stored_order(
    name: str, parts: tuple[TensorInfo, ...], orders: Mapping[str, RowOrder]
) -> tuple[tuple[TensorInfo, ...], RowOrder | None]:
    """The parts and how their rows are put in order; nothing is where the source's is that of the files already."""
    order = orders.get(part_of(name))
    if order is None:
        return parts, None
    if all(part.order == order for part in parts):
        return tuple(replace(part, order=None) for part in parts), None
    for part in parts:
        if not order.divides(part.shape[0]):
            raise FormatError(f"{part.file}: {name} has {part.shape[0]} rows, not whole heads of {order.unit} rows")
    return parts, order.inverse()


def _typed(checkpoint: Checkpoint) -> dict[str, object]:
    """The source's metadata with the types that a GGUF file gave the values; empty arrays say nothing and have none."""
    kinds = read_gguf(checkpoint.path).kinds if checkpoint.format == "gguf" else {}
    typed: dict[str, object] = {}
    for key, value in checkpoint.metadata.items():
        if isinstance(value, int | float | str):
            typed[key] = Value(kinds[key], value) if key in kinds else value
        elif len(value):
            typed[key] = value
    return typed


def output_metadata(
    checkpoint: Checkpoint, mix: Mix, tokenizer: Mapping[str, object], checksums: int, only_expert: int | None = None
) -> dict[str, object]:
    """The source's metadata, the tokenizer's where it is given, the file's type and room for the checksums."""
    kept = {key: value for key, value in _typed(checkpoint).items() if not _DROPPED.fullmatch(key)}
    if rope_factors(checkpoint) is not None:
        kept = without_scaling(kept)
    if tokenizer:
        kept = {key: value for key, value in kept.items() if not key.startswith("tokenizer.")}
    if only_expert is not None:
        kept = {key: value for key, value in kept.items() if not key.startswith("tokenizer.")}
        kept |= {"general.type": GENERAL_TYPE, "colibri.expert": only_expert}
    quantized = BY_NAME[mix.type].values > 1
    return {
        **kept,
        **tokenizer,
        "general.file_type": mix.file_type,
        **({"general.quantization_version": 2} if quantized else {}),
        CHECKSUMS: np.zeros(checksums, np.uint32),
    }
