"""Where the bytes of every routed expert are. Nothing is read here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from colibri import ops
from colibri.errors import FormatError
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.tensor_info import Expert, Layout, TensorInfo


def slot_bytes(layout: Layout) -> int:
    """Bytes of an expert of this layout in memory, tiled."""
    return sum(ops.tiled_bytes(type_name, rows, k) for type_name, rows, k in layout)


class ExpertStore:
    """All routed experts of a checkpoint by (layer, expert).

    Layers are numbered as in the checkpoint; one without routed experts (a dense layer) has none here, the others have
    `experts` each. Raises FormatError when a tensor is missing, or types or shapes of a layer contradict each other.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.path = checkpoint.path
        self.layers = checkpoint.layers
        self._layers = {
            layer: checkpoint.experts(layer) for layer in range(self.layers) if checkpoint.is_moe(layer)
        }
        for layer, experts in self._layers.items():
            for number, expert in enumerate(experts):
                check_expert(expert, f"{expert.parts[-1].file}: expert {number}", layer, experts[0])
        self._replaced: dict[int, Mapping[int, Expert]] = {}
        self.version = 0  # counts the replacements
        first = next(iter(self._layers.values()))
        self.experts = len(first)
        self.hidden, self.intermediate = first[0].by_name["down"].shape
        self.layouts: dict[int, Layout] = {layer: experts[0].layout for layer, experts in self._layers.items()}
        self.files = {part.file for layer in self._layers.values() for expert in layer for part in expert.parts}
        self._biases = {layer: self._find_biases(checkpoint, layer) for layer in self._layers}

    def has(self, layer: int) -> bool:
        """Whether this layer has routed experts."""
        return layer in self._layers

    def moe_layers(self) -> tuple[int, ...]:
        """The layers that have routed experts, in order."""
        return tuple(self._layers)

    def expert(self, layer: int, expert: int) -> Expert:
        """Where one expert of one layer is, its replacement if it has one."""
        return self._replaced.get(expert, {}).get(layer) or self._layers[layer][expert]

    def like(self, layer: int) -> Expert:
        """An expert of this layer in the model's own files; the others, and replacements, have its types and shapes."""
        return self._layers[layer][0]

    @property
    def replaced_experts(self) -> tuple[int, ...]:
        """The experts that are taken from elsewhere."""
        return tuple(sorted(self._replaced))

    def replace(self, expert: int, layers: Mapping[int, Expert]) -> None:
        """Take an expert of every layer from elsewhere; no layers: from the model's own files again."""
        self.version += 1
        self._replaced[expert] = layers
        if not layers:
            del self._replaced[expert]

    def biases(self, layer: int) -> tuple[TensorInfo, ...]:
        """The (experts, rows) biases of the parts, or none."""
        return self._biases[layer]

    def _find_biases(self, checkpoint: Checkpoint, layer: int) -> tuple[TensorInfo, ...]:
        names = {f"blk.{layer}.ffn_{name}_exps.bias": part for name, part in self.like(layer).by_name.items()}
        infos = [checkpoint.optional(name, (self.experts, part.shape[0])) for name, part in names.items()]
        found = tuple(info for info in infos if info is not None)
        if len(found) not in (0, len(names)):
            raise FormatError(f"{self.path}: layer {layer} has biases for some of its experts' projections only")
        return found

    def slot_bytes(self, layer: int) -> int:
        """Bytes of one expert of this layer in memory, tiled."""
        return slot_bytes(self.layouts[layer])

    def layout_counts(self) -> dict[Layout, int]:
        """How many experts, over all layers, there are of each layout."""
        return {layout: count * self.experts for layout, count in Counter(self.layouts.values()).items()}


def check_expert(expert: Expert, where: str, layer: int, like: Expert, types: bool = True) -> None:
    """Raise unless the expert can stand in the place of `like`: same shapes and, with `types`, same types.

    `where` names the file and, where several are checked, the expert.
    """
    found, expected = ([(part.shape, part.type if types else "") for part in one.parts] for one in (expert, like))
    if found != expected:
        raise FormatError(f"{where}, layer {layer}: found {_describe(expert)}, expected {_describe(like)}")


def _describe(expert: Expert) -> str:
    return ", ".join(f"{name} {part.type} {part.shape}" for name, part in expert.by_name.items())
