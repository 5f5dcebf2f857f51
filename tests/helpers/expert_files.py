"""A small model file of four layers in two layouts, and comparisons of what lands in slots with the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import reference

from colibri import ops
from colibri.conversion.gguf_writer import GGUFWriter
from colibri.experts.reading import ExpertReader
from colibri.experts.residency import Residency
from colibri.experts.store import ExpertStore
from colibri.models import olmoe
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.gguf import read_gguf
from colibri.weights.gguf_writer import TensorSpec
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import Layout

LAYERS, EXPERTS, HIDDEN, INTERMEDIATE, CHOSEN = 4, 16, 64, 96, 4
Blocks = np.ndarray[Any, np.dtype[np.uint8]]


def random_blocks(rng: np.random.Generator, type_name: str, values: int) -> Blocks:
    """Bytes of finite Q8_0 or Q4_0 blocks, or half floats."""
    if type_name == "F16":
        return rng.standard_normal(values).astype("<f2").view(np.uint8)
    width = {"Q8_0": 34, "Q4_0": 18}[type_name]
    blocks = rng.integers(0, 256, (values // 32, width), np.uint8)
    blocks[:, :2] = rng.uniform(0.01, 0.1, len(blocks)).astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks


def expert_specs(layer: int, experts: int | None = EXPERTS, suffix: str = "_exps") -> list[TensorSpec]:
    """Tensors of one layer; odd layers have a Q8_0 down matrix, as files of mixed types do."""
    lead = () if experts is None else (experts,)
    down = "Q8_0" if layer % 2 else "Q4_0"
    return [
        TensorSpec(f"blk.{layer}.ffn_gate{suffix}.weight", "Q4_0", (*lead, INTERMEDIATE, HIDDEN)),
        TensorSpec(f"blk.{layer}.ffn_up{suffix}.weight", "Q4_0", (*lead, INTERMEDIATE, HIDDEN)),
        TensorSpec(f"blk.{layer}.ffn_down{suffix}.weight", down, (*lead, HIDDEN, INTERMEDIATE)),
    ]


def router_spec(layer: int, experts: int = EXPERTS) -> TensorSpec:
    """What tells that a layer has experts."""
    return TensorSpec(f"blk.{layer}.ffn_gate_inp.weight", "Q4_0", (experts, HIDDEN))


def open_experts(path: Path, layers: int = LAYERS, experts: int = EXPERTS) -> ExpertStore:
    """The experts of a file of `write_file`, as its metadata would describe them."""
    values = {
        "general.architecture": "olmoe", "olmoe.block_count": layers, "olmoe.embedding_length": HIDDEN,
        "olmoe.feed_forward_length": INTERMEDIATE, "olmoe.expert_count": experts,
    }  # fmt: skip
    metadata = Metadata(path, values)
    return ExpertStore(Checkpoint(path, "gguf", "m", olmoe.FAMILY, metadata, read_gguf(path).tensors, metadata))


def write_file(path: Path, specs: Iterable[TensorSpec], seed: int, alignment: int = 32) -> Path:
    """Write a GGUF file of random blocks."""
    rng = np.random.default_rng(seed)
    specs = list(specs)
    with GGUFWriter(path, {"general.architecture": "olmoe"}, specs, alignment=alignment) as writer:
        for spec in specs:
            writer.write(spec.name, [random_blocks(rng, spec.type, int(np.prod(spec.shape)))])
    return path


def faulty_reader(read: Callable[[int, memoryview, int], int], direct: bool = True) -> ExpertReader:
    """A reader whose positioned reads go through `read`."""
    return ExpertReader(1 << 16, direct=direct, read=read)


def ids_of(rows: Iterable[Iterable[int]]) -> ops.Tensor:
    """Router ids (n, k) as the ops take them."""
    array = np.array(list(rows), np.int32)
    tensor = ops.tensor("I32", array.shape)
    tensor.numpy()[:] = array
    return tensor


def plain(store: ExpertStore, layer: int, expert: int) -> list[np.ndarray[Any, Any]]:
    """The three matrices of an expert as the file has them, float32."""
    matrices = []
    for info in store.expert(layer, expert).parts:
        with info.file.open("rb") as file:
            file.seek(info.offset)
            matrices.append(reference.dequantize(info.type, file.read(info.nbytes), info.shape))
    return matrices


def live_slots(residency: Residency) -> dict[Layout, int]:
    """Slots of each layout that are taken, by experts that are here or being read."""
    return {layout: pool.live for layout, pool in residency._here.pools.items()}


def is_leased(residency: Residency) -> bool:
    """Whether a part uses an expert, or a step waits for one."""
    return bool(residency._here.leases)


def is_reading(residency: Residency) -> bool:
    """Whether an expert is being read."""
    return bool(residency._loading)


def resident_ids(residency: Residency, layer: int) -> list[int]:
    """The experts of one layer that are in slots."""
    experts = residency.store.experts
    return [number for number in range(experts) if residency._here.present[layer * experts + number]]


def tensors_of(residency: Residency, layer: int, expert: int) -> tuple[ops.Tensor, ...] | None:
    """The parts of an expert in a slot, or None."""
    slot = residency._here._slots[layer * residency.store.experts + expert]
    return None if slot is None else slot.tensors


def check_slot(residency: Residency, layer: int, expert: int) -> None:
    """The slot of an expert holds what the file says."""
    tensors = tensors_of(residency, layer, expert)
    assert tensors is not None, f"layer {layer}, expert {expert} is not in a slot"
    for tensor, expected in zip(tensors, plain(residency.store, layer, expert), strict=True):
        np.testing.assert_array_equal(ops.dequantize(tensor), expected)


def run_step(residency: Residency, layer: int, rows: list[list[int]], check: bool = True) -> list[list[int]]:
    """One layer's step: the experts of each part, each checked while its part is out."""
    parts = []
    for table, only in residency.handles(layer, ids_of(rows)):
        experts = sorted({e for row in rows for e in row}) if only is None else only.numpy().tolist()
        for expert in experts:
            assert table.resident(expert)
            if check:
                check_slot(residency, layer, expert)
        parts.append(experts)
    assert sorted(e for part in parts for e in part) == sorted({e for row in rows for e in row})
    return parts
