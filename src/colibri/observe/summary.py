"""What a checkpoint holds, in plain numbers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from colibri import ops
from colibri.experts.store import slot_bytes
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.tensor_info import TensorInfo

_ROUTED = ("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Summary:
    """Sizes of a checkpoint. Parameters are counted in values, everything else in bytes.

    active_parameters: those that one token uses: everything dense and the chosen experts.
    expert_bytes: the smallest and the largest expert in the file; layers may differ in block type.
    memory_bytes, expert_memory_bytes: in memory, where some blocks are wider, all tensors with every expert, and the
    smallest and the largest expert.
    """

    format: str
    files: int
    file_bytes: int
    parameters: int
    active_parameters: int
    dense_bytes: int
    routed_bytes: int
    expert_bytes: tuple[int, int]
    memory_bytes: int
    expert_memory_bytes: tuple[int, int]
    bytes_by_type: dict[str, int]
    quantization: str

    def as_dict(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


def summarize(checkpoint: Checkpoint, spec: ModelSpec) -> Summary:
    """Count the tensors of a checkpoint; reads no tensor."""
    routed = dense = routed_bytes = memory = 0
    by_type: Counter[str] = Counter()
    for info in checkpoint.tensors.values():
        values = math.prod(info.shape)
        by_type[info.type] += info.nbytes
        memory += _in_memory(info)
        if is_routed(info.name):
            routed += values
            routed_bytes += info.nbytes
        else:
            dense += values
    layers = (layer for layer in range(len(spec.layers)) if checkpoint.is_moe(layer))
    experts = [expert for layer in layers for expert in checkpoint.experts(layer)]
    sizes, slots = [expert.nbytes for expert in experts], [slot_bytes(expert.layout) for expert in experts]
    return Summary(
        format=checkpoint.format,
        files=len(checkpoint.files),
        file_bytes=sum(file.stat().st_size for file in checkpoint.files),
        parameters=dense + routed,
        active_parameters=dense + routed * spec.experts_per_token // spec.experts,
        dense_bytes=sum(by_type.values()) - routed_bytes,
        routed_bytes=routed_bytes,
        expert_bytes=(min(sizes), max(sizes)),
        memory_bytes=memory,
        expert_memory_bytes=(min(slots), max(slots)),
        bytes_by_type=dict(by_type.most_common()),
        quantization=by_type.most_common(1)[0][0],
    )


def is_routed(name: str) -> bool:
    """Whether a tensor belongs to routed experts: blk.N.ffn_up_exps.weight, or blk.N.ffn_up.E.weight of old files."""
    parts = name.split(".")
    if len(parts) < 4 or parts[0] != "blk":
        return False
    return parts[2].endswith("_exps") or (parts[2] in _ROUTED and parts[3].isdecimal())


def _in_memory(info: TensorInfo) -> int:
    """Bytes of a matrix, or of a merged tensor's matrices, tiled; vectors become floats."""
    if len(info.shape) < 2 or info.type not in ops.BLOCK_TYPES:
        return 4 * math.prod(info.shape)
    *merged, rows, k = info.shape
    return math.prod(merged) * ops.tiled_bytes(info.type, rows, k)
