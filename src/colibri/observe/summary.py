"""What a checkpoint holds, in plain numbers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint

_ROUTED = ("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Summary:
    """Sizes of a checkpoint. Parameters are counted in values, everything else in bytes.

    active_parameters: those that one token uses: everything dense and the chosen experts.
    expert_bytes: the smallest and the largest expert; layers may differ in block type.
    """

    format: str
    files: int
    file_bytes: int
    parameters: int
    active_parameters: int
    dense_bytes: int
    routed_bytes: int
    expert_bytes: tuple[int, int]
    bytes_by_type: dict[str, int]
    quantization: str

    def as_dict(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


def summarize(checkpoint: Checkpoint, spec: ModelSpec) -> Summary:
    """Count the tensors of a checkpoint; reads no tensor."""
    routed = dense = routed_bytes = 0
    by_type: Counter[str] = Counter()
    for info in checkpoint.tensors.values():
        values = math.prod(info.shape)
        by_type[info.type] += info.nbytes
        if is_routed(info.name):
            routed += values
            routed_bytes += info.nbytes
        else:
            dense += values
    sizes = _expert_sizes(checkpoint, spec)
    return Summary(
        format=checkpoint.format,
        files=len(checkpoint.files),
        file_bytes=sum(file.stat().st_size for file in checkpoint.files),
        parameters=dense + routed,
        active_parameters=dense + routed * spec.experts_per_token // spec.experts,
        dense_bytes=sum(by_type.values()) - routed_bytes,
        routed_bytes=routed_bytes,
        expert_bytes=(min(sizes), max(sizes)),
        bytes_by_type=dict(by_type.most_common()),
        quantization=by_type.most_common(1)[0][0],
    )


def is_routed(name: str) -> bool:
    """Whether a tensor belongs to routed experts: blk.N.ffn_up_exps.weight, or blk.N.ffn_up.E.weight of old files."""
    parts = name.split(".")
    if len(parts) < 4 or parts[0] != "blk":
        return False
    return parts[2].endswith("_exps") or (parts[2] in _ROUTED and parts[3].isdecimal())


def _expert_sizes(checkpoint: Checkpoint, spec: ModelSpec) -> list[int]:
    sizes = []
    for layer in range(len(spec.layers)):
        if checkpoint.is_moe(layer):
            sizes += [expert.nbytes for expert in checkpoint.experts(layer)]
    return sizes
